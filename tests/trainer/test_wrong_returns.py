"""Overrides that return what cannot be used: one sentence names the method, in an error of upstream's type too."""

import contextlib

import pytest
import torch
import transformers

import hf_compat
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.errors import MetricsError, OverrideError, StateValueError
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import arguments, new_trainer

NOTHING = [None, 5, object()]
"""What a method returns that forgets to return, or returns another thing."""
RETURNED = {
    "_activate_neftune": [*NOTHING, torch.ones(2)],
    "_get_collator_with_removed_columns": [5, object(), []],
    "_get_eval_sampler": [5, object()],
    "_get_output_dir": [None, 5, ["out"]],
    "_get_train_sampler": [5, object()],
    "_init_training_state": [*NOTHING, (None, None), (1, 0)],
    "_prepare_context_parallel_inputs": [*NOTHING, (None, {}), {"a": 1, "b": 2}],
    "_prepare_input": NOTHING,
    "_wrap_model": [*NOTHING, PlainModel],
    "autocast_smart_context_manager": [*NOTHING, contextlib.nullcontext],
    "call_model_init": [None],
    "compute_loss_context_manager": [*NOTHING, contextlib.nullcontext],
    "floating_point_ops": [None, object(), []],
    "get_decay_parameter_names": [None, 5],
    "get_optimizer_cls_and_kwargs": [*NOTHING, torch.optim.SGD, ("sgd", {}), (torch.optim.SGD, None)],
    "get_total_train_batch_size": [None, object(), "8"],
    "set_initial_training_values": [*NOTHING, (1, 2, 3)],
}
"""Methods of the Trainer and what an override of each cannot return."""
NEEDED = {
    "_activate_neftune": {"neftune_noise_alpha": 1.0},
    "_get_eval_sampler": {"eval_strategy": "steps", "eval_steps": 1},
}
"""Fields without which the method is not called."""
CASES = [
    pytest.param(name, value, id=f"{name} {position} {type(value).__name__}")
    for name, values in RETURNED.items()
    for position, value in enumerate(values)
]


def error_of(library, folder, name, value):
    """Return the error with which a run ends whose Trainer's method ``name`` returns ``value``."""
    function = lambda *_, **__: value  # noqa: E731
    wrapped = staticmethod(function) if name == "get_optimizer_cls_and_kwargs" else function
    kind = type("Returns", (library.Trainer,), {name: wrapped})
    fields = {"max_steps": 2, "save_steps": 1, "logging_steps": 1, **NEEDED.get(name, {})}
    args = arguments(folder, library, **fields)
    rows = ListDataset(vector_rows(8))
    models = {"model_init": PlainModel} if name == "call_model_init" else {"model": PlainModel()}
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any, which is compared
        kind(args=args, train_dataset=rows, eval_dataset=rows, **models).train()
    return caught.value


@pytest.mark.parametrize(("name", "value"), CASES)
def test_what_cannot_be_used(name, value, tmp_path):
    """It ends the run of both libraries; here with what was returned and what to return."""
    error = error_of(hf_compat, tmp_path / "ours", name, value)
    kind = "None" if value is None else f"an object of type {type(value).__name__}"
    assert isinstance(error, OverrideError)
    assert str(error).startswith(f"`{name}` returned {kind}. Return ")
    is_taken = name == "_init_training_state" and value == (1, 0)  # there a run begins in the second epoch
    if hasattr(transformers.Trainer, name) and not is_taken:
        assert isinstance(error, type(error_of(transformers, tmp_path / "theirs", name, value)))


@pytest.mark.parametrize("library", [transformers, hf_compat], ids=lambda library: library.__name__)
@pytest.mark.parametrize("name", ["_get_train_sampler", "_get_eval_sampler"])
def test_no_sampler(library, name, tmp_path):
    """None is the loader's own order, in both libraries."""
    kind = type("Returns", (library.Trainer,), {name: lambda *_: None})
    trainer = new_trainer(tmp_path, kind, library=library, max_steps=2)
    trainer.train()
    assert "eval_loss" in trainer.evaluate()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("name", ["_wrap_model", "compute_loss_context_manager", "_prepare_context_parallel_inputs"])
def test_in_an_evaluation(name, tmp_path):
    """An evaluation without a training says the same."""
    kind = type("Returns", (hf_compat.Trainer,), {name: lambda *_, **__: None})
    with pytest.raises(OverrideError, match=f"`{name}` returned None. Return "):
        new_trainer(tmp_path, kind).evaluate()


def test_a_loop_that_was_assigned(tmp_path):
    """A function without a name of its own is named as the method that it replaces."""
    trainer = new_trainer(tmp_path)
    trainer.evaluation_loop = lambda *_, **__: None
    with pytest.raises(MetricsError, match="`evaluation_loop` returned None"):
        trainer.evaluate()


@pytest.mark.parametrize("library", [transformers, hf_compat], ids=lambda library: library.__name__)
def test_a_loss_that_is_no_scalar(library, tmp_path):
    """With one element in brackets it ends the run in its own batch, however rarely losses are logged."""
    kind = type("Brackets", (library.Trainer,), {"training_step": lambda *_, **__: torch.ones(1)})
    trainer = new_trainer(tmp_path, kind, library=library, max_steps=3, logging_steps=3)
    if resolve_semantics().sums_loss_in_float32:
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            trainer.train()
        assert trainer.state.global_step == 0
    else:
        trainer.train()
        assert trainer.state.log_history[0]["loss"] == 1


@pytest.mark.parametrize("library", [transformers, hf_compat], ids=lambda library: library.__name__)
def test_a_value_that_json_does_not_have(library, tmp_path):
    """A log with an object ends the save that writes it; here with what to log."""

    class Logs(library.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            state.log_history.append({"step": 1, "found": object()})

    trainer = new_trainer(tmp_path, library=library, callbacks=[Logs()], max_steps=1, save_steps=1)
    with pytest.raises(TypeError, match="of type object") as caught:
        trainer.train()
    if library is hf_compat:
        assert isinstance(caught.value, StateValueError)
        assert "Log numbers and texts" in str(caught.value)
