"""Each method of upstream's Trainer, called before a `train` or without one, does what upstream's does."""

from __future__ import annotations

import dataclasses
import inspect
import random
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

from hf_compat import Trainer
from hf_compat.errors import DataError, NoOptimizerError
from tests.support import helpers, parity
from tests.support.trainer_calls import CALLS, NEW, STEP, WHEN, Call

transformers = pytest.importorskip("transformers")
IS_OLD = Version(transformers.__version__).major < 5

NOT_OURS = {
    "train": "is the run itself",
    "_add_sm_patterns_to_gitignore": "SageMaker",
    "_build_accelerator_args": "accelerate's constructor",
    "_defer_fsdp_gradient_reduction": "FSDP of transformers",
    "_fsdp_qlora_plugin_updates": "FSDP of accelerate",
    "_gather_and_numpify": "an evaluation's loop before 4.5",
    "_has_mixed_mesh_grads": "several device meshes",
    "_is_attention_mask_causal": "context parallelism",
    "_mixed_mesh_grad_norm": "several device meshes",
    "_prepare_for_training": "a part of upstream's loop",
    "_run_epoch": "a part of upstream's loop",
    "_save_tpu": "TPUs",
    "_sync_replicated_trainable_parameters": "tensor parallelism of transformers",
    "_update_auto_batch_size": "a part of upstream's loop",
    "propagate_args_to_deepspeed": "DeepSpeed of accelerate",
}
"""Methods of upstream's that are not compared, and what they are for."""

WORKS_HERE: dict[str, type[Exception] | None] = {
    "_clip_grad_norm": None,  # a training step outside a run is one of a window of one batch
    "_finalize_training": None,  # the result of a run that made no step
    "_get_grad_norm": None,  # see `_clip_grad_norm`
    "_inner_training_loop": None,  # NEFTune's hook is the run's own
    "_load_best_model-without one": None,  # a warning, as for one that is gone
    "_maybe_log_save_evaluate-log": None,  # counts begin at zero
    "_maybe_log_save_evaluate-log again": None,
    "_maybe_log_save_evaluate-all": NoOptimizerError,  # there is none to save
    "_maybe_log_save_evaluate-all-with an optimizer": None,
    "_prepare_inputs-an empty one": DataError,  # upstream's error fails while it is put into words
    "_rotate_checkpoints-of the output folder": None,  # the folder may be left out
    "compare_trainer_and_checkpoint_args": None,  # a state without a batch size differs in nothing
    "log-with a start": None,  # counts begin at zero
    "metrics_format": None,  # upstream's can only be called on the class
    "training_step": None,  # see `_clip_grad_norm`
}
"""Calls that fail by accident under upstream's Trainer before a run, and the error of ours; None where ours work.

By the call, or by the call and when it is made.
"""
WORKS_IN_4 = {"log-with a start"}
"""Those that do not fail before transformers 5."""


