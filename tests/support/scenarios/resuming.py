"""A run that goes on from a checkpoint of another run, of either library."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, language_model, plain
from tests.support.scenarios.updates import ACCUMULATION

Build = Callable[[Kit], Any]


def resume(kit: Kit, build: Build, step: int) -> Any:
    """Train to the end, then go on from ``checkpoint-<step>`` of that run in a new trainer and folder."""
    folder = kit.stage(lambda first: first.train(build(first)))
    trainer = build(kit)
    kit.train(trainer, resume_from_checkpoint=f"{folder}/checkpoint-{step}")
    kit.evaluate(trainer)
    return trainer


def _accumulating(kit: Kit) -> Any:
    fields = {**ACCUMULATION, "num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 9}
    return language_model(kit, fields={**fields, "eval_strategy": "steps", "eval_steps": 2})


@scenario(resumes_exactly=True)
def resume_within_an_epoch(kit: Kit) -> None:
    resume(kit, _accumulating, 5)


@scenario(resumes_exactly=True)
def resume_within_the_first_epoch(kit: Kit) -> None:
    resume(kit, _accumulating, 1)


@scenario(resumes_exactly=True)
def resume_at_an_epoch_boundary(kit: Kit) -> None:
    resume(kit, _accumulating, 6)


@scenario()
def resume_a_finished_run(kit: Kit) -> None:
    resume(kit, _accumulating, 9)


@scenario(resumes_exactly=True)
def resume_with_intervals_that_are_not_used(kit: Kit) -> None:
    unused = {"logging_strategy": "epoch", "logging_steps": -1, "eval_strategy": "no", "eval_steps": 0, "save_steps": 0}
    fields = {**ACCUMULATION, "num_train_epochs": 3, "save_strategy": "epoch", **unused}
    resume(kit, lambda each: plain(each, fields=fields), 3)


@scenario(resumes_exactly=True)
def resume_a_plain_module(kit: Kit) -> None:
    fields = {**ACCUMULATION, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1}
    resume(kit, lambda each: plain(each, fields=fields), 2)


@scenario(resumes_exactly=True)
def resume_with_random_draws_in_the_collator(kit: Kit) -> None:
    fields = {"num_train_epochs": 2, "save_strategy": "epoch"}
    resume(kit, lambda each: language_model(each, fields=fields, data_collator=helpers.NoisyCollator()), 4)


@scenario()
def resume_within_an_epoch_with_random_draws_in_the_collator(kit: Kit) -> None:
    """The batches that are skipped are collated, too, so the run does not end where the whole one did."""
    fields = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    resume(kit, lambda each: language_model(each, fields=fields, data_collator=helpers.NoisyCollator()), 3)


@scenario(resumes_exactly=True)
def resume_with_workers(kit: Kit) -> None:
    fields = {"dataloader_num_workers": 2, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    resume(kit, lambda each: language_model(each, fields=fields), 3)


@scenario(resumes_exactly=True)
def resume_a_gradient_scaler(kit: Kit) -> None:
    """On the CPU, where float16 is to be had of neither library by an argument: the first update steps overflow."""
    fields = {**ACCUMULATION, "num_train_epochs": 4, "save_strategy": "steps", "save_steps": 1}
    trainer = resume(kit, lambda each: _scaled(each, fields), 4)
    kit.keep("scaler", trainer.scaler.state_dict())
    finite = [math.isfinite(entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]
    for steps in (finite[:4], finite[4:]):  # before and after the run is gone on with some are skipped, some not
        assert sorted(set(steps)) == [False, True]


def _scaled(kit: Kit, fields: dict[str, Any]) -> Any:
    """Return a Trainer whose gradients are scaled, at first by too much."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)

    class Float16(kit.Trainer):  # type: ignore[misc,name-defined]
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            if kit.which == "upstream":
                self.accelerator.state._mixed_precision = "fp16"
                self.accelerator.native_amp, self.accelerator.scaler = True, scaler

    given = {} if kit.which == "upstream" else {"lightning": {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}}
    trainer = language_model(kit, subclass=Float16, fields=fields, **given)
    trainer.scaler = scaler
    return trainer


@scenario()
def resume_without_skipping(kit: Kit) -> None:
    fields = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2, "ignore_data_skip": True}
    resume(kit, lambda each: language_model(each, fields=fields), 2)


@scenario()
def resume_a_stream(kit: Kit) -> None:
    fields = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}
    data = helpers.Stream(helpers.token_rows(14))
    resume(kit, lambda each: language_model(each, fields=fields, train_dataset=data), 2)


