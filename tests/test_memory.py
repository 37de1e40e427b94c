"""Memory of the stages of a run."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from hf_compat import Trainer
from hf_compat.memory import TrainerMemoryTracker
from tests.support import helpers
from tests.support.processes import PATIENCE
from tests.support.trainers import arguments

MEBIBYTE = 1 << 20


def watching():
    return [thread for thread in threading.enumerate() if thread.name == "hf_compat-memory"]


def test_bytes_are_those_in_use():
    """What is kept counts as ``alloc``, what is given back before the end as ``peaked``; the construction comes first.

    The process may take or give back a little by itself.
    """
    tracker = TrainerMemoryTracker()
    tracker.start("init")
    tracker.stop_and_update_metrics(stage="init")
    tracker.start("train")
    kept = bytearray(b"x") * (64 * MEBIBYTE)
    passing = bytearray(b"x") * (96 * MEBIBYTE)
    while tracker._peak._peak < tracker._at_start[0] + 128 * MEBIBYTE:
        pass  # until the thread has looked
    del passing
    metrics = {"train_runtime": 1.0}
    tracker.stop_and_update_metrics(metrics, "train")
    assert list(metrics) == [
        "train_runtime",
        "init_mem_cpu_alloc_delta",
        "init_mem_cpu_peaked_delta",
        "train_mem_cpu_alloc_delta",
        "train_mem_cpu_peaked_delta",
        "before_init_mem_cpu",
    ]
    assert metrics["train_mem_cpu_alloc_delta"] == pytest.approx(len(kept), abs=16 * MEBIBYTE)
    assert metrics["train_mem_cpu_peaked_delta"] == pytest.approx(96 * MEBIBYTE, abs=16 * MEBIBYTE)
    later = {}
    tracker.start("eval")
    tracker.stop_and_update_metrics(later, "eval")
    assert list(later) == ["eval_mem_cpu_alloc_delta", "eval_mem_cpu_peaked_delta"]
    assert watching() == []


def test_inner_stages_and_errors():
    """A stage inside another reports nothing; one that an error cut off does not stand in the way of the next."""
    tracker = TrainerMemoryTracker()
    tracker.start("train")
    inner = {}
    with tracker.measure("eval"):
        tracker.stop_and_update_metrics(inner, "eval")
    assert (inner, tracker.cur_stage) == ({}, "train")
    tracker.cancel()
    with pytest.raises(KeyError), tracker.measure("eval"):
        raise KeyError
    assert (tracker.cur_stage, watching()) == (None, [])
    tracker.start("test")
    (thread,) = watching()
    del tracker
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_methods_of_other_names_name_the_stage():
    """Scripts call the tracker from the Trainer's methods; from elsewhere they have to say which stage it is."""
    tracker = TrainerMemoryTracker()

    def evaluate():
        metrics = {}
        tracker.start()
        tracker.stop_and_update_metrics(metrics)
        return metrics

    assert "eval_mem_cpu_alloc_delta" in evaluate()
    with pytest.raises(ValueError, match="`test_methods_of_other_names_name_the_stage`"):
        tracker.start()


def test_a_failed_training_can_be_evaluated(tmp_path):
    """A training that fails leaves no stage behind: the next evaluation reports its memory."""
    rows = helpers.ListDataset(helpers.vector_rows(4))
    args = arguments(tmp_path, skip_memory_metrics=False)
    trainer = Trainer(helpers.PlainModel(), args, train_dataset=rows, eval_dataset=rows)
    trainer.compute_loss_func = lambda *_, **__: torch.tensor(1.0)  # not differentiable
    with pytest.raises(RuntimeError):
        trainer.train()
    trainer.compute_loss_func = None
    assert "eval_mem_cpu_alloc_delta" in trainer.evaluate()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bytes_on_a_gpu():
    """On a GPU the allocator's numbers stand beside those of the host."""
    tracker = TrainerMemoryTracker()
    tracker.start("init")
    tracker.stop_and_update_metrics(stage="init")
    tracker.start("train")
    kept = torch.zeros(MEBIBYTE, dtype=torch.uint8, device="cuda")
    passing = torch.zeros(2 * MEBIBYTE, dtype=torch.uint8, device="cuda")
    del passing
    metrics = {}
    tracker.stop_and_update_metrics(metrics, "train")
    assert list(metrics) == [
        *(
            f"{stage}_mem_{device}_{kind}_delta"
            for stage in ("init", "train")
            for kind in ("alloc", "peaked")
            for device in ("cpu", "gpu")
        ),
        "before_init_mem_cpu",
        "before_init_mem_gpu",
    ]
    assert metrics["train_mem_gpu_alloc_delta"] == kept.nbytes
    assert metrics["train_mem_gpu_peaked_delta"] == 2 * MEBIBYTE
