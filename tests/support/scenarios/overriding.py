"""Subclasses that override methods, and callbacks that take control."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, language_model, plain
from tests.support.scenarios.updates import ACCUMULATION, train

Method = Callable[..., Any]
TWO_EPOCHS = {**ACCUMULATION, "num_train_epochs": 2}


def of_old(kit: Kit) -> Callable[[Method], Method]:
    """Return a decorator for a method whose signature is that of scripts written years ago.

    Ours must call it as it is. transformers passes arguments that it does not take, which are dropped for it.
    """

    def adapt(method: Method) -> Method:
        known = inspect.signature(method).parameters
        most = len(known) - 1

        def adapted(self: Any, *given: Any, **named: Any) -> Any:
            return method(self, *given[:most], **{name: value for name, value in named.items() if name in known})

        return adapted if kit.which == "upstream" else method

    return adapt


@scenario(warns="averages its loss over each batch", warns_since="5.0")
def compute_loss_of_old(kit: Kit) -> None:
    """The signature of scripts written before ``num_items_in_batch``."""

    class Weighted(kit.Trainer):
        @of_old(kit)
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            weight = torch.tensor([1.0, 2.0, 3.0])
            loss = nn.functional.cross_entropy(outputs["logits"], labels, weight=weight)
            return (loss, outputs) if return_outputs else loss

    train(kit, classifier(kit, subclass=Weighted, fields={**TWO_EPOCHS, "eval_strategy": "epoch"}))


@scenario()
def training_step_of_old(kit: Kit) -> None:
    calls: list[int] = []

    class Counting(kit.Trainer):
        @of_old(kit)
        def training_step(self, model: Any, inputs: Any) -> Any:
            calls.append(self.state.global_step)
            return super().training_step(model, inputs)

    train(kit, language_model(kit, subclass=Counting, fields=TWO_EPOCHS))
    kit.keep("calls", calls)


@scenario()
def log_of_old(kit: Kit) -> None:
    class Logging(kit.Trainer):
        @of_old(kit)
        def log(self, logs: Any) -> None:
            logs["extra"] = len(logs)
            super().log(logs)

    train(kit, language_model(kit, subclass=Logging, fields={**TWO_EPOCHS, "eval_strategy": "epoch"}))


@scenario()
def compute_loss_that_calls_super(kit: Kit) -> None:
    class Penalised(kit.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            result = super().compute_loss(model, inputs, *given, **named)
            penalty = 0.01 * sum(weight.square().sum() for weight in model.parameters())
            return (result[0] + penalty, *result[1:]) if isinstance(result, tuple) else result + penalty

    train(kit, language_model(kit, subclass=Penalised, fields={**TWO_EPOCHS, "eval_strategy": "epoch"}))


@scenario()
def training_step_of_the_user(kit: Kit) -> None:
    """Forward and backward by hand."""

    class Own(kit.Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            inputs = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs)
            loss = loss / self.args.gradient_accumulation_steps
            self.accelerator.backward(loss)
            return loss.detach()

    train(kit, language_model(kit, subclass=Own, fields=TWO_EPOCHS))


def stepped_by_the_user(kit: Kit, fields: dict[str, Any]) -> None:
    """A Trainer that also steps the optimizer where it trains on a batch, as scripts for GANs do."""

    class Stepping(kit.Trainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            self.optimizer.zero_grad()
            loss = super().training_step(*given, **named)
            self.optimizer.step()
            return loss

    train(kit, language_model(kit, subclass=Stepping, fields={**fields, "max_steps": 5}))


@scenario()
def optimizer_stepped_for_each_batch(kit: Kit) -> None:
    stepped_by_the_user(kit, {})


@scenario()
def optimizer_stepped_for_each_accumulated_batch(kit: Kit) -> None:
    """The optimizer does nothing there but for the last batch of an update step."""
    stepped_by_the_user(kit, ACCUMULATION)


@scenario()
def optimizer_zeroed_by_a_callback(kit: Kit) -> None:
    """Between two batches that does nothing; before the optimizer's step it takes all gradients away."""

    class Zeroing(kit.TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **rest: Any) -> None:
            optimizer.zero_grad()
            optimizer.step()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == 2:
                rest["optimizer"].zero_grad()

    train(kit, language_model(kit, callbacks=[Zeroing()], fields=TWO_EPOCHS))


