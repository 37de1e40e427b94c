"""A server like ``crash_script.py``'s, of training processes in which the user's code does not return."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only

from hf_compat import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, default_data_collator
from hf_compat.trainer import preemption
from tests.scripts import single_callbacks_script
from tests.scripts.crash_script import Model, Rows, report, serve
from tests.support.helpers import ListDataset
from tests.support.processes import free_port

STEPS = 8
PLACES = ("dataset", "collate", "compute_metrics", "on_step_begin", "on_step_end", "on_save")
"""Where the code of a user may hang with the states of a whole update step."""


class HangingTrainer(Trainer):
    """Hangs at ``place`` once ``step`` update steps are done."""

    place, step = "", 0

    def hang(self, place: str) -> None:
        """Wait for ever if this is the place."""
        if (place, self.state.global_step) == (self.place, self.step):
            report("waiting", step=self.step, rank=self.args.process_index)
            if place == "a loop that catches all":
                while True:
                    with suppress(BaseException):
                        threading.Event().wait()
            threading.Event().wait()

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Hang in the forward pass too."""
        if self.is_in_train and self.model.training:
            self.hang("forward")
        return super().compute_loss(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate other weights at the place "averaged weights", and do not put them back after an error."""
        if self.place != "averaged weights":
            return super().evaluate(*args, **kwargs)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.data.mul_(0.5)
        self.hang("averaged weights")
        metrics = super().evaluate(*args, **kwargs)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.data.mul_(2)
        return metrics


class HangingRows(Rows):
    """Rows that hang, or are made by the processes of a pool."""

    trainer: HangingTrainer | None = None
    pool: Any = None

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.trainer is not None:
            self.trainer.hang("dataset")
            self.trainer.hang("a loop that catches all")
            if self.trainer.place == "pool":
                return super().__getitem__(self._from_pool(index))
        return super().__getitem__(index)

    def _from_pool(self, index: int) -> int:
        type(self).pool = self.pool or multiprocessing.Pool(2)
        assert self.trainer is not None
        if self.trainer.state.global_step == self.trainer.step:
            self.trainer.step = -1
            report("waiting", step=0, workers=[child.pid for child in multiprocessing.active_children()])
            return int(self.pool.map(wait_for_signal, [index])[0])
        return int(self.pool.map(int, [index])[0])


def wait_for_signal(index: int) -> int:
    """Wait to be killed; a task of a pool."""
    threading.Event().wait()
    return index


class Hangs(TrainerCallback):
    """Hangs in its events, and tells of saves."""

    def __init__(self, trainer: HangingTrainer) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.hang("on_step_begin")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.hang("on_step_end")
        if self.trainer.place == "endless" and state.global_step == self.trainer.step:
            report("waiting", step=state.global_step)
        if (self.trainer.place, state.global_step) == ("exit", self.trainer.step):
            signal.raise_signal(signal.SIGTERM)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report("saved", step=state.global_step)
        self.trainer.hang("on_save")


class LightningHangs(lightning.Callback):
    """Hangs at ``place`` of a plain Lightning run after ``step`` update steps."""

    def __init__(self, place: str, step: int) -> None:
        self.place, self.step, self.done = place, step, 0

    def hang(self, place: str) -> None:
        """Wait for ever if this is the place."""
        if (place, self.done) == (self.place, self.step):
            report("waiting", step=self.step)
            threading.Event().wait()

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        self.hang("on_train_batch_start")

    def on_before_backward(self, *_: Any) -> None:
        self.hang("on_before_backward")

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self.done = trainer.global_step

    def on_validation_batch_start(self, *_: Any) -> None:
        self.hang("on_validation_batch_start")


def train_alone(folder: str, resume: bool = False, place: str = "", step: int = 0) -> None:
    """Train with a plain ``lightning.Trainer`` and hang at ``place`` after ``step`` update steps."""
    preemption._EXIT_SECONDS = 0.5
    hangs = LightningHangs(place, step)

    class HangingList(ListDataset):
        def __getitem__(self, index: int) -> Any:
            hangs.hang("dataset")
            return super().__getitem__(index)

    single_callbacks_script.ListDataset = HangingList  # type: ignore[misc]
    single_callbacks_script.train(Path(folder), hangs, timeout=0.5, every_n_steps=1000)
    report("done", step=hangs.done)


def launch(folder: str, ranks: int = 1, hanging: Sequence[int] = (0,), alone: bool = False, **settings: Any) -> None:
    """Train in processes that are started as torchrun starts them, and tell of each how it ended.

    Args:
        folder: Where to work.
        alone: Whether to train in this process with a plain ``lightning.Trainer``.
        ranks: How many; one is this process.
        hanging: The ranks that hang; with none of them, both are at ``place`` all the same.
        **settings: Keywords of ``train``.
    """
    if alone:
        train_alone(folder, **settings)
        return
    if ranks == 1:
        train(folder, **settings)
        return
    port, processes = free_port(), []
    for rank in range(ranks):
        processes.append(os.fork())
        if processes[-1] == 0:
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in {**numbers, **places}.items()})
            rank_zero_only.rank = rank  # which Lightning has read as it was imported
            try:
                train(folder, **settings | ({} if rank in hanging or not hanging else {"place": ""}))
            except SystemExit as error:
                os._exit(error.code)  # type: ignore[arg-type]  # two interpreters take seconds to end
            os._exit(0)
    report("ranks", processes=processes)
    ended = {process: os.waitstatus_to_exitcode(status) for process, status in (os.wait() for _ in processes)}
    report("ended", statuses=[ended[process] for process in processes])


def train(
    folder: str,
    resume: bool = False,
    place: str = "",
    step: int = 0,
    seconds_to_exit: float = 0.5,
    **settings: Any,
) -> None:
    """Train in ``folder`` and hang at ``place`` after ``step`` update steps.

    Args:
        folder: Where to work.
        resume: Whether to go on from the newest checkpoint.
        place: One of ``PLACES``, or another one that the code here names. At "exit" a thread does not end.
        step: The update step, which is also evaluated.
        seconds_to_exit: The least time that an interrupted run has to leave.
        **settings: More training arguments.
    """
    os.chdir(folder)
    preemption._EXIT_SECONDS = seconds_to_exit
    if place == "exit":
        threading.Thread(target=threading.Event().wait).start()
    torch.manual_seed(0)
    args = TrainingArguments(
        "out",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        learning_rate=0.01,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_steps=step if place == "on_save" else 1000,
        **{"max_steps": STEPS, "eval_strategy": "steps", "eval_steps": 3, "preemption_timeout": 0.5, **settings},
    )
    rows = HangingRows(26, 1)

    def collate(features: list[Any]) -> dict[str, Any]:
        trainer.hang("collate")
        return default_data_collator(features)

    def metrics(prediction: Any) -> dict[str, float]:
        trainer.hang("compute_metrics")
        return {}

    model = Model(8)
    model.body[2] = torch.nn.Identity()  # no dropout: an evaluation that is missing would change it
    trainer = HangingTrainer(
        model, args, train_dataset=rows, eval_dataset=Rows(4, 2), data_collator=collate, compute_metrics=metrics
    )
    HangingRows.trainer, trainer.place, trainer.step = trainer, place, step
    trainer.add_callback(Hangs(trainer))
    trainer.remove_callback(PrinterCallback)  # standard output is for events
    trainer.train(resume_from_checkpoint=resume)
    report("done", step=trainer.state.global_step)


if __name__ == "__main__":
    serve(launch)
