"""A server of training processes to be killed: it imports the heavy packages once, then forks a process a request.

Reads one JSON request a line from standard input, the keywords of ``train``, and answers with one JSON event a line on
standard output: ``ready`` (the server), ``start`` (the training process, with its id), ``begin`` (with the update step
resumed from), ``step``, ``saving``, ``waiting``, ``saved`` (each with the update step), ``error`` or ``done``, and
``exit`` (the server, once the process is no more; with its status, negative for a signal).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hf_compat.lightning
from hf_compat import HFCompatError, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from hf_compat.checkpoint.background import CheckpointFile, Snapshot
from hf_compat.checkpoint.writer import CheckpointWriter

STEPS = 3 * 7
"""26 rows are 13 batches of two: six windows of two batches and a short one an epoch, for three epochs."""
STAGES = ("weights written", "optimizer written", "random states written", "published")
"""Where a save can be made to wait."""
BACKGROUND_STAGES = ("before it writes", "before all have written", "in the background")
"""Where a save in the background can be made to wait; in the last, all ranks have written."""
OTHER_STAGES = ("evaluating", "training")
"""Where else a run can be made to wait."""
SAVES = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
ALLOCATOR_THREAD = "jemalloc_bg_thd"
"""A thread of pyarrow's memory allocator, which sees to forks by itself."""


def report(event: str, **values: Any) -> None:
    """Tell the parent; a short line reaches a pipe whole."""
    os.write(1, (json.dumps({"event": event, **values}) + "\n").encode())


class Rows(Dataset):
    """Eight numbers a row, and their sum as the label."""

    def __init__(self, count: int, seed: int) -> None:
        self.values = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.values[index], "labels": self.values[index].sum()}


class FatalRows(Rows):
    """Rows of which one is lost: where it is read, the run and then its worker get SIGTERM."""

    fatal_row = 39

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == self.fatal_row:
            for receiver in (os.getppid(), os.getpid()):
                os.kill(receiver, signal.SIGTERM)
        return super().__getitem__(index)


class LazyLoader:
    """Batches of a loader that is made when they are read; no ``DataLoader`` itself."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows) // 2

    def __iter__(self) -> Any:
        yield from own_loader(self._rows)


class ReadsOnTheSide(TrainerCallback):
    """Reads from a loader of its own after each update step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for _ in own_loader(Rows(8, 3)):
            pass


def own_loader(rows: Rows, **settings: Any) -> Any:
    """Return a loader as scripts make it."""
    return DataLoader(rows, batch_size=2, num_workers=2, **settings)


def started_loader(rows: Rows) -> Any:
    """Return a loader whose workers run already, and go on."""
    loader = own_loader(rows, persistent_workers=True)
    next(iter(loader))
    return loader


def obey(worker_id: int) -> None:
    """Have a worker end on SIGTERM; a ``worker_init_fn``."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


LOADERS: dict[str, Callable[[Rows], Any]] = {
    "plain": own_loader,
    "with a worker_init_fn": partial(own_loader, worker_init_fn=obey),
    "persistent": partial(own_loader, persistent_workers=True),
    "started before": started_loader,
    "lazy": LazyLoader,
}
"""The loaders that a script may have made, by name."""


def use_own_loader(trainer: Trainer, loader: str) -> None:
    """Have ``trainer`` read from a loader that is not its own.

    Args:
        trainer: The Trainer.
        loader: A name in ``LOADERS``, with "evaluation: " before it for the evaluation, or "fatal: " for a training
            whose worker is lost; or "on the side", for one that a callback reads.
    """
    role, _, name = loader.rpartition(": ")
    if name == "on the side":
        trainer.add_callback(ReadsOnTheSide())
    elif role == "evaluation":
        rows = LOADERS[name](Rows(4, 2))
        trainer.get_eval_dataloader = lambda dataset=None: rows
    else:
        rows = LOADERS[name](FatalRows(52, 1) if role == "fatal" else Rows(26, 1))
        trainer.get_train_dataloader = lambda: rows


class Model(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        prediction = self.body(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(prediction, labels), "prediction": prediction}


class Progress(TrainerCallback):
    """Reports how far the run is."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report("begin", step=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report("step", step=state.global_step)


class Saves(Progress):
    """Reports saves too; may leave the disk no space after one of them."""

    def __init__(self, full_after: int | None) -> None:
        self.full_after = full_after

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report("saved", step=state.global_step)
        if state.global_step == self.full_after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


