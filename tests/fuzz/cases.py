"""``Case``: what one random case does, drawn from tables by a seed; its ``repr`` is code that makes it again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Case", "Order", "draw_case"]

Order = tuple[str, int, tuple[str, ...]]
"""An event, the update steps finished by then, and the flags of the control that a callback sets there."""

MODELS = ("plain", "tuple", "gpt2", "bert", "t5")
DATA = ("list", "list", "list", "stream", "sized stream", "reshuffled stream")
SEQUENCES = (
    ("train",),
    ("train", "evaluate"),
    ("train", "predict"),
    ("evaluate", "train", "evaluate"),
    ("predict", "train"),
    ("train", "train"),
    ("train", "evaluate", "train", "evaluate"),
    ("train", "resume first"),
    ("train", "resume last"),
    ("train", "resume middle", "evaluate"),
    ("train", "resume middle", "resume last"),
    ("evaluate", "predict"),
)
OVERRIDES = (
    "own_eval_loader",
    "own_train_loader",
    "own_loss",
    "own_training_step",
    "own_prediction_step",
    "own_log",
    "own_optimizer",
    "own_sampler",
    "own_save",
    "own_batches",
)
EVENTS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_substep_end",
    "on_step_end",
    "on_evaluate",
    "on_log",
    "on_save",
    "on_epoch_end",
)
FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")

FIELDS: dict[str, tuple[Any, ...]] = {
    "per_device_train_batch_size": (1, 2, 3, 4, 8),
    "per_device_eval_batch_size": (1, 2, 3, 8),
    "gradient_accumulation_steps": (1, 2, 3, 5),
    "num_train_epochs": (0, 0.4, 1, 1.5, 2, 3),
    "max_steps": (-1, -1, 1, 3, 5, 7),
    "learning_rate": (0.0, 1e-3, 1e-2, 0.1),
    "lr_scheduler_type": (
        "linear",
        "cosine",
        "constant",
        "constant_with_warmup",
        "polynomial",
        "inverse_sqrt",
        "cosine_with_restarts",
        "reduce_lr_on_plateau",
    ),
    "warmup_steps": (0, 1, 2, 9),
    "warmup_ratio": (0.0, 0.1, 0.5),
    "weight_decay": (0.0, 0.01, 0.3),
    "max_grad_norm": (-1.0, 0.0, 0.1, 1.0),
    "optim": ("adamw_torch", "sgd", "adafactor", "adagrad", "rmsprop"),
    "adam_beta1": (0.5, 0.9),
    "adam_beta2": (0.9, 0.99),
    "adam_epsilon": (1e-8, 1e-3),
    "label_smoothing_factor": (0.0, 0.1),
    "logging_steps": (1, 2, 3, 10, 0.3),
    "logging_strategy": ("no", "steps", "epoch"),
    "logging_first_step": (True, False),
    "logging_nan_inf_filter": (True, False),
    "eval_strategy": ("no", "steps", "steps", "epoch", "epoch"),
    "eval_steps": (1, 2, 3, 0.4),
    "eval_delay": (0, 1, 2),
    "eval_on_start": (True, False),
    "save_strategy": ("no", "steps", "steps", "epoch", "best"),
    "save_steps": (1, 2, 3, 0.5),
    "save_total_limit": (1, 2, 3),
    "save_only_model": (True, False),
    "load_best_model_at_end": (True,),
    "metric_for_best_model": ("loss", "eval_loss", "mean"),
    "greater_is_better": (True, False),
    "eval_accumulation_steps": (1, 2),
    "prediction_loss_only": (True, False),
    "eval_do_concat_batches": (True, False),
    "batch_eval_metrics": (True, False),
    "include_for_metrics": (["inputs"], ["loss"], ["inputs", "loss"]),
    "include_num_input_tokens_seen": (True, "all", "non_padding"),
    "dataloader_drop_last": (True, False),
    "remove_unused_columns": (True, False),
    "group_by_length": (True, False),
    "seed": (0, 1, 42),
    "data_seed": (0, 7),
    "neftune_noise_alpha": (5.0,),
    "bf16": (True, False),
    "gradient_checkpointing": (True, False),
    "ignore_data_skip": (True, False),
    "restore_callback_states_from_checkpoint": (True, False),
    "accelerator_config": ({"use_seedable_sampler": False}, {"split_batches": True}, {"even_batches": False}),
    "average_tokens_across_devices": (True, False),
    "torch_empty_cache_steps": (1, 3),
    "save_on_each_node": (True, False),
}
"""Field of ``TrainingArguments`` → values, those at the edge among them."""

OF_TRANSFORMERS = ("neftune_noise_alpha", "gradient_checkpointing", "label_smoothing_factor", "group_by_length")
"""Fields that a plain module cannot be trained with."""


@dataclass(frozen=True)
class Case:
    """What one case does.

    Attributes:
        seed: Where it comes from.
        model: One of ``MODELS``.
        model_init: Whether the Trainer makes the model itself.
        data: One of ``DATA``.
        rows: Samples of the training set.
        fields: Training arguments.
        steps: What is done with the Trainer, in order.
        metrics: Whether there is a ``compute_metrics``.
        evaluates: Whether there is an evaluation set.
        noisy: Whether the collator draws random numbers.
        patience: Of an ``EarlyStoppingCallback``; 0 without one.
        orders: What a callback tells the control.
        overrides: Which methods of the Trainer are overridden.
    """

    seed: int = 0
    model: str = "plain"
    model_init: bool = False
    data: str = "list"
    rows: int = 11
    fields: dict[str, Any] = field(default_factory=dict)
    steps: tuple[str, ...] = ("train",)
    metrics: bool = False
    evaluates: bool = True
    noisy: bool = False
    patience: int = 0
    orders: tuple[Order, ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def is_stream(self) -> bool:
        """Whether the training set can only be read in order."""
        return self.data != "list"

    @property
    def has_length(self) -> bool:
        """Whether the training set has a length."""
        return self.data in ("list", "sized stream")

    @property
    def is_of_transformers(self) -> bool:
        """Whether the model is one of transformers'."""
        return self.model not in ("plain", "tuple")


