"""Input tokens: when they are counted, and what counting them ahead of training draws from the random generators."""

from __future__ import annotations

from typing import Any

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import language_model, plain
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.updates import ACCUMULATION, train

PER_SECOND = {**ACCUMULATION, "include_tokens_per_second": True}


def _telling(kit: Kit) -> Any:
    """Return a callback that keeps the tokens counted at each event within an update step."""

    class Tells(kit.TrainerCallback):  # type: ignore[misc, name-defined]  # the base is the kit's
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            kit.keep("tokens", state.num_input_tokens_seen)

        on_substep_end = on_pre_optimizer_step = on_step_end = on_epoch_end = on_step_begin

    return Tells()


@scenario()
def tokens_at_each_event(kit: Kit) -> None:
    """4.57 counts a batch before it is trained on, 5.x after it."""
    fields = {**ACCUMULATION, "num_train_epochs": 2, "include_num_input_tokens_seen": True}
    train(kit, language_model(kit, fields=fields, callbacks=[_telling(kit)]))


@scenario()
def tokens_but_padding_at_each_event(kit: Kit) -> None:
    fields = {**ACCUMULATION, "include_num_input_tokens_seen": "non_padding"}
    train(kit, language_model(kit, fields=fields, callbacks=[_telling(kit)]))


@scenario()
def tokens_when_training_stops_within_a_window(kit: Kit) -> None:
    """The batches that are not trained on are not counted."""

    class Stops(kit.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 1

    fields = {**ACCUMULATION, "include_num_input_tokens_seen": "all"}
    trainer = language_model(kit, fields=fields, callbacks=[Stops(), _telling(kit)])
    kit.train(trainer)


@scenario()
def resume_with_tokens_counted(kit: Kit) -> None:
    fields = {**ACCUMULATION, "num_train_epochs": 2, "include_num_input_tokens_seen": "all"}
    resume(kit, lambda each: language_model(each, fields={**fields, "save_strategy": "steps", "save_steps": 1}), 2)


@scenario(until="5.0")
def tokens_per_second_by_epochs(kit: Kit) -> None:
    """The pass over the loader draws the noise of a whole epoch."""
    fields = {**PER_SECOND, "num_train_epochs": 1.5}
    train(kit, language_model(kit, fields=fields, data_collator=helpers.NoisyCollator()))


@scenario(until="5.0")
def tokens_per_second_by_steps(kit: Kit) -> None:
    """One batch, and the one that is loaded ahead of it."""
    train(kit, language_model(kit, fields={**PER_SECOND, "max_steps": 4}, data_collator=helpers.NoisyCollator()))


@scenario(until="5.0")
def tokens_per_second_by_length(kit: Kit) -> None:
    """Here the order of the samples is drawn from the global generator."""
    fields = {**PER_SECOND, "num_train_epochs": 2, "group_by_length": True, "include_num_input_tokens_seen": True}
    train(kit, language_model(kit, fields=fields))


@scenario(until="5.0")
def tokens_per_second_of_a_stream(kit: Kit) -> None:
    data = helpers.Stream(helpers.token_rows(14))
    train(kit, language_model(kit, fields={**PER_SECOND, "max_steps": 6}, train_dataset=data))


@scenario(until="5.0")
def tokens_per_second_with_workers(kit: Kit) -> None:
    """The workers of the pass live on, and draw the epochs' samples too."""
    workers = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    train(kit, language_model(kit, fields={**PER_SECOND, **workers, "num_train_epochs": 2}))


@scenario(until="5.0")
def tokens_per_second_without_tokens(kit: Kit) -> None:
    """Batches without ``input_ids`` end the pass at the first one."""
    train(kit, plain(kit, fields={**PER_SECOND, "num_train_epochs": 2}))


@scenario(until="5.0")
def resume_with_tokens_per_second(kit: Kit) -> None:
    fields = {**PER_SECOND, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1}
    build = {"fields": fields, "data_collator": helpers.NoisyCollator()}
    resume(kit, lambda each: language_model(each, **build), 2)
