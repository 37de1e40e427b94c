"""Reads at which step a tracker shows each log of ``tests/scripts/tracker_run.py``: rows of ``docs/trackers.md``."""

import csv
import json
import re
import sqlite3
import zipfile
from pathlib import Path

from tests.support.tracker_files import leveldb_records

KINDS = {
    "logs": ("loss", "train/loss"),
    "evaluations": ("eval_loss", "eval/loss"),
    "prediction": ("test_loss", "test/loss"),
    "end": ("train_loss", "train/train_loss", "single_value/train_loss"),
}
"""What a row says, and the names that trackers give its loss."""


ENDS = {"train/loss": "train/train_loss"}
"""What dvclive and Aim make of ``train_loss``."""


def cells(runs, kind):
    """Return the cell of ``kind``: its steps, those of each run after a semicolon."""
    steps = [[str(step) for name, step in run if name in KINDS[kind]] for run in runs]
    return "; ".join(", ".join(of_run) for of_run in steps if of_run) or "none"


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for run in sorted(Path(folder, "out/runs").iterdir()):
        events = [EventAccumulator(str(path)).Reload() for path in sorted(run.glob("events*"))]
        yield [(tag, item.step) for each in events for tag in each.Tags()["scalars"] for item in each.Scalars(tag)]


def csv_logger(folder):
    for path in sorted(Path(folder).rglob("metrics.csv")):
        with path.open() as file:
            yield [(name, row["step"]) for row in csv.DictReader(file) for name, value in row.items() if value]


def wandb(folder):
    from wandb.proto import wandb_internal_pb2

    for path in sorted(Path(folder, "wandb").glob("offline-run-*/run-*.wandb")):
        found = []
        for data in leveldb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            logged = {each.key or "/".join(each.nested_key): each.value_json for each in record.history.item}
            found += [(name, logged["train/global_step"]) for name in logged]
        yield found


def mlflow(folder):
    with sqlite3.connect(Path(folder, "mlflow.db")) as database:
        runs = database.execute("select run_uuid from runs order by start_time").fetchall()
        for run in runs:
            yield database.execute(
                "select key, step from metrics where run_uuid = ? order by timestamp, step", run
            ).fetchall()


def dvclive(folder):
    metrics = Path(folder, "dvclive/plots/metrics")
    found = []
    for path in metrics.rglob("*.tsv"):
        name = str(path.relative_to(metrics).with_suffix(""))
        name = ENDS.get(name, name)
        with path.open() as file:
            found += [(name, row["step"]) for row in csv.DictReader(file, delimiter="\t")]
    yield found


def trackio(folder):
    (path,) = Path(folder).rglob("huggingface.db")
    with sqlite3.connect(path) as database:
        logged = database.execute("select run_id, step, metrics from metrics order by id").fetchall()
    for run in dict.fromkeys(of for of, _, _ in logged):
        yield [(name, step) for of, step, metrics in logged if of == run for name in json.loads(metrics)]


def comet_ml(folder):
    for path in sorted(Path(folder).rglob("*.zip"), key=lambda path: path.stat().st_mtime):
        with zipfile.ZipFile(path) as archive:
            messages = [json.loads(line) for line in archive.read("messages.json").decode().splitlines()]
        metrics = [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]
        yield [(metric["metricName"], metric.get("step")) for metric in metrics]


def clearml(folder):
    for path in sorted(Path(folder).rglob("offline-*.zip"), key=lambda path: path.stat().st_mtime):
        with zipfile.ZipFile(path) as archive:
            lines = archive.read("metrics.jsonl").decode().splitlines()
        events = [event for line in lines for event in json.loads(line)]
        yield [(f"{event['metric']}/{event['variant']}", event["iter"]) for event in events]


def swanlab(folder):
    for path in sorted(Path(folder, "swanlog").glob("run-*/run-*.swanlab")):
        scalars = [
            re.findall(rb"\n.([\w/]+)\x10(.)\x18\x01", each, re.DOTALL) for each in leveldb_records(path.read_bytes())
        ]
        yield [(name.decode(), step[0]) for found in scalars for name, step in found]


def aim(folder):
    from aim import Repo, Run

    repo = Repo(str(folder))
    quiet = {"system_tracking_interval": None, "log_system_params": False, "capture_terminal_logs": False}
    runs = [Run(name, repo=repo, **quiet) for name in repo.list_all_runs()]
    for run in sorted(runs, key=lambda run: run.creation_time):
        curves = [
            (metric.name, metric.context.to_dict().get("subset"), metric.data.numpy()[0]) for metric in run.metrics()
        ]
        named = [(name if subset is None else f"{subset}/{name}", steps) for name, subset, steps in curves]
        yield [(ENDS.get(name, name), int(step)) for name, steps in named for step in steps]
        run.close()
    repo.close()


READERS = {
    "swanlab": swanlab,
    "aim": aim,
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "wandb": wandb,
    "comet_ml": comet_ml,
    "dvclive": dvclive,
    "trackio": trackio,
    "clearml": clearml,
    "CSVLogger": csv_logger,
}
"""Tracker → what reads its files: for each run, in order, pairs of a name and its step."""