def draw_case(seed: int) -> Case:
    """Return the case of ``seed``; one in eight is left as drawn, with arguments that may contradict each other."""
    draw = random.Random(seed)
    model, data = draw.choice(MODELS), draw.choice(DATA)
    names = [name for name in FIELDS if model not in ("plain", "tuple") or name not in OF_TRANSFORMERS]
    chosen = draw.sample(names, draw.randint(8, 20))
    case = Case(
        seed=seed,
        model=model,
        model_init=draw.random() < 0.2,
        data=data,
        rows=draw.randint(5, 13),
        fields={name: draw.choice(FIELDS[name]) for name in sorted(chosen)},
        steps=draw.choice(SEQUENCES),
        metrics=draw.random() < 0.5,
        evaluates=draw.random() < 0.9,
        noisy=model in ("gpt2", "bert", "t5") and draw.random() < 0.15,
        patience=draw.choice((0, 0, 0, 1, 2)),
        orders=tuple(_order(draw) for _ in range(draw.choice((0, 0, 1, 2, 4)))),
        overrides=tuple(draw.sample(OVERRIDES, draw.choice((0, 0, 1, 2)))),
    )
    return _ending(case if draw.random() < 0.125 else _made_sensible(case))


def _order(draw: random.Random) -> Order:
    return draw.choice(EVENTS), draw.randint(0, 6), (draw.choice(FLAGS),)


def _ending(case: Case) -> Case:
    """Return ``case`` with full windows: with none in a stream without length both trainers read it again for ever."""
    steps = case.fields.get("gradient_accumulation_steps", 1)
    full = max(1, case.rows // case.fields.get("per_device_train_batch_size", 4))
    if case.has_length or steps <= full:
        return case
    return Case(**{**vars(case), "fields": {**case.fields, "gradient_accumulation_steps": full}})


def _made_sensible(case: Case) -> Case:
    """Return ``case`` without what both trainers would refuse."""
    fields = dict(case.fields)
    steps, patience = case.steps, case.patience
    if any(step.startswith("resume") for step in steps) and fields.get("save_strategy", "no") == "no":
        fields["save_strategy"] = "steps"
        fields.setdefault("save_steps", 2)
    if not case.has_length and fields.get("max_steps", -1) < 1:
        fields["max_steps"] = 5
    if case.is_stream:
        fields.pop("group_by_length", None)
    if not case.evaluates:
        steps = tuple(step for step in steps if step not in ("evaluate", "predict")) or ("train",)
        _without_evaluation(fields)
        patience = 0
    elif _needs_evaluation(fields, patience):
        _with_evaluation(fields)
    if not case.metrics and fields.get("metric_for_best_model") == "mean":
        fields["metric_for_best_model"] = "loss"
    orders = case.orders
    if not case.evaluates:
        orders = tuple(order for order in orders if "should_evaluate" not in order[2])
    return Case(**{**vars(case), "fields": fields, "steps": steps, "patience": patience, "orders": orders})


def _needs_evaluation(fields: dict[str, Any], patience: int) -> bool:
    plateau = fields.get("lr_scheduler_type") == "reduce_lr_on_plateau"
    return bool(patience or plateau or fields.get("load_best_model_at_end") or fields.get("save_strategy") == "best")


def _without_evaluation(fields: dict[str, Any]) -> None:
    for name in ("eval_strategy", "eval_on_start", "load_best_model_at_end"):
        fields.pop(name, None)
    if fields.get("save_strategy") == "best":
        fields["save_strategy"] = "epoch"
    if fields.get("lr_scheduler_type") == "reduce_lr_on_plateau":
        fields["lr_scheduler_type"] = "cosine"


def _with_evaluation(fields: dict[str, Any]) -> None:
    if fields.get("eval_strategy", "no") == "no":
        fields["eval_strategy"] = "epoch"
    fields.setdefault("metric_for_best_model", "loss")
    if fields.get("save_strategy") == "best" or not fields.get("load_best_model_at_end"):
        return
    fields["save_strategy"] = fields["eval_strategy"]
    if fields["eval_strategy"] == "steps":
        fields["eval_steps"] = fields["save_steps"] = fields.get("eval_steps", 2)
