"""Metrics on the console, in files and under trackers' names."""

from __future__ import annotations

import collections
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import trainer_pt_utils, trainer_utils
from transformers.integrations.integration_utils import rewrite_logs as upstream_rewrite_logs

from hf_compat import metrics as ours
from hf_compat.errors import CheckpointError
from hf_compat.state import TrainerState

METRICS = {
    "epoch": 2.0,
    "train_loss": 0.123456789,
    "train_runtime": 93784.987,
    "eval_runtime": -1.5,
    "total_flos": 5.3e12,
    "init_mem_cpu_alloc_delta": 5 << 20,
    "train_samples": 7,
    "perplexity": float("inf"),
    "note": "ü",
}


def _trainer(folder, *, main=True):
    return SimpleNamespace(
        args=SimpleNamespace(output_dir=str(folder)),
        state=TrainerState(global_step=3),
        is_world_process_zero=lambda: main,
    )


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param({}, id="runtime only"),
        pytest.param({"num_samples": 100, "num_steps": 7}, id="samples and steps"),
        pytest.param({"num_tokens": 123456.5}, id="tokens"),
        pytest.param({"num_samples": 0}, id="nothing done"),
    ],
)
@pytest.mark.parametrize("passed", [0.0, 3.14159265])
def test_speeds_are_upstreams(counts, passed, monkeypatch):
    """Names, rounding and the missing speeds at no time passed are those of the installed release."""
    start = time.time()
    monkeypatch.setattr(time, "time", lambda: start + passed)
    assert ours.speed_metrics("eval", start, **counts) == trainer_utils.speed_metrics("eval", start, **counts)


@pytest.mark.parametrize("metrics", [pytest.param(METRICS, id="every kind"), pytest.param({"a": 1}, id="one")])
def test_the_table_is_printed_as_upstreams(metrics, capsys, tmp_path):
    """The same text to the last blank, and the metrics stay as they were."""
    given = dict(metrics)
    ours.log_metrics(_trainer(tmp_path), "train", given)
    mine = capsys.readouterr().out
    trainer_pt_utils.log_metrics(_trainer(tmp_path), "train", metrics)
    assert mine == capsys.readouterr().out
    assert given == metrics
    assert ours.metrics_format(metrics) == trainer_pt_utils.metrics_format(metrics)


def test_no_metrics_print_a_title(capsys, tmp_path):
    """An empty table is a title, where upstream fails."""
    ours.log_metrics(_trainer(tmp_path), "eval", {})
    assert capsys.readouterr().out == "***** eval metrics *****\n"


def test_the_files_are_upstreams_byte_for_byte(tmp_path):
    """Every split has its file, and all_results.json gathers them; uncombined splits stay out of it."""
    calls = [("train", METRICS, True), ("eval", {"epoch": 3.0, "eval_loss": 0.5}, True), ("test", {"x": 1}, False)]
    for name, save in (("ours", ours.save_metrics), ("theirs", trainer_pt_utils.save_metrics)):
        (tmp_path / name).mkdir()
        for split, metrics, combined in calls:
            save(_trainer(tmp_path / name), split, metrics, combined)
    mine, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("ours", "theirs")
    )
    assert mine == theirs
    assert set(mine) == {"train_results.json", "eval_results.json", "test_results.json", "all_results.json"}


def test_the_state_is_saved_in_the_output_folder(tmp_path):
    """``save_state`` writes trainer_state.json."""
    ours.save_state(_trainer(tmp_path))
    assert json.loads((tmp_path / "trainer_state.json").read_text())["global_step"] == 3


def test_other_processes_neither_print_nor_write(tmp_path, capsys):
    """Only the first process of all acts."""
    trainer = _trainer(tmp_path, main=False)
    ours.log_metrics(trainer, "train", METRICS)
    ours.save_metrics(trainer, "train", METRICS)
    ours.save_state(trainer)
    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("", [])


def test_a_spoilt_file_of_all_results_is_named(tmp_path):
    """The error says which file cannot be added to."""
    (tmp_path / "all_results.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"all_results\.json"):
        ours.save_metrics(_trainer(tmp_path), "train", METRICS)


Pair = collections.OrderedDict


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"a": np.float32(0.1), "b": np.int64(3)}, id="numpy scalars"),
        pytest.param({"a": torch.tensor(0.1), "b": torch.tensor([[2]])}, id="tensors of one element"),
        pytest.param({"a": torch.arange(3), "b": np.arange(3)}, id="several elements stay"),
        pytest.param([np.bool_(True), (np.float64(1.5), "x"), None], id="lists and tuples"),
        pytest.param(Pair(a=Pair(b=np.float16(2))), id="types of dicts are kept"),
        pytest.param(np.array(1.5), id="an array without dimensions stays"),
    ],
)
def test_numbers_become_plain_as_upstreams(value):
    """Values and types, however nested, are those of the installed release."""
    mine, theirs = ours.denumpify_detensorize(value), trainer_utils.denumpify_detensorize(value)
    assert repr(mine) == repr(theirs)
    assert type(mine) is type(theirs)


class _NoLength:
    def __len__(self):
        raise TypeError("no length")


class _RayLike:
    def __len__(self):
        raise AttributeError("no length")


@pytest.mark.parametrize(
    "dataset", [[], [1], iter([]), None, _NoLength(), _RayLike()], ids=lambda value: repr(type(value))
)
def test_a_length_is_one_that_can_be_asked_for(dataset):
    """As upstream: a method that refuses is no length."""
    assert ours.has_length(dataset) == trainer_utils.has_length(dataset)


def test_trackers_see_the_names_that_upstream_sends():
    """Groups by prefix; everything else is about training."""
    logs = {"loss": 1, "eval_loss": 2, "test_loss": 3, "eval_eval_x": 4, "evaluation": 5, "eval": 6, "train_loss": 7}
    assert ours.rewrite_logs(logs) == upstream_rewrite_logs(logs)
    assert list(ours.rewrite_logs(logs)) == [
        "train/loss",
        "eval/loss",
        "test/loss",
        "eval/eval_x",
        "train/evaluation",
        "train/eval",
        "train/train_loss",
    ]