@scenario()
def losses_that_are_written_to(kit: Kit) -> None:
    """A loss that is returned may become a running sum, in which the user adds up those that follow."""

    class Summing(kit.Trainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            if not hasattr(self, "summed"):
                self.summed = loss
            else:
                self.summed += loss
            return loss

    trainer = plain(kit, subclass=Summing, fields={**TWO_EPOCHS, "logging_steps": 3})
    train(kit, trainer)
    kit.keep("summed", trainer.summed)


@scenario(warns="averages its loss over each batch", warns_since="5.0")
def evaluate_of_the_user(kit: Kit) -> None:
    class Evaluating(kit.Trainer):
        def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
            metrics = super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)
            metrics[f"{metric_key_prefix}_double"] = 2 * metrics[f"{metric_key_prefix}_loss"]
            self.log({"seen": float(self.state.global_step)})
            return metrics

    best = {"save_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "double"}
    fields = {**TWO_EPOCHS, "eval_strategy": "epoch", "greater_is_better": False, **best}
    train(kit, classifier(kit, subclass=Evaluating, fields=fields))


@scenario()
def prediction_step_of_the_user(kit: Kit) -> None:
    class Doubling(kit.Trainer):
        def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return 2 * loss, None if logits is None else 2 * logits, labels

    train(kit, classifier(kit, subclass=Doubling, fields={"eval_strategy": "epoch"}))


@scenario()
def optimizer_of_a_subclass(kit: Kit) -> None:
    """Two learning rates, by overriding ``create_optimizer``."""

    class TwoRates(kit.Trainer):
        def create_optimizer(self, *given: Any) -> Any:
            if self.optimizer is None:
                head = list(self.model.classifier.parameters())
                body = list(self.model.bert.parameters())
                groups = [{"params": head, "lr": 0.05}, {"params": body, "lr": 0.005}]
                self.optimizer = torch.optim.AdamW(groups, lr=self.args.learning_rate)
            return self.optimizer

    train(kit, classifier(kit, subclass=TwoRates, fields={"num_train_epochs": 2, "save_strategy": "epoch"}))


@scenario()
def scheduler_of_a_subclass(kit: Kit) -> None:
    class Halving(kit.Trainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda step: 0.5 ** (step * 6 / num_training_steps)
            )
            self._created_lr_scheduler = True
            return self.lr_scheduler

    train(kit, language_model(kit, subclass=Halving, fields=TWO_EPOCHS))


@scenario()
def decay_chosen_by_a_subclass(kit: Kit) -> None:
    class NoneDecays(kit.Trainer):
        def get_decay_parameter_names(self, model: Any) -> list[str]:
            return [name for name in super().get_decay_parameter_names(model) if "attn" in name]

    train(kit, language_model(kit, subclass=NoneDecays, fields={"weight_decay": 0.5}))


@scenario()
def saving_of_a_subclass(kit: Kit) -> None:
    """``_save_checkpoint`` and ``save_model`` are called where upstream calls them."""
    calls: list[str] = []

    class Saving(kit.Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            calls.append(f"checkpoint {self.state.global_step} {model is self.model}")
            super()._save_checkpoint(model, trial)

        def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
            calls.append(f"model {_internal_call}")
            super().save_model(output_dir, _internal_call)

    trainer = language_model(kit, subclass=Saving, fields={**TWO_EPOCHS, "save_strategy": "epoch"})
    train(kit, trainer)
    trainer.save_model()
    kit.keep("calls", calls)


@scenario(warns="averages its loss over each batch", warns_since="5.0")
def methods_are_called_in_order(kit: Kit) -> None:
    """The order of calls to every method that subclasses override."""
    calls: list[str] = []
    names = (
        "get_train_dataloader",
        "get_eval_dataloader",
        "get_test_dataloader",
        "create_optimizer",
        "create_scheduler",
        "training_step",
        "compute_loss",
        "prediction_step",
        "evaluation_loop",
        "evaluate",
        "predict",
        "log",
        "save_model",
    )

    def recorded(name: str) -> Any:
        def method(self: Any, *given: Any, **named: Any) -> Any:
            calls.append(name)
            return getattr(kit.Trainer, name)(self, *given, **named)

        return method

    spy = type("Spy", (kit.Trainer,), {name: recorded(name) for name in names})
    train(kit, classifier(kit, subclass=spy, fields={**TWO_EPOCHS, "eval_strategy": "epoch", "save_strategy": "epoch"}))
    kit.keep("calls", calls)


@scenario()
def callback_stops_training(kit: Kit) -> None:
    _control(kit, {("on_step_end", 4): ("should_training_stop",)})


@scenario()
def callback_stops_training_within_a_window(kit: Kit) -> None:
    """Gradients of the window that is broken off are not used."""
    _control(kit, {("on_substep_end", 4): ("should_training_stop",)})


@scenario()
def callback_stops_training_at_an_epoch_end(kit: Kit) -> None:
    _control(kit, {("on_epoch_end", 3): ("should_training_stop",)})


@scenario()
def callback_stops_an_epoch(kit: Kit) -> None:
    _control(kit, {("on_step_end", 1): ("should_epoch_stop",)})


@scenario()
def callback_stops_an_epoch_within_a_window(kit: Kit) -> None:
    """Gradients of the window that is broken off are left for the next epoch's first update."""
    _control(kit, {("on_substep_end", 1): ("should_epoch_stop",)})


@scenario()
def callback_asks_to_save_log_and_evaluate(kit: Kit) -> None:
    _control(
        kit,
        {
            ("on_step_end", 1): ("should_log",),
            ("on_step_end", 2): ("should_evaluate",),
            ("on_step_end", 4): ("should_save",),
            ("on_step_end", 5): ("should_save", "should_evaluate", "should_log", "should_training_stop"),
        },
    )


@scenario()
def callback_asks_at_an_epoch_end(kit: Kit) -> None:
    _control(kit, {("on_epoch_end", 3): ("should_save", "should_evaluate", "should_log")})


@scenario()
def callback_asks_during_a_substep(kit: Kit) -> None:
    _control(kit, {("on_substep_end", 1): ("should_log", "should_save")})


@scenario()
def callback_changes_the_optimizer(kit: Kit) -> None:
    """A callback reaches the optimizer and the model that are really used."""

    class Touch(kit.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            for parameter in given["model"].parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            for group in given["optimizer"].param_groups:
                group["betas"] = (0.5, 0.9)

    train(kit, language_model(kit, fields=TWO_EPOCHS, callbacks=[Touch()]))


@scenario()
def callbacks_are_added_and_removed(kit: Kit) -> None:
    class First(kit.TrainerCallback):
        pass

    class Second(First):
        pass

    trainer = plain(kit, callbacks=[First])
    trainer.add_callback(Second())
    kit.keep("popped", type(trainer.pop_callback(Second)).__name__)
    kit.keep("popped nothing", trainer.pop_callback(Second))
    trainer.remove_callback(First)
    kit.keep("callbacks", [type(each).__name__ for each in trainer.callback_handler.callbacks])
    kit.train(trainer)


@scenario()
def default_flow_is_removed(kit: Kit) -> None:
    """Nothing is logged or evaluated, and nothing stops at ``max_steps`` but the count of epochs."""
    trainer = plain(kit, fields={"num_train_epochs": 2, "eval_strategy": "epoch"})
    flow = next(each for each in trainer.callback_handler.callbacks if type(each).__name__ == "DefaultFlowCallback")
    trainer.remove_callback(type(flow))
    kit.train(trainer)


def _control(kit: Kit, orders: dict[tuple[str, int], tuple[str, ...]]) -> None:
    callback = helpers.control_callback(kit.TrainerCallback, orders)
    fields = {**TWO_EPOCHS, "logging_steps": 50, "eval_strategy": "no"}
    train(kit, language_model(kit, fields=fields, callbacks=[callback]))


class _WithoutLength(torch.utils.data.IterableDataset):
    """A stream of 10 samples a pass."""

    def __iter__(self) -> Any:
        return iter(helpers.vector_rows(10))


@scenario()
def windows_without_batches(kit: Kit) -> None:
    """``get_batch_samples`` of the user's leaves windows empty, and draws random numbers after the end of the data."""
    asked: list[tuple[int, int]] = []

    class Leaves(kit.Trainer):
        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
            torch.rand(1)
            batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
            asked.append((num_batches, len(batches)))
            return ([], None) if len(asked) % 3 == 2 else (batches, count)

    fields = {"max_steps": 6, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 1}
    kit.train(plain(kit, subclass=Leaves, fields=fields, train_dataset=_WithoutLength()))
    kit.train(plain(kit, subclass=Leaves, rows=13, fields={**fields, "max_steps": -1, "num_train_epochs": 2}))
    kit.keep("asked", asked)


@scenario()
def synchronisation_is_known_at_each_event(kit: Kit) -> None:
    """``accelerator.sync_gradients``, by which callbacks tell the batch of an update step from others."""
    told: list[tuple[str, bool]] = []

    def note(event: str) -> Method:
        return lambda self, *_, **given: told.append((event, trainer.accelerator.sync_gradients))

    events = ("on_epoch_begin", "on_step_begin", "on_substep_end", "on_step_end", "on_epoch_end")
    noting = type("Noting", (kit.TrainerCallback,), {event: note(event) for event in events})
    trainer = plain(kit, fields=TWO_EPOCHS, callbacks=[noting()])
    train(kit, trainer)
    kit.keep("synchronises", told)


@scenario()
def windows_that_lack_a_batch(kit: Kit) -> None:
    """An override drops a batch, so that the next ones begin within an update step, which has begun already."""

    class Dropping(kit.Trainer):
        @of_old(kit)
        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any = None) -> Any:
            batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
            calls.append(len(batches))
            return (batches[:1] if len(calls) % 3 else batches), count

    calls: list[int] = []
    train(kit, plain(kit, rows=30, subclass=Dropping, fields=TWO_EPOCHS))


@scenario()
def windows_with_a_batch_too_many(kit: Kit) -> None:
    """An override repeats a batch, so that update steps end within what is drawn, and there are more of them."""

    class Repeating(kit.Trainer):
        @of_old(kit)
        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any = None) -> Any:
            batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
            return batches + batches[:2], count

    train(kit, plain(kit, rows=30, subclass=Repeating, fields=TWO_EPOCHS))


@scenario()
def callback_takes_a_stop_back(kit: Kit) -> None:
    """What ends a run is what the callbacks leave of the request: this one goes on to the end of the last epoch."""

    class GoingOn(kit.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = False

    train(kit, plain(kit, fields={"max_steps": 5, "save_strategy": "steps", "save_steps": 3}, callbacks=[GoingOn()]))


@scenario()
def callback_takes_a_stop_back_at_an_epoch_end(kit: Kit) -> None:
    """It was requested within the epoch, which it ends; the next one begins all the same."""

    class GoingOn(kit.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = state.global_step in (1, 4)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = state.global_step == 4

    train(kit, plain(kit, fields={**TWO_EPOCHS, "num_train_epochs": 4}, callbacks=[GoingOn()]))


@scenario()
def steps_added_by_a_callback(kit: Kit) -> None:
    """The number in the state says when to stop: with more than were planned, within the epochs that were."""

    class Adding(kit.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            state.max_steps = 7

    train(kit, plain(kit, fields={"max_steps": 5, "eval_strategy": "epoch"}, callbacks=[Adding()]))


@scenario()
def nothing_stops_at_the_last_step(kit: Kit) -> None:
    """Without the default flow a run with ``max_steps`` goes on to the end of its last epoch."""
    trainer = plain(kit, fields={"max_steps": 2})
    flow = next(each for each in trainer.callback_handler.callbacks if type(each).__name__ == "DefaultFlowCallback")
    trainer.remove_callback(type(flow))
    kit.train(trainer)


@scenario(warns="updates no parameter of `trainer.model`")
def parameters_beside_the_model(kit: Kit) -> None:
    """The optimizer that was passed trains a prompt alone, in two runs; the model stays as it is."""
    prompt = nn.Parameter(torch.zeros(helpers.WIDTH))

    class Prompted(kit.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            inputs = {**inputs, "features": inputs["features"] + prompt}
            return super().compute_loss(model, inputs, *given, **named)

    optimizer = torch.optim.SGD([prompt], lr=0.5, momentum=0.9)
    trainer = plain(kit, subclass=Prompted, optimizers=(optimizer, None), fields={"eval_strategy": "epoch"})
    kit.train(trainer)
    kit.train(trainer)
    kit.keep("prompt", prompt)