@scenario()
def resume_grouped_by_length(kit: Kit) -> None:
    fields = {"group_by_length": True, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    resume(kit, lambda each: language_model(each, rows=30, fields=fields), 3)


@scenario(warns="makes one extra step")
def resume_max_steps(kit: Kit) -> None:
    """A run that ``max_steps`` ended within an epoch makes one more update."""
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    resume(kit, lambda each: language_model(each, fields=fields), 2)


def _cut_short(kit: Kit, **fields: Any) -> Any:
    """Return a Trainer whose first epoch a callback ends after two of its update steps."""
    chosen = {**ACCUMULATION, "num_train_epochs": 4, "save_strategy": "steps", "save_steps": 1, **fields}
    stopper = helpers.control_callback(kit.TrainerCallback, {("on_step_end", 2): ("should_epoch_stop",)})
    return language_model(kit, fields=chosen, callbacks=[stopper])


@scenario(warns="ended early", warns_of_own=True)
def resume_after_an_epoch_that_ended_early(kit: Kit) -> None:
    """The place in the data is taken from the number of update steps, the plan from the arguments."""
    resume(kit, _cut_short, 4)


@scenario(warns="ended early", warns_of_own=True)
def resume_where_an_epoch_ended_early(kit: Kit) -> None:
    resume(kit, lambda each: _cut_short(each, max_steps=9), 2)


@scenario(warns="ended early", warns_of_own=True)
def resume_in_what_was_the_last_epoch(kit: Kit) -> None:
    """More update steps are made than by the run that was not interrupted."""
    resume(kit, lambda each: _cut_short(each, num_train_epochs=2, save_strategy="epoch"), 2)


@scenario()
def resume_with_other_intervals(kit: Kit) -> None:
    """Intervals come from the checkpoint, not from the arguments."""
    cadence = {"save_strategy": "steps", "eval_strategy": "steps"}

    def build(each: Kit, every: int) -> Any:
        fields = {**cadence, "num_train_epochs": 3, "save_steps": every, "eval_steps": every, "logging_steps": every}
        return language_model(each, fields=fields)

    folder = kit.stage(lambda first: first.train(build(first, 2)))
    kit.train(build(kit, 3), resume_from_checkpoint=f"{folder}/checkpoint-4")


@scenario()
def resume_for_longer(kit: Kit) -> None:
    """More epochs than the run that was interrupted had planned."""

    def build(each: Kit, epochs: int) -> Any:
        return language_model(each, fields={"num_train_epochs": epochs, "save_strategy": "epoch"})

    folder = kit.stage(lambda first: first.train(build(first, 1)))
    kit.train(build(kit, 3), resume_from_checkpoint=f"{folder}/checkpoint-4")


@scenario()
def resume_the_best_model(kit: Kit) -> None:
    """The best metric and its checkpoint are known to the run that goes on."""
    fields = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 4, "learning_rate": 0.1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": False}
    resume(kit, lambda each: classifier(each, fields={**fields, **best}), 8)


@scenario()
def resume_early_stopping(kit: Kit) -> None:
    """The stopper had lost patience once by then: the next evaluation is its last."""
    fields = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 8, "learning_rate": 0.1}
    best = {"metric_for_best_model": "loss", "load_best_model_at_end": True}
    kept = {"restore_callback_states_from_checkpoint": True}

    def build(each: Kit) -> Any:
        stopper = each.EarlyStoppingCallback(early_stopping_patience=2)
        return classifier(each, fields={**fields, **best, **kept}, callbacks=[stopper])

    resume(kit, build, 20)


@scenario()
def resume_the_last_checkpoint(kit: Kit) -> None:
    """``True`` finds the checkpoint with the largest number in the run's own folder."""
    fields = {"save_strategy": "steps", "save_steps": 2}
    kit.train(language_model(kit, fields={**fields, "max_steps": 5}))
    kit.train(language_model(kit, fields={**fields, "max_steps": 8}), resume_from_checkpoint=True)


@scenario()
def resume_without_optimizer(kit: Kit) -> None:
    """A checkpoint of the model alone: weights and counts go on, the optimizer starts anew."""
    fields = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2, "save_only_model": True}
    resume(kit, lambda each: language_model(each, fields=fields), 2)


@scenario()
def resume_without_random_state(kit: Kit) -> None:
    fields = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2}
    folder = kit.stage(lambda first: first.train(language_model(first, fields=fields)))
    Path(folder, "checkpoint-2", "rng_state.pth").unlink()
    kit.train(language_model(kit, fields=fields), resume_from_checkpoint=f"{folder}/checkpoint-2")


@scenario(resumes_exactly=True)
def resume_sharded_weights(kit: Kit) -> None:
    """Weights in several files with an index, as large models are saved."""
    fields = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}

    def build(each: Kit) -> Any:
        class Sharding(each.Trainer):
            def _save(self, output_dir=None, state_dict=None):
                super()._save(output_dir, state_dict)
                Path(output_dir, "model.safetensors").unlink()
                self.model.save_pretrained(output_dir, max_shard_size="10KB")

        return language_model(each, subclass=Sharding, fields=fields)

    resume(kit, build, 3)


@scenario(resumes_exactly=True)
def resume_a_schedule_that_goes_by_a_metric(kit: Kit) -> None:
    fields = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    fields |= {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 5, "learning_rate": 0.1}
    resume(kit, lambda each: classifier(each, fields={**fields, "metric_for_best_model": "loss"}), 12)


@scenario(resumes_exactly=True)
def resume_in_bf16(kit: Kit) -> None:
    fields = {**ACCUMULATION, "bf16": True, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1}
    resume(kit, lambda each: language_model(each, fields=fields), 2)
