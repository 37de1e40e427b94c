"""A run with bars: ``progress_script.py FOLDER [--rich] [--interrupt]``; 8 update steps, 4 on each of two ranks."""

import sys

import torch

from hf_compat import RichProgressCallback, Trainer, TrainerCallback, TrainingArguments
from tests.support.helpers import ListDataset, PlainModel, vector_rows


class Interrupts(TrainerCallback):
    """Ctrl-C in the middle of the first epoch."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise KeyboardInterrupt


def main(folder: str, words: list[str]) -> None:
    torch.manual_seed(0)
    args = TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    rows = ListDataset(vector_rows(8))
    callbacks = [RichProgressCallback()] if "--rich" in words else []
    if "--interrupt" in words:
        callbacks.append(Interrupts())
    Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows, callbacks=callbacks).train()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