class PatientWriter(CheckpointWriter):
    """Calls ``wait`` at the stages of a save in the background, of the first save with the number 1."""

    def __init__(self, wait: Callable[[str, int], None]) -> None:
        super().__init__()
        self._wait_at = wait
        self.saves = 0

    def _publish(self, publication: ExitStack, snapshot: Snapshot, folder: Path, then: Any) -> None:
        self.saves += 1
        before, written, agreed = (partial(self._wait_at, stage, self.saves) for stage in BACKGROUND_STAGES)
        snapshot.files.insert(0, CheckpointFile(lambda *_, group: before(), None, folder, by_all_ranks=True))
        snapshot.files.append(CheckpointFile(lambda *_: written(), None, folder))
        publication.callback(agreed)  # the training is further by now
        super()._publish(publication, snapshot, folder, then)


class PatientTrainer(Trainer):
    """Waits to be killed, or for SIGUSR2, at ``stage`` of update step ``wait_step``, once."""

    stage: str | None = None
    wait_step: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.checkpoint_writer = PatientWriter(self._wait_at)

    def _wait_at(self, stage: str, step: int | None = None) -> None:
        if (stage, self.state.global_step if step is None else step) == (self.stage, self.wait_step):
            self.stage = None
            report("waiting", step=self.wait_step)
            signal.sigwait([signal.SIGUSR2])

    def training_step(self, *args: Any) -> torch.Tensor:
        self._wait_at("training")
        return super().training_step(*args)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self._wait_at("evaluating")
        return super().evaluate(*args, **kwargs)


class WaitingTrainer(PatientTrainer):
    """Reports when a save begins, and may wait at the stages of a save."""

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        report("saving", step=self.state.global_step)
        super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        self._wait_at("weights written")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self._wait_at("optimizer written")

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self._wait_at("random states written")

    def _rotate_checkpoints(self, use_mtime: bool = True, output_dir: str | None = None) -> None:
        self._wait_at("published")
        super()._rotate_checkpoints(use_mtime, output_dir)


def train(
    folder: str,
    resume: bool = False,
    width: int = 8,
    stage: str | None = None,
    wait_step: int | None = None,
    full_after: int | None = None,
    environment: dict[str, str] | None = None,
    pieces: bool = False,
    loader: str | None = None,
    **settings: Any,
) -> None:
    """Train in ``folder``, with checkpoints of every update step in ``out``; the arguments are the request's.

    Args:
        folder: Where to work.
        resume: Whether to go on from the newest checkpoint.
        width: Of the model; it has ten times as many weights, and the optimizer's state twice as many as that.
        stage: One of the stages, to wait there.
        wait_step: The update step whose save waits.
        full_after: The update step after whose save no file can grow past a kilobyte, as on a full disk.
        environment: Environment variables.
        pieces: Whether to train with pieces built by hand, without a Trainer; they wait at no stage.
        loader: A loader that is not the Trainer's own; see ``use_own_loader``.
        **settings: More training arguments. With ``save_async`` nobody waits for, or is told of, a save.
    """
    os.chdir(folder)
    os.environ.update(environment or {})
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])  # to be waited for
    torch.manual_seed(0)
    args = TrainingArguments(
        "out",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        learning_rate=0.01,
        per_device_train_batch_size=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="loss",
        **{**SAVES, "gradient_accumulation_steps": 2, **settings},
    )
    callbacks = [Progress() if args.save_async else Saves(full_after)]
    if pieces:
        fit_pieces(args, callbacks, width, resume)
        return
    trainer = (PatientTrainer if args.save_async else WaitingTrainer)(
        Model(width), args, train_dataset=Rows(26, 1), eval_dataset=Rows(4, 2), callbacks=callbacks
    )
    trainer.stage, trainer.wait_step = stage, wait_step
    trainer.remove_callback(PrinterCallback)  # standard output is for events
    if loader is not None:
        use_own_loader(trainer, loader)
    try:
        trainer.train(resume_from_checkpoint=resume)
    except HFCompatError as error:
        report("error", kind=type(error).__name__, message=str(error))
    else:
        report("done", step=trainer.state.global_step)


def fit_pieces(args: TrainingArguments, callbacks: list[TrainerCallback], width: int, resume: bool) -> None:
    """Train as a script does that has no Trainer."""
    ours = hf_compat.lightning.callbacks(args, callbacks, resume_from_checkpoint=resume)
    data = hf_compat.lightning.HFDataModule(train_dataset=Rows(26, 1), eval_dataset=Rows(4, 2))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with redirect_stdout(sys.stderr):  # standard output is for events
        trainer = lightning.Trainer(max_epochs=-1, callbacks=ours, **quiet)
        trainer.fit(hf_compat.lightning.HFModule(Model(width)), datamodule=data)
    report("done", step=trainer.global_step)


def serve(train: Callable[..., None] = train) -> None:
    """Answer requests, which are keywords of ``train``, until there are no more."""
    torch.set_num_threads(1)
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    report("ready", threads=sum(name != ALLOCATOR_THREAD for name in names))
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            report("start", process=os.getpid())
            train(**json.loads(line))
            os._exit(0)
        report("exit", status=os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


if __name__ == "__main__":
    serve()
