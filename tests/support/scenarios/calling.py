"""How overridden methods are called: by position what upstream passes by position, whatever parameters are named."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from torch.utils.data import SequentialSampler

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, language_model
from tests.support.trainer_methods import OVERRIDABLE

FIELDS = {"num_train_epochs": 2, "gradient_accumulation_steps": 2}
ONLY_OLDER = {"_save_checkpoint": "metrics", "_wrap_model": "dataloader"}
"""The keyword that only releases before 4.57, or before 5.0, pass to a method; ours goes to overrides that take it."""
AVERAGES = {"warns": "averages its loss over each batch", "warns_since": "5.0"}


@scenario()
def item_count_by_another_name(kit: Kit) -> None:
    class Counting(kit.Trainer):
        def training_step(self, model: Any, inputs: Any, items: Any = None) -> Any:
            kit.keep("items", items)
            return super().training_step(model, inputs, items)

    kit.train(language_model(kit, subclass=Counting, fields=FIELDS))


@scenario()
def item_count_that_only_some_names_lead_to(kit: Kit) -> None:
    class Counting(kit.Trainer):
        def training_step(self, net: Any = None, batch: Any = None, *rest: Any) -> Any:
            kit.keep("items", rest)
            return super().training_step(net, batch, *rest)

    kit.train(language_model(kit, subclass=Counting, fields=FIELDS))


@scenario()
def start_time_by_another_name(kit: Kit) -> None:
    class Logging(kit.Trainer):
        def log(self, values: Any = None, since: Any = None) -> None:
            values["has since"] = float(since is not None)
            super().log(values, since)

    kit.train(language_model(kit, subclass=Logging, fields={**FIELDS, "eval_strategy": "epoch"}))


@scenario(**AVERAGES)
def samplers_by_other_names(kit: Kit) -> None:
    """Samplers of the dataset that they are given, not of the Trainer's."""

    class Ordered(kit.Trainer):
        def _get_train_sampler(self, rows: Any = None) -> Any:
            kit.keep("rows of training", None if rows is None else len(rows))
            return SequentialSampler(self.train_dataset)

        def _get_eval_sampler(self, rows: Any = None) -> Any:
            kit.keep("rows of evaluation", None if rows is None else len(rows))
            return SequentialSampler(rows)

    trainer = classifier(kit, subclass=Ordered, fields=FIELDS)
    kit.train(trainer)
    kit.evaluate(trainer, helpers.ListDataset(helpers.labelled_rows(3)))


@scenario()
def flow_by_other_names(kit: Kit) -> None:
    class Flowing(kit.Trainer):
        def _maybe_log_save_evaluate(
            self, loss: Any, norm: Any, net: Any, trial: Any, epoch: Any, ignored: Any, began: Any, **rest: Any
        ) -> None:
            kit.keep("flow", [float(loss), epoch, began is None])
            super()._maybe_log_save_evaluate(loss, norm, net, trial, epoch, ignored, began, **rest)

    kit.train(language_model(kit, subclass=Flowing, fields=FIELDS))


@scenario()
def output_dir_is_asked_for(kit: Kit) -> None:
    """Once for each checkpoint, whichever is the best, and at the end of the run."""
    asked: list[Any] = []

    class Asked(kit.Trainer):
        def _get_output_dir(self, *given: Any, **named: Any) -> Any:
            asked.append((len(given), sorted(named)))
            return super()._get_output_dir(*given, **named)

    schedule = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    kit.train(language_model(kit, subclass=Asked, fields={**FIELDS, **schedule, "load_best_model_at_end": True}))
    kit.keep("asked", asked)


@scenario(**AVERAGES)
def calls_of_every_method(kit: Kit) -> None:
    """As many arguments by position, and the same by keyword, for each method of the release that may be overridden.

    A keyword that only older releases pass is left out.
    """
    upstream = importlib.import_module("transformers").Trainer
    known = [name for name in OVERRIDABLE if hasattr(upstream, name)]
    statics = {name for name in known if isinstance(inspect.getattr_static(upstream, name), staticmethod)}
    calls: dict[str, set[Any]] = {}

    def recorded(name: str) -> Any:
        is_static = name in statics

        def method(*given: Any, **named: Any) -> Any:
            positions = len(given) if is_static else len(given) - 1
            calls.setdefault(name, set()).add((positions, *sorted({*named} - {ONLY_OLDER.get(name)})))
            return getattr(kit.Trainer, name)(*given, **named)

        return staticmethod(method) if is_static else method

    spy = type("Spy", (kit.Trainer,), {name: recorded(name) for name in known})
    schedule = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    extras = {"load_best_model_at_end": True, "neftune_noise_alpha": 1.0, "label_smoothing_factor": 0.1}
    trainer = classifier(kit, subclass=spy, fields={**FIELDS, **schedule, **extras, "save_total_limit": 3})
    kit.train(trainer)
    kit.predict(trainer, trainer.eval_dataset)
    trainer.save_model()
    kit.keep("calls", {name: sorted(map(str, ways)) for name, ways in sorted(calls.items())})
