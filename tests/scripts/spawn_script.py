"""Trainings whose processes are started by the Trainer, by accelerate's ``notebook_launcher``, or are there already.

Arguments: a folder, Lightning's name of the strategy, ``auto`` for processes that are there, and what to do one after
the other: ``train``, ``notebook``, or fail by ``raise``, ``SIGKILL``, ``SIGTERM``.
"""

import json
import os
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from accelerate import notebook_launcher
from accelerate.state import AcceleratorState

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from hf_compat.distributed.oom_consensus import PacedVotes
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.processes import free_port

STEPS = 8
patch.object(PacedVotes.__init__, "__defaults__", (0, 16)).start()  # vote after every step: every 0 seconds


class Fails(TrainerCallback):
    """Does at update step 3 of process 1 what it is named after."""

    def __init__(self, how):
        self.how = how

    def on_step_end(self, args, state, control, **given):
        if args.process_index == 1 and state.global_step == 3:
            if self.how == "raise":
                raise KeyError("process 1 gives up")
            os.kill(os.getpid(), getattr(signal, self.how))


def spread(prediction):
    """Metrics that are pickled by their name."""
    return {"spread": float(prediction.predictions.std())}


def build(folder, what, strategy):
    """Return the Trainer."""
    torch.manual_seed(0)
    args = TrainingArguments(
        str(folder / "output"),
        num_train_epochs=2,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        logging_steps=1,
        use_cpu=True,
        disable_tqdm=True,
        report_to="tensorboard",
        max_steps=10**6 if what.startswith("SIG") else -1,
    )
    return Trainer(
        PlainModel(dropout=0.3),
        args,
        train_dataset=ListDataset(vector_rows(16)),
        eval_dataset=ListDataset(vector_rows(7, seed=1)),
        compute_metrics=spread,
        callbacks=[Fails(what)] if what == "raise" or what.startswith("SIG") else [],
        lightning={"devices": "auto" if strategy == "auto" else 2, "strategy": strategy},
    )


def facts(trainer, output):
    """Return what the caller knows after the training."""
    weights = {name: value.tolist() for name, value in trainer.model.state_dict().items()}
    timed = ("_runtime", "_per_second", "total_flos")
    return {
        "weights": weights,
        "history": [
            {name: value for name, value in entry.items() if not name.endswith(timed)}
            for entry in trainer.state.log_history
        ],
        "step": trainer.state.global_step,
        "best": [trainer.state.best_metric, trainer.state.best_model_checkpoint],
        "stops": trainer.control.should_training_stop,
        "output": [output.global_step, output.training_loss, sorted(output.metrics)],
        "random": torch.rand(1).item(),
    }


def train(folder, what, strategy):
    """Train, and write down what came of it in the process that called, or in the main one of a launcher's."""
    trainer = build(folder, what, strategy)
    seen = facts(trainer, trainer.train())
    if trainer.args.process_index == 0:
        (folder / "train.json").write_text(json.dumps(seen))
    return trainer


def cell(folder):
    """Build the Trainer and train in a function, as a notebook does; what it returned would be pickled."""
    train(folder, "train", "auto")


def go_on(trainer, folder):
    """Do what a caller does after a training that took place in other processes."""
    after = {
        "world_size": trainer.args.world_size,
        "loss": trainer.evaluate()["eval_loss"],
        "predicted": len(trainer.predict(trainer.eval_dataset).predictions),
        "variables": sorted({"RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()),
    }
    trainer.save_model(str(folder / "saved"))
    trainer.train(resume_from_checkpoint=str(folder / "output" / "checkpoint-4"))
    after["resumed"] = trainer.state.global_step
    (folder / "after.json").write_text(json.dumps(after))


def main(folder, strategy, words):
    """Do each of ``words`` in a folder of its own."""
    for word in words:
        place = folder / word
        place.mkdir(exist_ok=True)
        if word == "notebook":
            AcceleratorState._reset_state(reset_partial_state=True)  # it wants a notebook that has not trained yet
            notebook_launcher(cell, (place,), num_processes=2, use_port=str(free_port()))
            continue
        try:
            trainer = train(place, word, strategy)
        except (Exception, SystemExit) as error:
            (place / "error").write_text(f"{type(error).__name__}: {error}")
        else:
            if strategy != "auto":
                go_on(trainer, place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
