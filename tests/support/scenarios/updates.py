"""How many updates there are, what each is made of, and what is logged of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, language_model, plain

ACCUMULATION = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
"""Windows of 3, 3 and 1 batches out of 14 rows."""


def train(kit: Kit, trainer: Any) -> None:
    """Train, evaluate and predict."""
    kit.train(trainer)
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)


@scenario()
def language_model_with_dropout(kit: Kit) -> None:
    """Ragged batches, labels that are partly -100."""
    train(kit, language_model(kit, fields={"num_train_epochs": 2}))


@scenario()
def accumulation_with_a_short_last_window(kit: Kit) -> None:
    fields = {**ACCUMULATION, "num_train_epochs": 3, "eval_strategy": "steps", "eval_steps": 4, "logging_steps": 2}
    train(kit, language_model(kit, fields=fields))


@scenario()
def accumulation_longer_than_the_epoch(kit: Kit) -> None:
    train(kit, language_model(kit, rows=6, fields={"gradient_accumulation_steps": 5, "num_train_epochs": 3}))


@scenario()
def accumulation_of_a_plain_module(kit: Kit) -> None:
    """A mean loss without an item count is divided by the number of batches in the window."""
    train(kit, plain(kit, fields={**ACCUMULATION, "num_train_epochs": 2}))


@scenario(warns="averages its loss over each batch", warns_since="5.0")
def accumulation_of_a_classifier(kit: Kit) -> None:
    """In 5.x the head takes the item count and ignores it: gradients grow with the window."""
    train(kit, classifier(kit, fields={**ACCUMULATION, "num_train_epochs": 2}))


@scenario()
def fractional_epochs(kit: Kit) -> None:
    train(kit, language_model(kit, fields={**ACCUMULATION, "num_train_epochs": 1.5}))


@scenario()
def max_steps_within_an_epoch(kit: Kit) -> None:
    train(kit, language_model(kit, fields={"max_steps": 2, "num_train_epochs": 5}))


@scenario()
def max_steps_over_several_epochs(kit: Kit) -> None:
    train(kit, language_model(kit, rows=6, fields={"max_steps": 5, **ACCUMULATION}))


@scenario()
def max_steps_at_an_epoch_boundary(kit: Kit) -> None:
    train(kit, language_model(kit, rows=8, fields={"max_steps": 4, "eval_strategy": "epoch"}))


@scenario()
def ratio_steps(kit: Kit) -> None:
    fields = {"num_train_epochs": 3, "eval_strategy": "steps", "eval_steps": 0.4, "logging_steps": 0.3}
    train(kit, language_model(kit, fields={**fields, "save_strategy": "steps", "save_steps": 0.5}))


@scenario()
def cosine_with_warmup_and_decay(kit: Kit) -> None:
    fields = {"lr_scheduler_type": "cosine", "warmup_ratio": 0.2, "weight_decay": 0.1, "logging_first_step": True}
    train(kit, language_model(kit, fields={**fields, "num_train_epochs": 4, "logging_steps": 3}))


@scenario()
def cosine_with_restarts_and_warmup_steps(kit: Kit) -> None:
    fields = {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}, "warmup_steps": 3}
    train(kit, language_model(kit, fields={**fields, "num_train_epochs": 3}))


@scenario()
def label_smoothing_with_adafactor(kit: Kit) -> None:
    fields = {"label_smoothing_factor": 0.1, "optim": "adafactor", "max_grad_norm": 0.5, **ACCUMULATION}
    train(kit, language_model(kit, fields={**fields, "num_train_epochs": 2}))


@scenario()
def sgd_with_a_constant_rate(kit: Kit) -> None:
    fields = {"optim": "sgd", "lr_scheduler_type": "constant", "learning_rate": 0.5, "num_train_epochs": 2}
    train(kit, language_model(kit, fields=fields))


@scenario()
def adamw_of_other_settings(kit: Kit) -> None:
    fields = {"optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.01}
    train(kit, language_model(kit, fields=fields))


@scenario()
def no_clipping(kit: Kit) -> None:
    train(kit, language_model(kit, fields={"max_grad_norm": 0.0, "num_train_epochs": 2}))


@scenario()
def logging_by_epoch(kit: Kit) -> None:
    fields = {"logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2.5}
    train(kit, language_model(kit, fields=fields))


@scenario()
def no_logging(kit: Kit) -> None:
    fields = {"logging_strategy": "no", "eval_strategy": "steps", "eval_steps": 2}
    train(kit, language_model(kit, fields=fields))


@scenario()
def custom_loss_function(kit: Kit) -> None:
    """``compute_loss_func`` is given the items of the window, and its result is not divided again."""

    def scored(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = outputs["logits"][:, :-1].flatten(0, 1)
        total = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
        return total / (1 if num_items_in_batch is None else num_items_in_batch)

    train(kit, language_model(kit, fields={**ACCUMULATION, "num_train_epochs": 2}, compute_loss_func=scored))


@scenario()
def optimizer_and_scheduler_of_the_user(kit: Kit) -> None:
    model, *optimizers = _model_and_sgd(kit)
    train(kit, language_model(kit, fields={"num_train_epochs": 2}, model=model, optimizers=tuple(optimizers)))


@scenario()
def optimizer_of_the_user_alone(kit: Kit) -> None:
    model, optimizer, _ = _model_and_sgd(kit)
    fields = {"num_train_epochs": 2, "lr_scheduler_type": "polynomial"}
    train(kit, language_model(kit, fields=fields, model=model, optimizers=(optimizer, None)))


@scenario()
def optimizer_class_of_the_user(kit: Kit) -> None:
    choice = (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.9})
    train(kit, language_model(kit, fields={"weight_decay": 0.1}, optimizer_cls_and_kwargs=choice))


def _replacing(kit: Kit, event: str, replace: Any) -> Any:
    """Return a Trainer, and a callback that calls ``replace`` with it in ``event`` of update step 3."""
    trainers: list[Any] = []

    def act(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            replace(trainers[0])

    callback = type("Replaces", (kit.TrainerCallback,), {event: act})()
    trainers.append(language_model(kit, fields={**ACCUMULATION, "num_train_epochs": 2}, callbacks=[callback]))
    return trainers[0]


@scenario()
def optimizer_replaced_after_an_update_step(kit: Kit) -> None:
    def replace(trainer: Any) -> None:
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.05, momentum=0.9)

    train(kit, _replacing(kit, "on_step_end", replace))


@scenario()
def optimizer_and_schedule_created_again(kit: Kit) -> None:
    def replace(trainer: Any) -> None:
        trainer.optimizer = trainer.lr_scheduler = None
        trainer.create_optimizer_and_scheduler(6)

    train(kit, _replacing(kit, "on_step_begin", replace))


@scenario()
def optimizer_replaced_within_an_update_step(kit: Kit) -> None:
    def replace(trainer: Any) -> None:
        trainer.optimizer = trainer.accelerator.prepare(torch.optim.SGD(trainer.model.parameters(), lr=0.05))

    train(kit, _replacing(kit, "on_substep_end", replace))


@scenario()
def rate_falls_on_a_plateau(kit: Kit) -> None:
    fields = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    cadence = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "learning_rate": 0.3}
    train(kit, language_model(kit, fields={**fields, **cadence, "num_train_epochs": 2, "eval_on_start": True}))


@scenario()
def rate_at_the_last_evaluation(kit: Kit) -> None:
    """Where no interval ends: since 5.4 it is evaluated too, and the schedule is stepped."""
    fields = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    cadence = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "learning_rate": 3.0}
    train(kit, language_model(kit, fields={**fields, **cadence, "max_steps": 5}))


@scenario()
def nan_loss_is_filtered_from_the_log(kit: Kit) -> None:
    _train_into_nan(kit, logging_nan_inf_filter=True)


@scenario()
def nan_loss_is_logged(kit: Kit) -> None:
    _train_into_nan(kit, logging_nan_inf_filter=False)


@scenario()
def nan_loss_is_filtered_within_an_update_step(kit: Kit) -> None:
    _train_into_nan(kit, **ACCUMULATION)


@scenario()
def float64_loss(kit: Kit) -> None:
    """Since 5.3 the logged loss is summed in float32, whatever the model's."""
    _train_into_nan(kit, dtype=torch.float64, **ACCUMULATION)


