"""One process of a training that goes wrong in process 1, in the way that the second argument names."""

import os
import signal
import sys

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from tests.support.helpers import ListDataset, PlainModel, vector_rows


class Fails(TrainerCallback):
    def on_step_end(self, args, state, control, **given):
        if args.process_index != 1 or state.global_step != 3:
            return
        if sys.argv[2] == "raise":
            raise ValueError("process 1 gives up")
        if sys.argv[2] == "hang":
            signal.pause()  # until the launcher ends it
        if sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_step_begin(self, args, state, control, **given):
        if sys.argv[2] == "after a save" and args.process_index == 1 and state.global_step == 4:
            raise ValueError("process 1 gives up")


args = TrainingArguments(
    sys.argv[1],
    max_steps=10**6,
    use_cpu=True,
    ddp_timeout=30 if sys.argv[2] == "hang" else 1800,
    disable_tqdm=True,
    report_to="none",
    save_strategy="steps",
    save_steps=2,
    save_async=sys.argv[2] == "after a save",
)
Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(64)), callbacks=[Fails()]).train()
