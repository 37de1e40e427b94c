"""A plain module trains, evaluates, saves and resumes where transformers and accelerate are not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.processes import PATIENCE

HIDDEN = ("transformers", "accelerate", "peft")

# Packages look for transformers in two ways, by importing it and by asking for its metadata; both must find nothing.
HIDE = f"""
import importlib.abc, importlib.metadata, sys

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def from_name(kind, name, found=importlib.metadata.Distribution.from_name.__func__):
    if name in {HIDDEN!r}:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(kind, name)

sys.meta_path.insert(0, Hide())
importlib.metadata.Distribution.from_name = classmethod(from_name)
"""

SCRIPT = """
import json, os, sys
import torch
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from hf_compat import EarlyStoppingCallback, Trainer, TrainingArguments

def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}

def build(folder):
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=folder, use_cpu=True, disable_tqdm=True, report_to="none", num_train_epochs=8, learning_rate=0.02,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=5, eval_strategy="epoch",
        save_strategy="epoch", save_total_limit=3, load_best_model_at_end=True, metric_for_best_model="accuracy",
    )
    return Trainer(
        model=PlainModel(), args=args, train_dataset=ListDataset(vector_rows(60)),
        eval_dataset=ListDataset(vector_rows(40, seed=1)), compute_metrics=accuracy,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=8)],
    )

whole = build("whole")
before = whole.evaluate()
output = whole.train()
after = whole.evaluate()
predicted = whole.predict(whole.eval_dataset)
whole.save_model("final")

kept = sorted(os.listdir("whole"))
resumed = build("resumed")
resumed.train(resume_from_checkpoint=os.path.join("whole", kept[-1]))

answer = {
    "steps": output.global_step,
    "before": before["eval_loss"],
    "after": after["eval_loss"],
    "best": whole.state.best_metric,
    "accuracy": after["eval_accuracy"],
    "predictions": list(predicted.predictions.shape),
    "kept": len(kept),
    "files": sorted(os.listdir(os.path.join("whole", kept[0]))),
    "final": sorted(os.listdir("final")),
    "resumed_steps": resumed.state.global_step,
    "same_weights": all(torch.equal(a, b) for a, b in zip(
        whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True)),
    "loaded": [name for name in ("transformers", "accelerate", "peft") if name in sys.modules],
}
print("ANSWER", json.dumps(answer))
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """What the script says of its run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", HIDE + SCRIPT],
        cwd=tmp_path_factory.mktemp("plain"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.rpartition("ANSWER ")[2])


def test_nothing_hidden_is_loaded(answer):
    """Neither transformers nor accelerate nor peft was imported."""
    assert answer["loaded"] == []


def test_it_learns(answer):
    """Sixty rows in windows of two batches of four are eight updates an epoch; the loss falls."""
    assert answer["steps"] == 8 * 8
    assert answer["after"] < 0.8 * answer["before"]


def test_the_best_model_is_left(answer):
    """The metric of the user chose the model that is loaded at the end."""
    assert answer["accuracy"] == answer["best"]
    assert answer["predictions"] == [40, 3]


def test_files(answer):
    """A checkpoint holds what it needs to resume; ``save_model`` writes weights and arguments."""
    needed = {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
    assert needed | {"training_args.bin"} <= set(answer["files"])
    assert answer["final"] == ["model.safetensors", "training_args.bin"]
    assert answer["kept"] == 3


def test_resuming_is_exact(answer):
    """A second trainer goes on from a checkpoint and ends with the same weights."""
    assert answer["resumed_steps"] == answer["steps"]
    assert answer["same_weights"]
