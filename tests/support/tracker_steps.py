"""Reads where a tracker's files show the logs of a run: the position of each on the axis, of each run in turn."""

import csv
import json
import sqlite3
import zipfile
from collections import defaultdict
from pathlib import Path

from tests.support.tracker_files import leveldb_records

CURVES = {
    "logs": ("loss", "train/loss"),
    "evaluations": ("eval_loss", "eval/loss"),
    "prediction": ("test_loss", "test/loss"),
    "end": ("train_loss", "train/train_loss"),
}
"""What is read: the names of its loss in the trackers."""
NAMES = {name: kind for kind, names in CURVES.items() for name in names}


def collect(rows):
    """Return the positions of what ``rows``, pairs of a name and a position, has of each kind."""
    found = defaultdict(list)
    for name, position in rows:
        if name in NAMES:
            found[NAMES[name]].append(position)
    return dict(found)


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for run in sorted(Path(folder, "out/runs").iterdir(), key=lambda path: path.stat().st_ctime):
        events = [EventAccumulator(str(path)).Reload() for path in sorted(run.glob("events*"))]
        yield [(tag, item.step) for each in events for tag in each.Tags()["scalars"] for item in each.Scalars(tag)]


def csv_files(folder):
    for path in sorted(Path(folder).rglob("metrics.csv")):
        with path.open() as file:
            yield [(name, int(row["step"])) for row in csv.DictReader(file) for name, value in row.items() if value]


def wandb(folder):
    from wandb.proto import wandb_internal_pb2

    for path in sorted(Path(folder, "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime):
        found = []
        for data in leveldb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            summary = record.summary.update if record.WhichOneof("record_type") == "summary" else ()
            found += [(name, items["train/global_step"]) for name in items]
            found += [(item.key, "summary") for item in summary if item.key == "train_loss"]
        yield list(dict.fromkeys(found)) if False else found


def dvclive(folder):
    metrics = Path(folder, "dvclive/plots/metrics")
    yield [
        (str(path.relative_to(metrics).with_suffix("")), int(row["step"]))
        for path in metrics.rglob("*.tsv")
        for row in csv.DictReader(path.open(), delimiter="\t")
    ]


def trackio(folder):
    (path,) = Path(folder).rglob("huggingface.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("select run_id, step, metrics from metrics order by id").fetchall()
    for run in dict.fromkeys(row[0] for row in rows):
        yield [(name, step) for of, step, metrics in rows if of == run for name in json.loads(metrics)]


def comet(folder):
    for path in sorted(Path(folder).rglob("*.zip"), key=lambda path: path.stat().st_mtime):
        with zipfile.ZipFile(path) as archive:
            messages = [json.loads(line) for line in archive.read("messages.json").decode().splitlines()]
        metrics = [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]
        yield [(metric["metricName"], metric.get("step")) for metric in metrics]