def _new_trainer(kit: Any) -> Any:
    fields = {"num_train_epochs": 2, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": STEP}
    limits = {"save_total_limit": 1, "metric_for_best_model": "loss", "include_num_input_tokens_seen": True}
    torch.manual_seed(0)
    return kit.trainer(
        model=helpers.gpt2(),
        args=kit.args(**fields, **limits, neftune_noise_alpha=1.0),
        train_dataset=helpers.ListDataset(helpers.token_rows(10)),
        eval_dataset=helpers.ListDataset(helpers.token_rows(5, seed=1)),
        data_collator=helpers.PadCollator(),
        processing_class=helpers.tokenizer(),
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that upstream's Trainer wrote."""
    kit = parity.Kit("upstream", tmp_path_factory.mktemp("made"))
    with parity.clean_process(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _new_trainer(kit).train()
    return Path(kit.output_dir, f"checkpoint-{STEP * 2}")


def _before(trainer: Any, when: str) -> None:
    """Bring a new Trainer to where the method is called."""
    if when == "with an optimizer":
        trainer.create_optimizer_and_scheduler(10)
    elif when == "after an evaluation":
        trainer.evaluate()


def _done(which: str, call: Call, when: str, folder: Path, checkpoint: Path) -> dict[str, Any]:
    """Return what ``call`` does to a new Trainer of the library ``which``."""
    kit = parity.Kit(which, folder / which)  # type: ignore[arg-type]
    copies = [Path(kit.output_dir, f"checkpoint-{step}") for step in (STEP, 2 * STEP)]
    for copy in copies:
        shutil.copytree(checkpoint, copy)
    bench = SimpleNamespace(kit=kit, checkpoint=str(copies[-1]), nowhere=str(folder / which / "nowhere"))
    bench.elsewhere = str(folder / which / "elsewhere")
    outcome: dict[str, Any] = {}
    with parity.clean_process(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        random.seed(0)
        np.random.seed(0)
        trainer = _new_trainer(kit)
        _before(trainer, when)
        try:
            outcome["result"] = _plain(kit, call(trainer, bench))
        except Exception as error:
            outcome["raised"] = error
        if which == "ours":
            trainer.checkpoint_writer.end_run()  # as `train` does, of which this may be a part
        outcome["random"] = parity._checksum(torch.get_rng_state())
        state = dataclasses.asdict(trainer.state)
        state.pop("stateful_callbacks")
        outcome["state"] = kit.plain(state)
        outcome["weights"] = kit.plain(trainer.model.state_dict())
        outcome["files"] = sorted(
            str(path.relative_to(kit.output_dir))
            for path in Path(kit.output_dir).rglob("*")
            if not path.name.startswith("lightning.")
        )
    return outcome


def _plain(kit: Any, value: Any) -> Any:
    if isinstance(value, Tensor) or value is None:
        return kit.plain(value)
    if isinstance(value, nn.Module):
        return "a model"
    if isinstance(value, dict):
        return {key: "<time>" if parity.TIME.search(str(key)) else _plain(kit, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(kit, item) for item in value]
    value = kit.plain(value)
    return value if isinstance(value, bool | int | float | str | Tensor) else type(value).__name__


ROWS = [
    pytest.param(name, call, when, id="-".join(part for part in (name, kind, when) if part))
    for name, row in CALLS.items()
    for kind, call in (row.items() if isinstance(row, dict) else [("", row)])
    for when in WHEN.get(name, NEW)
]


def _row_of(name: str, when: str) -> str | None:
    """Return the row of ``WORKS_HERE`` for a row of ``ROWS`` by its name."""
    return next((row for row in (name, name.removesuffix(f"-{when}")) if row in WORKS_HERE), None)


def test_every_exception_is_that_of_a_call() -> None:
    """No row of ``WORKS_HERE`` names what is never called."""
    called = {_row_of(str(row.id), str(row.values[-1])) for row in ROWS}
    assert called - {None} == set(WORKS_HERE)


def test_every_method_of_the_installed_release_has_a_row() -> None:
    """Those without one are named, with what they are for."""
    kinds = (staticmethod, classmethod, property)
    theirs = {
        name
        for name, value in vars(transformers.Trainer).items()
        if not name.startswith("__") and (inspect.isfunction(value) or isinstance(value, kinds))
    }
    assert theirs - CALLS.keys() == theirs & NOT_OURS.keys()
    assert not CALLS.keys() & NOT_OURS.keys()


@pytest.mark.parametrize(("name", "call", "when"), ROWS)
def test_a_call_without_training(
    name: str, call: Call, when: str, request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path
) -> None:
    """Result, state, weights, random state and files are those of upstream's; errors are of its type."""
    if not hasattr(transformers.Trainer, name):
        pytest.skip(f"the installed release has no `{name}`")
    theirs, ours = (_done(which, call, when, tmp_path, checkpoint) for which in ("upstream", "ours"))
    expected, raised = theirs.pop("raised", None), ours.pop("raised", None)
    row = _row_of(request.node.callspec.id, when)
    if row is not None and not (row in WORKS_IN_4 and IS_OLD):
        assert expected is not None, f"`WORKS_HERE[{row!r}]` is of no use: upstream's call works"
        assert type(raised) is (WORKS_HERE[row] or type(None)), f"{raised!r}"
    elif expected is not None:
        assert isinstance(raised, type(expected)), f"{raised!r} is not as {expected!r}"
    else:
        assert raised is None, f"only ours raises: {raised!r}"
        assert list(parity.compare(theirs, ours, name)) == []


def test_a_method_of_upstreams_loop_says_what_to_do_instead() -> None:
    """Methods that ours does not have are missing, and the error says what stands in their place."""
    trainer = object.__new__(Trainer)
    assert not hasattr(trainer, "_run_epoch")
    with pytest.raises(AttributeError, match="Lightning runs the loop; override `training_step`"):
        trainer._run_epoch()
    with pytest.raises(AttributeError, match="has no attribute 'no_such_thing'"):
        trainer.no_such_thing  # noqa: B018 - an access that is no call
