"""Methods that a subclass may override, and calls of overrides written for any release."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from hf_compat.errors import OverrideError, TrainerSetupError, described, warn_user

_LOOP = "Lightning runs the loop; override `training_step` or `_maybe_log_save_evaluate`, or add a callback"
_PARALLEL = "hf_compat's strategies do this; remove the method, or pass a strategy in `lightning={'strategy': ...}`"
_HARDWARE = "that hardware or package is not supported; remove the method"

NEVER_CALLED: dict[str, str] = {
    "_add_sm_patterns_to_gitignore": _HARDWARE,
    "_build_accelerator_args": "override `create_accelerator_and_postprocess`, or pass `lightning={...}`",
    "_deepspeed_sp_compute_loss": _PARALLEL,
    "_defer_fsdp_gradient_reduction": _PARALLEL,
    "_fsdp_qlora_plugin_updates": _PARALLEL,
    "_gather_and_numpify": "set `gather_function`, or override `evaluation_loop`",
    "_has_mixed_mesh_grads": _PARALLEL,
    "_is_attention_mask_causal": _PARALLEL,
    "_mixed_mesh_grad_norm": _PARALLEL,
    "_nested_gather": "set `gather_function`, or override `evaluation_loop`",
    "_prepare_for_training": "override `create_optimizer`, `create_scheduler` or `_wrap_model`",
    "_run_epoch": _LOOP,
    "_sorted_checkpoints": "override `_rotate_checkpoints`",
    "_sync_replicated_trainable_parameters": _PARALLEL,
    "_update_auto_batch_size": "override `_inner_training_loop`, which gets the batch size",
    "get_cp_size": _PARALLEL,
    "get_sp_size": _PARALLEL,
    "get_tp_size": _PARALLEL,
    "init_git_repo": "git repositories are not supported; remove the method",
    "ipex_optimize_model": _HARDWARE,
    "propagate_args_to_deepspeed": _PARALLEL,
}
"""Methods that only upstream calls, to what a subclass should do instead."""


_OF_LIGHTNING = {"fit": "train()", "validate": "evaluate()", "test": "predict(test_dataset)"}
"""Methods of a ``lightning.Trainer``, to what is called here instead."""


def refuse_overrides_never_called(kind: type) -> None:
    """Raise if the Trainer class ``kind`` overrides a method that hf_compat never calls.

    Raises:
        TrainerSetupError: If it does; it lists all such methods.
    """
    others = [cls for cls in kind.__mro__ if not cls.__module__.startswith("hf_compat.")]
    found = [name for name in NEVER_CALLED if any(name in vars(cls) for cls in others)]
    if found:
        advice = "".join(f"\n  `{name}`: {NEVER_CALLED[name]}." for name in found)
        raise TrainerSetupError(f"`{kind.__name__}` overrides methods that hf_compat never calls:{advice}")


def explain_missing(trainer: object, name: str) -> Any:
    """Raise the error for an attribute that ``trainer`` lacks, with what stands in its place.

    Raises:
        AttributeError: Always.
    """
    if name in NEVER_CALLED:
        raise AttributeError(f"`{name}` is not a method of this Trainer: {NEVER_CALLED[name]}.")
    if name == "strategy":
        raise AttributeError(
            "`strategy` is an attribute of `trainer.lightning_trainer`, not of this Trainer. Under Ray none is needed: "
            "use `ray.train.huggingface.transformers.prepare_trainer`, not `ray.train.lightning.prepare_trainer`."
        )
    if name in _OF_LIGHTNING:
        raise AttributeError(
            f"`{name}` is a method of a `lightning.Trainer`. Call `{_OF_LIGHTNING[name]}`, or take the run apart with "
            "`hf_compat.to_lightning`."
        )
    if name == "lightning_backend":
        kind = type(trainer).__name__
        raise AttributeError(f"`{kind}.__init__` has not called `super().__init__(...)`. Call it first.")
    return object.__getattribute__(trainer, name)  # raises again, naming what was missing


_OURS: set[FunctionType] = set()
"""Functions of this package that were asked for, as they are at every batch. No closures: they may hold a Trainer."""


def is_overridden(function: object) -> bool:
    """Return whether ``function`` is of someone else, of a subclass or a callback, and not defined in this package.

    A wrapper of someone else's that ``functools.wraps`` has given the names of ours is theirs.
    """
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is FunctionType and function in _OURS:
        return False
    is_from_here = str(getattr(function, "__module__", "")).startswith("hf_compat.")
    is_ours = is_from_here and not hasattr(function, "__wrapped__")
    if is_ours and isinstance(function, FunctionType) and function.__closure__ is None:
        _OURS.add(function)
    return not is_ours


def check_returned(fits: bool, value: object, method: str, wanted: str) -> None:
    """Raise unless what an override returned fits.

    Args:
        fits: Whether it does.
        value: What it returned.
        method: The name of the method.
        wanted: What it has to return, for the message.

    Raises:
        OverrideError: If it does not fit.
    """
    if not fits:
        raise OverrideError(f"`{method}` returned {described(value)}. Return {wanted}.")


def check_is_module(value: Any, method: str) -> None:
    """Raise unless what an override returned is a model, or stands for one.

    Args:
        value: What it returned.
        method: The name of the method.

    Raises:
        OverrideError: If it is none.
    """
    is_module = not isinstance(value, type) and callable(value) and callable(getattr(value, "zero_grad", None))
    check_returned(is_module, value, method, "the model, wrapped or not")


class WarnOnce:
    """Gives each warning once in its lifetime, whatever Python's filters say: called, as one of Python's."""

    def __init__(self) -> None:
        self._messages: set[str] = set()

    def __call__(self, message: str) -> None:
        """Warn of ``message``, a ``HFCompatWarning`` at the user's line, unless that was done before."""
        if self._is_new(message):
            warn_user(message)

    def in_log(self, log: logging.Logger, message: str) -> None:
        """Warn of ``message`` in ``log``, whose level decides whether it is seen, unless that was done before."""
        if self._is_new(message):
            log.warning("%s", message)

    def _is_new(self, message: str) -> bool:
        is_new = message not in self._messages
        self._messages.add(message)
        return is_new


