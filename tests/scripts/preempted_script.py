"""Two processes train together, twice in one launch: undisturbed, then waiting to be signalled or killed.

Arguments: a folder, and ``wait`` or ``rest``. With ``wait`` there are two runs, one in ``whole`` and one in ``part``.
The second says on standard output ``waiting STAGE RANK PROCESS`` of each process and waits for SIGUSR2. With ``rest``
there is one run in ``part`` that goes on from the newest checkpoint. Further arguments of ``wait``: the stage to wait
at, ``training`` or ``saving``, and the update step. The ranks vote after every step unless ``PACED`` is set.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch

from hf_compat import PrinterCallback, Trainer, TrainingArguments
from hf_compat.distributed.votes import PacedVotes
from hf_compat.run import preemption
from tests.support.helpers import ListDataset, PlainModel, vector_rows

if "PACED" not in os.environ:
    preemption.PacedVotes = partial(PacedVotes, seconds=0)  # type: ignore[assignment, misc]


class PatientTrainer(Trainer):
    """Waits at ``stage`` of update step ``wait_step`` until it is told to go on, or asked to leave."""

    stage, wait_step = None, None

    def _wait_at(self, stage):
        if (stage, self.state.global_step) == (self.stage, self.wait_step):
            self.stage = None
            os.write(1, f"waiting {stage} {self.args.process_index} {os.getpid()}\n".encode())
            while signal.sigtimedwait([signal.SIGUSR2], 0.1) is None and not self._training_run.watch.received:
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
    args = TrainingArguments(
        str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        dataloader_num_workers=2,
        save_steps=2 if stage == "saving" else 1000,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = PatientTrainer(PlainModel(dropout=0.3), args, train_dataset=ListDataset(vector_rows(24)))
    trainer.remove_callback(PrinterCallback)
    trainer.stage, trainer.wait_step = stage, wait_step
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
