"""Reads what trackers have written to disk: curves, values of the whole run, its configuration."""

import json
import zipfile
from collections import defaultdict
from pathlib import Path

TIMES = ("runtime", "per_second")
"""Ends of the names of values that no two runs share."""


def is_time(name):
    """Return whether a value's name says that it is a time or a speed."""
    return name.endswith(TIMES)


def read_tensorboard(folder):
    """Return the curves and the names of the texts in the event files below ``folder/out/runs``."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves, texts = defaultdict(list), set()
    for path in sorted(Path(folder, "out/runs").rglob("events*")):
        events = EventAccumulator(str(path)).Reload()
        for tag in events.Tags()["scalars"]:
            curves[tag] += [(event.step, event.value) for event in events.Scalars(tag) if not is_time(tag)]
        texts |= set(events.Tags()["tensors"])
    others = sorted(path.name for path in Path(folder, "out/runs").rglob("*") if path.is_file())
    return {"curves": dict(curves), "texts": texts, "other files": [name for name in others if "tfevents" not in name]}


def read_mlflow(folder):
    """Return curves, parameters, name and status of each run in the database ``folder/mlflow.db``."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    runs = []
    for run in sorted(client.search_runs(["0"]), key=lambda run: run.info.start_time):
        curves = {
            name: [(point.step, None if is_time(name) else point.value) for point in history]
            for name in run.data.metrics
            for history in [client.get_metric_history(run.info.run_id, name)]
        }
        runs.append({"curves": curves, "params": run.data.params, "status": run.info.status})
    return runs


def read_wandb(folder):
    """Return rows of the history, summary, configuration, name and project of the offline run in ``folder/wandb``."""
    from wandb.proto import wandb_internal_pb2

    (path,) = Path(folder, "wandb").glob("offline-run-*/run-*.wandb")
    seen = {"rows": [], "summary": {}, "config": {}, "metrics": []}
    for data in leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            seen |= {"name": record.run.display_name, "project": record.run.project}
        if kind in ("run", "config"):
            items = record.run.config.update if kind == "run" else record.config.update
            seen["config"] |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        elif kind == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            seen["rows"].append({key: None if is_time(key) else value for key, value in row.items() if key[0] != "_"})
        elif kind == "summary":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.summary.update
            }
            seen["summary"] |= {key: None if is_time(key) else value for key, value in items.items() if key[0] != "_"}
        elif kind == "metric":
            seen["metrics"].append((record.metric.name or record.metric.glob_name, record.metric.step_metric))
    return seen


def leveldb_records(content):
    """Yield the records of a LevelDB log that has a header of 7 bytes.

    Blocks have 32 KiB; each part of a record has a checksum, length and kind (1 whole, 2 first, 3 middle, 4 last).
    """
    position, record = 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # a block's last bytes are padding
            position += 32768 - position % 32768
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def read_comet(folder):
    """Return the name, metrics and parameters in the archive of the offline experiment in ``folder/.cometml-runs``."""
    (path,) = Path(folder).rglob("*.zip")
    seen = {"metrics": [], "params": {}}
    with zipfile.ZipFile(path) as archive:
        for line in archive.read("messages.json").decode().splitlines():
            message = json.loads(line)
            payload = message["payload"]
            if message["type"] == "metric_msg":
                metric = payload["metric"]
                if metric["metricName"].startswith(("sys.", "process ")):  # what Comet measures itself
                    continue
                value = None if is_time(metric["metricName"]) else metric["metricValue"]
                seen["metrics"].append((metric["metricName"], metric.get("step"), metric.get("epoch"), value))
            elif message["type"] == "parameter_msg":
                param = payload.get("param", {"paramName": "run_arg"})
                if param["paramName"].startswith("run_arg"):
                    continue
                seen["params"][param["paramName"]] = param["paramValue"]
            elif message["type"] == "log_other" and payload["key"] == "Name":
                seen["name"] = payload["value"]
    return seen


def read_aim(folder):
    """Return the curves, with the epoch of each value, and the parameters of the run in ``folder/.aim``."""
    from aim import Repo, Run

    repo = Repo(str(folder))
    (name,) = repo.list_all_runs()
    # Aim's index, which reading alone would need, is written by its server.
    run = Run(name, repo=repo, system_tracking_interval=None, log_system_params=False, capture_terminal_logs=False)
    curves = {}
    for metric in run.metrics():
        steps, (values, epochs, _) = metric.data.numpy()
        context = metric.context.to_dict()
        values = [None] * len(values) if is_time(metric.name) else list(values)
        curves[metric.name, context.get("subset")] = list(zip(steps, values, epochs, strict=True))
    seen = {"curves": curves, "params": run["hparams"], "model": run["model"]}
    run.close()
    repo.close()
    return seen


def read_clearml(folder):
    """Return the values, parameters, configuration and name of the offline task in ``folder/clearml``."""
    (path,) = Path(folder, "clearml").rglob("offline-*.zip")
    with zipfile.ZipFile(path) as archive:
        task = json.loads(archive.read("task.json"))
        lines = [json.loads(line) for line in archive.read("metrics.jsonl").decode().splitlines()]
    values = [
        (event["metric"], event["variant"], event["iter"], None if is_time(event["variant"]) else event["value"])
        for line in lines
        for event in line
        if not event["metric"].startswith(":monitor:")  # what ClearML measures itself
    ]
    ((section, params),) = task["hyperparams"].items()
    configuration = {name: item["value"] for name, item in task["configuration"].items()}
    return {
        "values": values,
        "section": section,
        "params": {name: item.get("value") for name, item in params.items()},
        "configuration": configuration,
        "name": (task["project_name"], task["name"]),
    }