@dataclass(frozen=True, slots=True)
class _Signature:
    """The parameters of a method."""

    by_position: tuple[str, ...]
    required: frozenset[str]
    known: frozenset[str]
    takes_any_position: bool
    takes_any_name: bool

    def takes(self, positions: int, names: Collection[str]) -> bool:
        """Return whether the method can be called with so many arguments by position, and those names by keyword."""
        filled = self.by_position[:positions]
        fits = self.takes_any_position or len(filled) == positions
        return fits and self.required <= {*filled, *names} and not any(name in filled for name in names)


def _signature(function: Callable[..., Any], *, is_bound: bool) -> _Signature:
    parameters = list(inspect.signature(function).parameters.values())
    if is_bound and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    kinds = {parameter.kind for parameter in parameters}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [parameter for parameter in parameters if parameter.kind not in variable]
    simple = [parameter for parameter in named if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    return _Signature(
        by_position=tuple(parameter.name for parameter in simple),
        required=frozenset(parameter.name for parameter in named if parameter.default is inspect.Parameter.empty),
        known=frozenset(parameter.name for parameter in parameters),
        takes_any_position=inspect.Parameter.VAR_POSITIONAL in kinds,
        takes_any_name=inspect.Parameter.VAR_KEYWORD in kinds,
    )


def call_override(method: Callable[..., Any], names: str = "", *args: Any, **named: Any) -> Any:
    """Call ``method``, perhaps an override for another release, with the parameters it has; return its result.

    If it can be called as upstream calls it, it is, whatever its parameters are named. Otherwise arguments without a
    parameter are not passed, and positional ones by keyword if that is how they find their parameters.

    Args:
        method: A method of a Trainer, or a function assigned to one.
        names: Upstream's names of the parameters that get ``args``, with spaces between them.
        *args: Upstream's positional arguments.
        **named: Upstream's keyword arguments.
    """
    if not is_overridden(method):
        return method(*args, **named)
    function, positional = getattr(method, "__func__", method), tuple(names.split())
    call = _call_of(function, function is not method, positional, tuple(named))
    if call.is_upstreams:
        return method(*args, **named)
    if call.positions < len(args):
        named = {**dict(zip(positional, args, strict=True)), **named}
    return method(*args[: call.positions], **{name: named[name] for name in call.names})


@dataclass(frozen=True, slots=True)
class _Call:
    """The way in which a method gets the arguments that upstream passes."""

    positions: int
    """Number of the arguments that are passed by position, the first ones."""
    names: tuple[str, ...]
    """Those that are passed by keyword."""
    is_upstreams: bool = False
    """Whether all of them are passed as upstream passes them."""


_CALLS: WeakKeyDictionary[FunctionType, dict[tuple[Any, ...], _Call]] = WeakKeyDictionary()
"""What was found of each override; weakly, since a function of a script may hold the Trainer that it is assigned to."""


def _call_of(
    function: Callable[..., Any], is_bound: bool, positional: tuple[str, ...], named: tuple[str, ...]
) -> _Call:
    if not isinstance(function, FunctionType):
        return _find_call(function, is_bound, positional, named)
    known, key = _CALLS.setdefault(function, {}), (is_bound, positional, named)
    if key not in known:
        known[key] = _find_call(function, is_bound, positional, named)
    return known[key]


def _find_call(
    function: Callable[..., Any], is_bound: bool, positional: tuple[str, ...], named: tuple[str, ...]
) -> _Call:
    signature = _signature(function, is_bound=is_bound)
    if positional[:2] == ("model", "inputs") and "batch_idx" in signature.by_position[:2]:
        raise OverrideError(
            f"`{function.__qualname__}({', '.join(signature.by_position)})` has the parameters of a LightningModule's. "
            f"A Trainer's is another method: take `{', '.join([*positional, *named])}`."
        )
    passed = named if signature.takes_any_name else tuple(name for name in named if name in signature.known)
    if signature.takes(len(positional), passed):
        return _Call(len(positional), passed, is_upstreams=passed == named)
    found = tuple(dict.fromkeys([*(name for name in positional if name in signature.known), *passed]))
    return _Call(0, found) if signature.takes(0, found) else _Call(len(signature.by_position), passed)
