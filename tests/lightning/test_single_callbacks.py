"""The callbacks for a LightningModule of one's own, each with Lightning's own optimization."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys

import lightning
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from hf_compat import get_last_checkpoint
from hf_compat.errors import DataError, TrainerSetupError
from hf_compat.lightning import GradientNorm, HFCheckpoints, NEFTune, ResumableLoader, UpdateStepLogs
from tests.scripts.single_callbacks_script import STEPS, Classifier, loader, train
from tests.support import processes
from tests.support.helpers import Stream, gpt2, token_rows, vector_rows
from tests.support.paths import ROOT, SCRIPTS

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{text}")
    for text in ("does not have many workers", "have no `val_dataloader`", r"isinstance\(treespec, LeafSpec\)")
]


class Interruption(lightning.Callback):
    """Fails, or sends a signal, before a batch."""

    def __init__(self, batch, signum=None):
        self.batch, self.signum, self.seen = batch, signum, 0

    def on_train_batch_start(self, *_):
        self.seen += 1
        if self.seen == self.batch and self.signum is None:
            raise ZeroDivisionError
        if self.seen == self.batch:
            os.kill(os.getpid(), self.signum)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


def last_weights(folder):
    return load_file(folder / "out" / f"checkpoint-{STEPS}" / "model.safetensors")


def assert_same_end(folder, whole):
    """Fail unless both runs end with the same weights, bit for bit, and the same folders."""
    found, expected = last_weights(folder), last_weights(whole)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert sorted(os.listdir(folder / "out")) == sorted(os.listdir(whole / "out"))


@pytest.mark.parametrize("batch", [pytest.param(12, id="within an epoch"), pytest.param(15, id="as an epoch begins")])
def test_resumed_after_an_error(whole, tmp_path, batch):
    """The run goes on at the right batch with the right random states, and ends with the same weights."""
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, Interruption(batch))
    train(tmp_path)
    assert_same_end(tmp_path, whole)


@pytest.mark.parametrize(
    ("batch", "step"), [pytest.param(12, 7, id="within an epoch"), pytest.param(14, 8, id="in an epoch's last batch")]
)
def test_sigterm_saves(whole, tmp_path, batch, step):
    """The update step under way is finished and saved, the status is 143, and the next start loses nothing."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        train(tmp_path, Interruption(batch, signal.SIGTERM), every_n_steps=100)
    assert left.value.code == 143
    assert get_last_checkpoint(tmp_path / "out").endswith(f"checkpoint-{step}")
    assert signal.getsignal(signal.SIGTERM) is before
    train(tmp_path)
    found, expected = last_weights(tmp_path), last_weights(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_best_and_newest_are_kept(tmp_path):
    """The best checkpoint has the smallest metric of all validations, NaN aside, and outlives newer ones."""

    class Worse(lightning.Callback):
        """Lets the metric grow from the second validation on."""

        def on_validation_epoch_end(self, trainer, pl_module):
            grown = {4: float("nan"), 8: 1.0, 12: 3.0, 16: 4.0}.get(trainer.global_step, 9.0)
            pl_module.log("grown", grown)

    _, checkpoints = train(tmp_path, Worse(), monitor="grown")
    assert checkpoints.best_model_path == str(tmp_path / "out" / "checkpoint-8")
    assert checkpoints.best_metric == 1.0
    assert sorted(os.listdir(tmp_path / "out")) == ["checkpoint-16", "checkpoint-8"]


def test_all_ranks_follow_one_metric(tmp_path):
    """Where each rank logs another value, all save what rank 0 takes for the best; none waits for the others."""
    ended = processes.forked_ranks(SCRIPTS / "unsynced_metric_script.py", tmp_path)
    assert ended.code == 0, ended.output
    assert json.loads((tmp_path / "best.json").read_text()) == [[-2.0, "checkpoint-6"]] * 2
    assert sorted(os.listdir(tmp_path / "out")) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_checkpoints_that_cannot_be_saved_so(tmp_path):
    """Another plugin, a metric that no validation logs, and a number below one are refused with the remedy."""
    trainer = lightning.Trainer(accelerator="cpu", callbacks=[HFCheckpoints(tmp_path)], logger=False, max_epochs=1)
    with pytest.raises(TrainerSetupError, match=r"plugins=\[HFCheckpointIO\(\)\]"):
        trainer.fit(Classifier(), loader(vector_rows(4)))
    with pytest.raises(TrainerSetupError, match=r"monitor='accuracy'.* but val_loss"):
        train(tmp_path, monitor="accuracy")
    with pytest.raises(TrainerSetupError, match="save_total_limit=0"):
        HFCheckpoints(tmp_path, save_total_limit=0)


def test_logs_by_update_step(whole):
    """Every third update step has the mean loss of the batches since the last log, rate, epoch and gradient norm."""
    with open(whole / "lightning_logs" / "version_0" / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    assert [int(row["step"]) for row in rows] == [3, 6, 9, 12, 15]
    assert [float(row["train/epoch"]) for row in rows] == pytest.approx([6 / 7, 11 / 7, 16 / 7, 3, 27 / 7])
    assert [float(row["train/learning_rate"]) for row in rows] == pytest.approx(
        [0.01 - 0.0003 * n for n in (2, 5, 8, 11, 14)]
    )


def test_the_mean_loss_is_of_batches(tmp_path):
    """With accumulation the logged loss is the mean of the batches' losses, not of what Lightning divides them to."""
    logged, seen = [], []

    class Own(Classifier):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            seen.append(loss.item())
            return loss

    class Keeps(lightning.pytorch.loggers.CSVLogger):
        def log_metrics(self, metrics, step=None):
            logged.append(metrics)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    norm = GradientNorm(2)
    given = {"callbacks": [UpdateStepLogs(2), norm], "logger": Keeps(tmp_path), "log_every_n_steps": 1, **quiet}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=2, **given)
    trainer.fit(Own(), loader(vector_rows(16)))
    losses = [metrics["train/loss"] for metrics in logged if "train/loss" in metrics]
    assert losses == pytest.approx([sum(seen) / 4])
    assert [metrics["train/grad_norm"] for metrics in logged if "train/grad_norm" in metrics] == [norm.norm.item()]


def test_noise_ends_with_the_fit():
    """NEFTune on a module of one's own adds noise while it trains, and none afterwards, also after an error."""

    class Language(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = gpt2(dropout=0.0)

        def training_step(self, batch, batch_idx):
            embeddings = self.model.get_input_embeddings()
            self.noisy = not torch.equal(embeddings(batch), torch.nn.functional.embedding(batch, embeddings.weight))
            raise ZeroDivisionError

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module, ids = Language(), torch.tensor(token_rows(1)[0]["input_ids"])
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[NEFTune.with_alpha(5.0)], logger=False, **quiet
    )
    with pytest.raises(ZeroDivisionError):
        trainer.fit(module, DataLoader([ids]))
    assert module.noisy
    embeddings = module.model.train().get_input_embeddings()
    assert torch.equal(embeddings(ids), torch.nn.functional.embedding(ids, embeddings.weight))


def test_a_loader_without_length_cannot_be_resumed():
    """Its position is not known: an error says what is missing."""
    with pytest.raises(DataError, match="`loader` has no length"):
        ResumableLoader(DataLoader(Stream(vector_rows(4))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "status"), [pytest.param(signal.SIGKILL, -9, id="kill"), pytest.param(signal.SIGTERM, 143, id="term")]
)
def test_a_killed_script_goes_on(whole, tmp_path, signum, status):
    """A script without a Trainer, killed or asked to leave in its sixth update step, ends with the same weights."""
    command = [sys.executable, "-W", "ignore", SCRIPTS / "single_callbacks_script.py", tmp_path]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums are in another order with another number
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **threads}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout:
            if line == "step 6\n":
                process.send_signal(signum)
                break
        process.stdout.read()
    assert process.returncode == status
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.endswith(f"step {STEPS}\ndone\n")
    found, expected = last_weights(tmp_path), last_weights(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
