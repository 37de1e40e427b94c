"""Running a case under both trainers, and what of it differs."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, SequentialSampler

from tests.fuzz.allowed import Allowed, allowed_differences
from tests.fuzz.cases import Case
from tests.support import helpers
from tests.support.parity import Kit, Outcome, Which, differences, run

__all__ = ["METHODS", "Ending", "case_differences", "ending_differences", "run_case", "unexplained"]

Ending = Outcome | BaseException
"""What a user could see of a run, or the error that ended it."""

BUILDERS = {
    "plain": helpers.PlainModel,
    "tuple": lambda: helpers.PlainModel("tuple"),
    "gpt2": helpers.gpt2,
    "bert": helpers.bert_classifier,
    "t5": helpers.t5,
}
ROWS = {
    "plain": helpers.vector_rows,
    "tuple": helpers.vector_rows,
    "gpt2": helpers.token_rows,
    "bert": helpers.labelled_rows,
    "t5": helpers.translation_rows,
}
SETS = {
    "list": helpers.ListDataset,
    "stream": helpers.Stream,
    "sized stream": helpers.SizedStream,
    "reshuffled stream": helpers.ReshuffledStream,
}


def case_differences(case: Case, subject: Which = "ours") -> str:
    """Return a readable list of what differs between both trainers and may not; empty if nothing does."""
    return unexplained(run_case(case, "upstream"), run_case(case, subject), allowed_differences(case))


def unexplained(expected: Ending, actual: Ending, allowed: Sequence[Allowed]) -> str:
    """Return what differs between two endings, unless ``allowed`` explains it.

    An error of ours alone never is; beside another one of transformers' it is where that ended the case before.
    """
    found = ending_differences(expected, actual)
    if isinstance(expected, Outcome):
        explained = isinstance(actual, Outcome) and bool(allowed)
    else:
        explained = any(
            entry.upstream_raises and isinstance(actual, (Outcome, *entry.raises_later)) for entry in allowed
        )
    return "" if explained else found


def ending_differences(expected: Ending, actual: Ending) -> str:
    """Return what differs between two endings: two errors are equal if ``except`` of the first catches the second."""
    if isinstance(expected, Outcome) and isinstance(actual, Outcome):
        return differences(expected, actual)
    if isinstance(expected, BaseException) and isinstance(actual, type(expected)):
        return ""
    return f"{_told(expected)} expected, got {_told(actual)}"


def _told(ending: Ending) -> str:
    return "no error" if isinstance(ending, Outcome) else f"{type(ending).__name__}: {ending}"


def run_case(case: Case, which: Which) -> Ending:
    """Return how ``case`` ends under ``which``."""
    quiet = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                return run(lambda kit: _play(kit, case), which, Path(folder) / which)
        except Exception as error:
            return error.with_traceback(None)


def _play(kit: Kit, case: Case) -> None:
    trainer = _trainer(kit, case)
    for step in case.steps:
        if step == "train":
            kit.train(trainer)
        elif step == "evaluate":
            kit.evaluate(trainer)
        elif step == "predict":
            kit.predict(trainer, helpers.ListDataset(ROWS[case.model](4, seed=2)))
        else:
            trainer = _trainer(kit, case)
            kit.train(trainer, resume_from_checkpoint=_checkpoint(kit, step))


def _checkpoint(kit: Kit, step: str) -> str | bool:
    """Return the checkpoint to resume; True, which both trainers refuse, where there is none."""
    found = sorted(Path(kit.output_dir).glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    if not found:
        return True
    return str(found[{"resume first": 0, "resume middle": len(found) // 2, "resume last": -1}[step]])


def _trainer(kit: Kit, case: Case) -> Any:
    given: dict[str, Any] = {"args": kit.args(**case.fields)}
    build = BUILDERS[case.model]
    given |= {"model_init": lambda: kit.model(build)} if case.model_init else {"model": kit.model(build)}
    given["train_dataset"] = SETS[case.data](ROWS[case.model](case.rows))
    if case.evaluates:
        given["eval_dataset"] = helpers.ListDataset(ROWS[case.model](7, seed=1))
    if case.is_of_transformers:
        given["data_collator"] = (helpers.NoisyCollator if case.noisy else helpers.PadCollator)()
    if case.metrics:
        given["compute_metrics"] = _metrics
    callbacks = []
    if case.patience:
        callbacks.append(kit.EarlyStoppingCallback(early_stopping_patience=case.patience))
    if case.orders:
        orders = {(event, step): flags for event, step, flags in case.orders}
        callbacks.append(helpers.control_callback(kit.TrainerCallback, orders))
    return kit.trainer(_subclass(kit, case), callbacks=callbacks, **given)


def _metrics(prediction: Any, compute_result: bool = True) -> dict[str, float]:
    """Return numbers of everything that was given."""
    if not compute_result:
        return {}
    parts = {
        "mean": prediction.predictions,
        "labels": prediction.label_ids,
        "inputs": prediction.inputs,
        "losses": prediction.losses,
    }
    return {name: _mean(part) for name, part in parts.items() if part is not None}


def _mean(part: Any) -> float:
    leaves: list[Any] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for item in value:
                collect(item)
        else:
            leaves.append(np.asarray(value.float() if isinstance(value, torch.Tensor) else value).reshape(-1))

    collect(part)
    return float(np.concatenate([leaf.astype(np.float64) for leaf in leaves]).mean())


# Overrides


def _subclass(kit: Kit, case: Case) -> Any:
    members: dict[str, Any] = {}
    for name in case.overrides:
        members |= METHODS[name]
    return type("Own", (kit.Trainer,), members) if members else None


def _own_eval_loader(self: Any, eval_dataset: Any = None) -> Any:
    data = self.eval_dataset if eval_dataset is None else eval_dataset
    return DataLoader(data, batch_size=3, collate_fn=self.data_collator)


def _own_train_loader(self: Any) -> Any:
    return DataLoader(self.train_dataset, batch_size=self._train_batch_size, collate_fn=self.data_collator)


def _own_loss(self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
    found = type(self).__mro__[1].compute_loss(self, model, inputs, True, num_items_in_batch=num_items_in_batch)
    return (found[0] * 2, found[1]) if return_outputs else found[0] * 2


def _own_training_step(self: Any, model: Any, inputs: Any, count: Any = None) -> Any:
    torch.rand(1)
    return type(self).__mro__[1].training_step(self, model, inputs, count)


def _own_prediction_step(
    self: Any, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
) -> Any:
    loss, logits, labels = type(self).__mro__[1].prediction_step(self, model, inputs, prediction_loss_only, ignore_keys)
    return None if loss is None else loss * 3, logits, labels


def _own_log(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
    type(self).__mro__[1].log(self, {**logs, "own": float(len(logs))}, start_time)


def _own_optimizer(self: Any, model: Any = None) -> Any:
    if self.optimizer is None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate, momentum=0.9)
    return self.optimizer


def _own_sampler(self: Any, train_dataset: Any = None) -> Any:
    return SequentialSampler(self.train_dataset)


def _own_save(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
    type(self).__mro__[1].save_model(self, output_dir, _internal_call)
    Path(output_dir or self.args.output_dir, "own.txt").write_text(str(self.state.global_step))


def _own_batches(self: Any, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
    batches, count = type(self).__mro__[1].get_batch_samples(self, epoch_iterator, num_batches, device)
    torch.rand(1)
    return batches[::-1], count


METHODS: dict[str, dict[str, Any]] = {
    "own_eval_loader": {"get_eval_dataloader": _own_eval_loader},
    "own_train_loader": {"get_train_dataloader": _own_train_loader},
    "own_loss": {"compute_loss": _own_loss},
    "own_training_step": {"training_step": _own_training_step},
    "own_prediction_step": {"prediction_step": _own_prediction_step},
    "own_log": {"log": _own_log},
    "own_optimizer": {"create_optimizer": _own_optimizer},
    "own_sampler": {"_get_train_sampler": _own_sampler},
    "own_save": {"save_model": _own_save},
    "own_batches": {"get_batch_samples": _own_batches},
}
"""Override of a case → methods of the Trainer's subclass."""
