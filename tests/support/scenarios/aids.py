"""Aids to see what a run does: memory, overflow, determinism; and the evaluations of earlier releases."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import accuracy, classifier, language_model, plain
from tests.support.scenarios.updates import train

# Memory and overflow


@scenario()
def memory_metrics(kit: Kit) -> None:
    """The same names in the same order; nothing of an evaluation inside the training."""
    sets = {name: helpers.ListDataset(helpers.vector_rows(5)) for name in ("near", "far")}
    trainer = plain(kit, fields={"skip_memory_metrics": False, "eval_strategy": "epoch"}, eval_dataset=sets)
    reports = {
        "train": trainer.train().metrics,
        "evaluate": trainer.evaluate(),
        "predict": trainer.predict(sets["far"], metric_key_prefix="last").metrics,
    }
    for name, metrics in reports.items():
        kit.keep(name, metrics)
        kit.keep(f"{name}, order", list(metrics))
    kit.keep("logs", trainer.state.log_history)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        trainer.log_metrics("train", {"train_mem_cpu_alloc_delta": 3 << 20, "train_loss": 1.0})
    kit.keep("printed", printed.getvalue())


@scenario()
def overflow_is_reported(kit: Kit) -> None:
    """Detected in the same forward pass of the same module, after the same frames."""
    fields = {"debug": "underflow_overflow", "learning_rate": 1e38, "max_grad_norm": 0.0}
    trainer = plain(kit, fields=fields)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(ValueError):
        trainer.train()
    frame = re.compile(r" *(\d\.\d\de[+-]\d\d|inf|nan|None|not a tensor)|^ {8,}\S+ [A-Z]\w+$")
    kit.keep("frames", [line.split() for line in printed.getvalue().splitlines() if frame.match(line)])
    kit.keep("global_step", trainer.state.global_step)


@scenario()
def overflow_is_looked_for(kit: Kit) -> None:
    """A run without an overflow is not changed by looking for one."""
    train(kit, plain(kit, fields={"debug": "underflow_overflow", "eval_strategy": "epoch"}))


@scenario()
def full_determinism(kit: Kit) -> None:
    trainer = plain(kit, fields={"full_determinism": True, "eval_strategy": "epoch"})
    kit.keep("deterministic", torch.are_deterministic_algorithms_enabled())
    train(kit, trainer)


@scenario()
def emptied_caches(kit: Kit) -> None:
    train(kit, plain(kit, fields={"torch_empty_cache_steps": 2}))


# Evaluation


@scenario()
def gathered_as_objects(kit: Kit) -> None:
    train(kit, classifier(kit, fields={"eval_use_gather_object": True, "eval_strategy": "epoch"}))


@scenario()
def half_precision_evaluation_in_fp16(kit: Kit) -> None:
    trainer = classifier(kit, fields={"fp16_full_eval": True})
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)


@scenario(until="5.0")
def memory_of_the_model(kit: Kit) -> None:
    """What XLNet remembers of a batch it is given with the next: in training, evaluation and prediction."""
    rows = [{**row, "input_ids": row["input_ids"][:3]} for row in helpers.labelled_rows(12)]
    given = {"train_dataset": helpers.ListDataset(rows), "eval_dataset": helpers.ListDataset(rows[:6])}
    fields = {"past_index": 2, "eval_strategy": "epoch", "num_train_epochs": 2, "save_strategy": "epoch"}
    trainer = classifier(kit, fields=fields, model=kit.model(_xlnet), compute_metrics=None, **given)
    kit.train(trainer)
    kit.evaluate(trainer)
    kit.predict(trainer, helpers.ListDataset([{"input_ids": row["input_ids"]} for row in rows[:6]]))
    kit.keep("forgotten", getattr(trainer, "_past", None) is None)


@scenario(until="5.0")
def legacy_loop(kit: Kit) -> None:
    """The older loop preprocesses nothing, joins always and keeps everything."""

    def best(logits: Tensor, labels: Tensor) -> Tensor:
        return logits.argmax(dim=-1)

    def metrics(prediction: Any) -> dict[str, float]:
        logits, labels, inputs, losses = prediction
        return {"hits": float((logits.argmax(-1) == labels).mean()), "ids": float(inputs.sum()), "worst": losses.max()}

    fields = {
        "use_legacy_prediction_loop": True,
        "eval_strategy": "epoch",
        "eval_do_concat_batches": False,
        "eval_accumulation_steps": 2,
        "include_for_metrics": ["inputs", "loss"],
    }
    trainer = classifier(kit, fields=fields, preprocess_logits_for_metrics=best, compute_metrics=metrics)
    train(kit, trainer)
    kit.keep("loop", trainer.prediction_loop(trainer.get_eval_dataloader(), "Evaluation", metric_key_prefix="own"))


@scenario(until="5.0")
def legacy_loop_of_ragged_batches(kit: Kit) -> None:
    def shapes(prediction: Any) -> dict[str, float]:
        return {"scored": float((prediction.label_ids != -100).sum()), "width": prediction.predictions.shape[1]}

    fields = {"use_legacy_prediction_loop": True, "eval_strategy": "epoch"}
    trainer = language_model(kit, fields=fields, compute_metrics=shapes)
    train(kit, trainer)
    trainer.compute_metrics = None
    kit.evaluate(trainer)


@scenario(until="5.0")
def legacy_loop_batch_by_batch(kit: Kit) -> None:
    found: list[float] = []

    def metrics(prediction: Any, compute_result: bool) -> dict[str, float]:
        found.append(float(prediction.inputs.sum()) + float((prediction.predictions.argmax(-1)).sum()))
        return {"sum": float(np.sum(found))} if compute_result else {}

    fields = {"use_legacy_prediction_loop": True, "batch_eval_metrics": True, "include_for_metrics": ["inputs"]}
    trainer = classifier(kit, fields=fields, compute_metrics=metrics)
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)


@scenario(until="5.0")
def traced_evaluation(kit: Kit) -> None:
    """Evaluations run a frozen trace of the model, made anew each time; training does not."""
    for fields in ({}, {"bf16": True}):
        trainer = _of_equal_rows(kit, {**fields, "jit_mode_eval": True, "eval_strategy": "epoch"})
        train(kit, trainer)
        kit.predict(trainer, trainer.eval_dataset)


@scenario(until="5.0")
def traced_evaluation_before_training(kit: Kit) -> None:
    trainer = _of_equal_rows(kit, {"jit_mode_eval": True})
    kit.keep("order", list(trainer.evaluate()))


def _of_equal_rows(kit: Kit, fields: dict[str, Any]) -> Any:
    rows = [{**row, "input_ids": row["input_ids"][:3]} for row in helpers.labelled_rows(12)]
    data = helpers.ListDataset(rows)
    return classifier(kit, fields=fields, train_dataset=data, eval_dataset=data, compute_metrics=accuracy)


def _xlnet() -> Any:
    from transformers import XLNetConfig, XLNetForSequenceClassification

    sizes = {"vocab_size": helpers.VOCABULARY, "d_model": helpers.WIDTH, "n_layer": 2, "n_head": 2, "d_inner": 16}
    config = XLNetConfig(**sizes, num_labels=helpers.CLASSES, mem_len=4, use_mems_train=True)
    return XLNetForSequenceClassification(config)
