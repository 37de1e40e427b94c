"""Two processes train together, twice in one launch: undisturbed, then waiting to be signalled or killed.

Arguments: a folder, and ``wait`` or ``rest``. With ``wait`` there are two runs, one in ``whole`` and one in ``part``.
The second says on standard output ``waiting STAGE RANK PROCESS`` of each process and waits for SIGUSR2. With ``rest``
there is one run in ``part`` that goes on from the newest checkpoint. Further arguments of ``wait``: the stage to wait
at, ``training`` or ``saving``, and the update step. At the stage ``reading`` no process waits: the second rank and its
loader worker get SIGTERM while they read the second window after that step. The ranks vote after every step unless
``PACED`` is set. They read from a loader that the script makes if ``LOADER`` names one in ``LOADERS``.
"""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from torch.utils.data import DataLoader

from hf_compat import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, default_data_collator
from hf_compat.distributed.oom_consensus import PacedVotes
from tests.support.helpers import ListDataset, PlainModel, vector_rows

if "PACED" not in os.environ:
    patch.object(PacedVotes.__init__, "__defaults__", (0, 16)).start()


class FatalRows(ListDataset):
    """Rows of which one is lost while ``order`` exists: its worker, and all that started it, get SIGTERM."""

    fatal_row = 15

    def __init__(self, rows, order):
        super().__init__(rows)
        self._order = order

    def __getitem__(self, index):
        if index == self.fatal_row and self._order.exists():
            for receiver in (multiprocessing.parent_process().pid, os.getppid(), os.getpid()):
                os.kill(receiver, signal.SIGTERM)
        return super().__getitem__(index)


class Orders(TrainerCallback):
    """Has row 15 be fatal on the second rank from update step ``step`` on: its window is the next but one."""

    def __init__(self, order, step):
        self._order, self._step = order, step

    def on_step_begin(self, args, state, control, **kwargs):
        if args.process_index == 1 and state.global_step == self._step:
            self._order.touch()


def own_loader(rows, **settings):
    """Return a loader as scripts make it, whose workers read one batch ahead each."""
    settings = {"num_workers": 2, "prefetch_factor": 1, "collate_fn": default_data_collator, **settings}
    return DataLoader(rows, batch_size=2, **settings)


def started_loader(rows, trainer):
    """Return a loader whose workers run already, and go on."""
    loader = own_loader(rows, persistent_workers=True)
    next(iter(loader))
    return loader


def evaluated_loader(rows, trainer):
    """Return a loader that the Trainer has evaluated with, whose workers go on."""
    loader = own_loader(rows, persistent_workers=True)
    trainer.get_eval_dataloader = lambda dataset=None: loader
    trainer.evaluate()
    return loader


LOADERS = {
    "started before": started_loader,
    "evaluated before": evaluated_loader,
    "spawn": lambda rows, trainer: own_loader(rows, multiprocessing_context="spawn"),
    "forkserver": lambda rows, trainer: own_loader(rows, multiprocessing_context="forkserver"),
}
"""The loaders that a script may have made, by name."""


class PatientTrainer(Trainer):
    """Waits at ``stage`` of update step ``wait_step`` until it is told to go on, or asked to leave."""

    stage, wait_step = None, None

    def _wait_at(self, stage):
        if (stage, self.state.global_step) == (self.stage, self.wait_step):
            self.stage = None
            os.write(1, f"waiting {stage} {self.args.process_index} {os.getpid()}\n".encode())
            while signal.sigtimedwait([signal.SIGUSR2], 0.1) is None and not self.training_run.watch.received:
                pass

    def training_step(self, *args):
        self._wait_at("training")
        return super().training_step(*args)

    def _save_rng_state(self, output_dir):
        self._wait_at("saving")
        super()._save_rng_state(output_dir)


def train(folder, stage=None, wait_step=None):
    """Train nine update steps in ``folder``, on from its newest checkpoint."""
    torch.manual_seed(0)
    loader = os.environ.get("LOADER")
    args = TrainingArguments(
        str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2 if loader is None else 4,
        dataloader_num_workers=2,
        save_steps=2 if stage == "saving" else 1000,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = PatientTrainer(PlainModel(dropout=0.3), args, train_dataset=ListDataset(vector_rows(24)))
    trainer.remove_callback(PrinterCallback)
    trainer.stage, trainer.wait_step = stage, wait_step
    if loader is not None:
        order = folder.with_name("order")
        order.unlink(missing_ok=True)
        rows = LOADERS[loader](FatalRows(vector_rows(24), order), trainer)
        trainer.get_train_dataloader = lambda: rows
        if stage == "reading":
            trainer.add_callback(Orders(order, wait_step))
    trainer.train(resume_from_checkpoint="auto")
    assert trainer.state.global_step == 9


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    place, part = Path(sys.argv[1]), sys.argv[2]
    if part == "wait":
        train(place / "whole")
        train(place / "part", sys.argv[3], int(sys.argv[4]))
    else:
        train(place / "part")