@scenario()
def loss_in_the_same_memory_each_time(kit: Kit) -> None:
    """The loss of a batch is known before the next forward pass writes over it, as that of a CUDA graph does."""
    train(kit, plain(kit, fields={**ACCUMULATION, "logging_steps": 1}, model=kit.model(_LossInOnePlace)))


@scenario()
def input_tokens_are_counted(kit: Kit) -> None:
    train(kit, language_model(kit, fields={**ACCUMULATION, "include_num_input_tokens_seen": "all"}))


@scenario()
def input_tokens_but_padding_are_counted(kit: Kit) -> None:
    fields = {**ACCUMULATION, "include_num_input_tokens_seen": "non_padding", "save_strategy": "epoch"}
    train(kit, language_model(kit, fields=fields))


@scenario()
def training_twice(kit: Kit) -> None:
    """The second call goes on from the weights and the optimizer's state, with a new schedule."""
    trainer = language_model(kit, fields={"num_train_epochs": 2, "save_strategy": "epoch"})
    kit.train(trainer)
    kit.train(trainer)
    kit.evaluate(trainer)


@scenario()
def another_seed(kit: Kit) -> None:
    train(kit, language_model(kit, fields={"seed": 7, "num_train_epochs": 2}))


def _model_and_sgd(kit: Kit) -> Any:
    model = kit.model(helpers.gpt2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


class _LossTurnsNan(nn.Module):
    """A linear model whose loss is NaN in its third and fourth training batch and infinite in its sixth."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.batches = 0

    def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(features.to(self.head.weight.dtype))
        loss = nn.functional.cross_entropy(logits, labels)
        if self.training:
            self.batches += 1
            # Added, so that gradients stay finite and later losses are numbers again.
            loss = loss + {3: float("nan"), 4: float("nan"), 6: float("inf")}.get(self.batches, 0.0)
        return {"loss": loss, "logits": logits}


def _train_into_nan(kit: Kit, dtype: torch.dtype = torch.float32, **fields: Any) -> None:
    fields = {**fields, "num_train_epochs": 2, "logging_steps": 2, "eval_strategy": "epoch"}
    train(kit, plain(kit, fields=fields, model=kit.model(_LossTurnsNan).to(dtype)))


class _WrittenTo(torch.autograd.Function):
    """A number that is returned in memory that is given."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, memory: Tensor) -> Tensor:
        memory.copy_(number)
        return memory.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


class _LossInOnePlace(nn.Module):
    """A linear model that averages its loss over the window, and returns it in the same memory each time."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.register_buffer("place", torch.tensor(0.0), persistent=False)

    def forward(self, features: Tensor, labels: Tensor, num_items_in_batch: Any = None, **_: Any) -> dict[str, Tensor]:
        logits = self.head(features)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum") / (num_items_in_batch or len(labels))
        return {"loss": _WrittenTo.apply(loss, self.place), "logits": logits}


@scenario()
def negative_clipping(kit: Kit) -> None:
    """A negative norm clips nothing, as 0 does."""
    train(kit, plain(kit, fields={"max_grad_norm": -1.0}))


@scenario()
def negative_decay_and_smoothing(kit: Kit) -> None:
    """Weights grow by a negative decay, and a negative smoothing sharpens the labels."""
    train(kit, classifier(kit, fields={"weight_decay": -0.5, "label_smoothing_factor": -0.25}))


@scenario()
def negative_epochs(kit: Kit) -> None:
    """No epoch, and no update step."""
    train(kit, plain(kit, fields={"num_train_epochs": -1}))


@scenario()
def negative_intervals(kit: Kit) -> None:
    """Below 1 they are fractions of all update steps: -1 is the last one, -2 is none; batches are counted as by 1."""
    fields = {"eval_strategy": "steps", "eval_steps": -1, "logging_steps": -1, "eval_accumulation_steps": -1}
    train(kit, plain(kit, fields={**fields, "save_strategy": "steps", "save_steps": -1}))
    train(kit, plain(kit, fields={**fields, "logging_steps": -2, "save_strategy": "steps", "save_steps": -2}))


@scenario(warns="leaves out the last")
def no_batch_of_a_train_loader(kit: Kit) -> None:
    """The only batch is partial and is dropped: `max_steps` begins a run that makes no update step."""
    fields = {"dataloader_drop_last": True, "max_steps": 3, "gradient_accumulation_steps": 2, "warmup_steps": 1}
    fields |= {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"}
    train(kit, plain(kit, rows=3, fields=fields))


@scenario()
def training_that_makes_no_update_step(kit: Kit) -> None:
    """The model is left in evaluation mode, in which `from_pretrained` returns it."""
    trainer = language_model(kit, fields={"num_train_epochs": 0})
    trainer.model.eval()
    kit.train(trainer)


@scenario()
def batch_size_changed_after_construction(kit: Kit) -> None:
    """Releases since 5.3 train with the batch size that the Trainer was built with."""
    trainer = plain(kit, fields={"per_device_train_batch_size": 4})
    trainer.args.per_device_train_batch_size = 2
    kit.train(trainer)
    kit.keep("batch size", trainer._train_batch_size)
    trainer.args.per_device_train_batch_size = 3
    kit.train(trainer)
