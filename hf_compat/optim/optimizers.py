"""Optimizers by name."""

from __future__ import annotations

import difflib
import logging
import re
from ast import literal_eval
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from packaging.version import Version
from torch import Tensor, nn
from torch.optim import Optimizer

from hf_compat.arguments.releases import Semantics, resolve_semantics
from hf_compat.errors import (
    ArgumentsError,
    ArgumentTypesError,
    MissingPackageError,
    UnsupportedArgumentsError,
    is_installed,
    require_package,
)
from hf_compat.optim.classes import adafactor_class

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

logger = logging.getLogger(__name__)


# Inputs of an optimizer's builder: fields of `TrainingArguments` such as `optim_args`, the release, the model.


ClassAndKwargs = tuple[Callable[..., Any], dict[str, Any]]
"""An optimizer class, or a factory, and its keywords without the parameters and the learning rate."""

_FLAGS = {"y": 1, "yes": 1, "t": 1, "true": 1, "on": 1, "1": 1, "n": 0, "no": 0, "f": 0, "false": 0, "off": 0, "0": 0}


def plain_name(name: str | Enum) -> str:
    """Return the plain string of a name that may be an enum member, ours or transformers'."""
    return str(getattr(name, "value", name))


@dataclass(frozen=True, slots=True)
class OptimizerRequest:
    """Inputs from which a row of :data:`OPTIMIZERS` builds a class and its keywords."""

    name: str
    """The value of ``optim``."""
    settings: TrainingArguments
    options: dict[str, str]
    """The ``optim_args``, names to unparsed values."""
    semantics: Semantics
    model: nn.Module | None = None
    """The model to train; some optimizers are built from its modules."""

    @property
    def adam(self) -> dict[str, Any]:
        """The keywords of Adam and its variants."""
        settings = self.settings
        return {"betas": (settings.adam_beta1, settings.adam_beta2), "eps": settings.adam_epsilon}

    def load(self, module: str, attribute: str, *, extra: str) -> Callable[..., Any]:
        """Return ``attribute``, a class, of an optional ``module``.

        Raises:
            MissingPackageError: If it is not installed; ``extra`` installs it.
        """
        loaded: Callable[..., Any] = getattr(
            require_package(module, extra=extra, purpose=f"`optim={self.name!r}`"), attribute
        )
        return loaded


def parse_optim_args(text: str | None) -> dict[str, str]:
    """Return the names and values in ``text``, spaces removed.

    Raises:
        ArgumentsError: If ``text`` is not of the form ``name=value,name=value``.
    """
    values = {}
    for part in text.replace(" ", "").split(",") if text else ():
        name, _, value = part.partition("=")
        if not name or not value or "=" in value:
            raise ArgumentsError([f"`optim_args={text!r}`: write it as 'name=value,name=value'."])
        values[name] = value
    return values


def parse_flag(value: str) -> int:
    """Return 1 for a true value and 0 for a false one, as ``strtobool``.

    Raises:
        ArgumentsError: If ``value`` is neither.
    """
    try:
        return _FLAGS[value.lower()]
    except KeyError:
        raise ArgumentsError([f"`optim_args` has the value {value!r} for a boolean: use 'true' or 'false'."]) from None


def parse_bool(value: str) -> bool:
    """Return whether ``value`` is ``true``, ``1`` or ``yes``."""
    return value.lower() in ("true", "1", "yes")


def parse_literal(value: str) -> object:
    """Return the Python literal in ``value``, or ``value`` itself if it is none."""
    try:
        literal: object = literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    return literal


def convert_options(options: dict[str, str], converters: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Return those of ``options`` that are in ``converters``, converted."""
    return {name: convert(options[name]) for name, convert in converters.items() if name in options}


# Optimizers of optional packages: the class and its keywords.


_TORCHAO_READS_OPTIM_ARGS = Version("5.0")


def adamw_like(request: OptimizerRequest, *, module: str, attribute: str, extra: str) -> ClassAndKwargs:
    """Return an AdamW that takes torch's arguments."""
    return request.load(module, attribute, extra=extra), request.adam


def _load_built_from_source(request: OptimizerRequest, module: str, attribute: str, url: str) -> Callable[..., Any]:
    try:
        return request.load(module, attribute, extra="")
    except MissingPackageError as error:
        package = module.partition(".")[0]
        message = f"`optim={request.name!r}` needs the package `{package}`; install it from {url}"
        raise MissingPackageError(f"{message}, or use optim='adamw_torch_fused'.") from error


def apex(request: OptimizerRequest) -> ClassAndKwargs:
    """Return apex's fused Adam."""
    return _load_built_from_source(
        request, "apex.optimizers", "FusedAdam", "https://github.com/NVIDIA/apex"
    ), request.adam


def anyprecision(request: OptimizerRequest) -> ClassAndKwargs:
    """Return torchdistx's AdamW, whose state can be in half precision."""
    options = request.options
    kwargs = {
        "use_kahan_summation": parse_flag(options.get("use_kahan_summation", "false")),
        "momentum_dtype": getattr(torch, options.get("momentum_dtype", "float32")),
        "variance_dtype": getattr(torch, options.get("variance_dtype", "float32")),
        "compensation_buffer_dtype": getattr(torch, options.get("compensation_buffer_dtype", "bfloat16")),
    }
    url = "https://github.com/pytorch/torchdistx"
    optimizer = _load_built_from_source(request, "torchdistx.optimizers", "AnyPrecisionAdamW", url)
    return optimizer, request.adam | kwargs


def bnb_adamw(request: OptimizerRequest, *, bits: int, paged: bool) -> ClassAndKwargs:
    """Return bitsandbytes' AdamW with ``bits``-bit state."""
    optimizer = request.load("bitsandbytes.optim", "AdamW", extra="bitsandbytes")
    return optimizer, request.adam | {"optim_bits": bits, "is_paged": paged}


def bnb_lion(request: OptimizerRequest, *, bits: int, paged: bool) -> ClassAndKwargs:
    """Return bitsandbytes' Lion with ``bits``-bit state."""
    optimizer = request.load("bitsandbytes.optim", "Lion", extra="bitsandbytes")
    return optimizer, {"betas": request.adam["betas"], "optim_bits": bits, "is_paged": paged}


def bnb_ademamix(request: OptimizerRequest, *, bits: int, paged: bool) -> ClassAndKwargs:
    """Return bitsandbytes' AdEMAMix with ``bits``-bit state."""
    optimizer = request.load("bitsandbytes.optim", "AdEMAMix", extra="bitsandbytes")
    options, settings = request.options, request.settings
    kwargs: dict[str, Any] = {
        "betas": (
            float(options.get("beta1", settings.adam_beta1)),
            float(options.get("beta2", settings.adam_beta2)),
            float(options.get("beta3", 0.9999)),
        ),
        "alpha": float(options.get("alpha", 5.0)),
        "eps": float(options.get("eps", settings.adam_epsilon)),
    }
    kwargs |= convert_options(options, {"t_alpha": int, "t_beta3": int})
    return optimizer, kwargs | {"optim_bits": bits, "is_paged": paged}


def bnb_rmsprop(request: OptimizerRequest, *, bits: int) -> ClassAndKwargs:
    """Return bitsandbytes' RMSprop with ``bits``-bit state."""
    optimizer = request.load("bitsandbytes.optim", "RMSprop", extra="bitsandbytes")
    # transformers passes strings, which bitsandbytes cannot compute with.
    options = {name: parse_literal(value) for name, value in request.options.items()}
    return optimizer, options | {"optim_bits": bits}


def keep_embeddings_in_32_bits(model: nn.Module) -> None:
    """Keep the optimizer state of ``model``'s embeddings in float32, in an 8-bit optimizer of bitsandbytes."""
    optim = require_package("bitsandbytes.optim", extra="bitsandbytes", purpose="an 8-bit optimizer")
    manager = optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def torchao(request: OptimizerRequest, *, attribute: str) -> ClassAndKwargs:
    """Return torchao's low-bit AdamW."""
    optimizer = request.load("torchao.optim", attribute, extra="torchao")
    if request.semantics.release < _TORCHAO_READS_OPTIM_ARGS:
        return optimizer, request.adam
    kwargs = {
        "block_size": int(request.options.get("block_size", 256)),
        "bf16_stochastic_round": parse_flag(request.options.get("bf16_stochastic_round", "false")),
    }
    return optimizer, kwargs | request.adam


def schedule_free(request: OptimizerRequest, *, attribute: str, adam: bool, warmup: bool) -> ClassAndKwargs:
    """Return a schedule-free optimizer, with Adam's arguments and ``warmup_steps`` if it takes them."""
    settings = request.settings
    kwargs: dict[str, Any] = (request.adam if adam else {}) | {"weight_decay": settings.weight_decay}
    if warmup:
        kwargs["warmup_steps"] = settings.warmup_steps
    kwargs["weight_lr_power"] = float(request.options.get("weight_lr_power", 2.0))
    kwargs["r"] = float(request.options.get("r", 0.0))
    return request.load("schedulefree", attribute, extra="schedulefree"), kwargs


def grokadamw(request: OptimizerRequest) -> ClassAndKwargs:
    """Return GrokAdamW."""
    defaults = {
        "alpha_init": 0.98,
        "lamb": 2.0,
        "gamma": 0.1,
        "grokking_signal_decay_rate": 0.1,
        "gradient_clipping": 1.0,
    }
    kwargs = {name: float(request.options.get(name, default)) for name, default in defaults.items()}
    return request.load("grokadamw", "GrokAdamW", extra="grokadamw"), kwargs


def has_triton_without_gpu() -> bool:
    """Return whether Triton is installed, as with torch's builds for GPUs, on a machine that has none."""
    has_gpu = torch.cuda.is_available() or torch.xpu.is_available()
    return is_installed("triton") and not has_gpu


def stable_adamw(request: OptimizerRequest) -> ClassAndKwargs:
    """Return optimi's StableAdamW."""
    # In transformers any value is true, even "false".
    truth: Callable[[str], bool] = (lambda value: bool(parse_flag(value))) if request.semantics.corrected else bool
    chosen = convert_options(request.options, {"decouple_lr": truth, "max_lr": float, "kahan_sum": truth})
    kwargs = {"weight_decay": request.settings.weight_decay, "decouple_lr": False, "max_lr": None, "kahan_sum": None}
    if has_triton_without_gpu():
        chosen["triton"] = False  # optimi 0.3 takes Triton's kernels wherever it is installed, and they need a GPU
    return request.load("optimi", "StableAdamW", extra="optimi"), request.adam | kwargs | chosen


# Optimizers that update parameters in the backward pass: LOMO, AdaLomo, and what none of them supports.


_LossT = TypeVar("_LossT")

UPDATED_IN_BACKWARD = frozenset({"lomo", "adalomo"})
"""Optimizers whose backward pass takes the learning rate."""


def lomo(request: OptimizerRequest, *, attribute: str) -> ClassAndKwargs:
    """Return LOMO or AdaLomo, built from the model instead of parameters."""
    optimizer = request.load("lomo_optim", attribute, extra="lomo")
    if request.model is None:
        raise ArgumentsError([f"`optim={request.name!r}`: You need to pass a `model`, from which it is built."])
    if attribute == "AdaLomo" and not torch.cuda.is_available():
        raise UnsupportedArgumentsError(
            [f"`optim={request.name!r}`: lomo-optim supports it on CUDA GPUs only; use optim='lomo'."]
        )
    return optimizer, {"model": request.model}


def _run_closure(_: Optimizer, closure: Callable[[], _LossT] | None = None) -> _LossT | None:
    return None if closure is None else closure()


def leave_step_to_backward(optimizer: Optimizer) -> None:
    """Make ``optimizer.step`` run the closure only: the backward pass updates the parameters."""
    # A bound method, because torch's schedules count the calls of one.
    optimizer.step = MethodType(_run_closure, optimizer)  # type: ignore[method-assign]


def updates_in_backward(optimizer: object) -> bool:
    """Return whether ``optimizer`` updates parameters in the backward pass."""
    return isinstance(optimizer, LayerwiseOptimizer) or hasattr(optimizer, "fused_backward")


def notices(args: TrainingArguments, optimizer: object, semantics: Semantics) -> list[str]:
    """Return a warning for each field of ``args`` that has no or another effect with ``optimizer``."""
    if not updates_in_backward(optimizer):
        return []
    layerwise = isinstance(optimizer, LayerwiseOptimizer)
    name, accumulate, found = f"`optim={plain_name(args.optim)!r}`", args.gradient_accumulation_steps, []
    if norm := args.max_grad_norm:
        found.append(
            f"{name} updates parameters in the backward pass, so `max_grad_norm={norm}` does not clip "
            "gradients and their norm is logged as 0: set `max_grad_norm=0`."
        )
    if accumulate > 1:
        found.append(
            f"{name} updates parameters in the backward pass, so `gradient_accumulation_steps={accumulate}` does not "
            "accumulate: each batch is an update. Set `gradient_accumulation_steps=1`."
        )
    if layerwise and semantics.leaves_layerwise_rate_constant:
        found.append(
            f"{name}: as in transformers {semantics.release}, the scheduled learning rate is logged but the initial "
            "one is used. Set `TrainingArguments(semantics='corrected')` to follow the schedule."
        )
    return found


def check_backward(args: TrainingArguments, optimizer: object, *, is_scaled: bool, by_engine: bool) -> None:
    """Raise if ``optimizer`` updates parameters in the backward pass, and that of the run does not allow it.

    Args:
        args: The training arguments.
        optimizer: The run's optimizer.
        is_scaled: Whether gradients are those of a scaled loss.
        by_engine: Whether DeepSpeed's engine runs the backward pass.

    Raises:
        ArgumentsError: If so; it is also the TypeError of LOMO, or the AssertionError of a layerwise optimizer, with
            which transformers ends.
    """
    is_fused = hasattr(optimizer, "fused_backward")
    text = f"`optim={plain_name(args.optim)!r}` updates parameters in the backward pass"
    if is_fused and by_engine:
        text += ", which with `deepspeed` is that of DeepSpeed's engine. Use optim='adamw_torch', or no `deepspeed`."
    elif is_scaled and updates_in_backward(optimizer):
        text += ", in which gradients with `fp16=True` are those of a scaled loss. Set `bf16=True` instead."
    else:
        return
    raise ArgumentsError.also(TypeError if is_fused else AssertionError)([text])


class LayerwiseOptimizer(Optimizer):
    """Steps the optimizer of each parameter once its gradient is accumulated, and frees the gradient.

    Its own ``step`` only runs the closure, and its one parameter group holds the learning rate of the schedule.

    Args:
        optimizer_dict: The optimizer of each parameter.
        lr: The initial learning rate.
        follows_schedule: Use the scheduled learning rate, rather than ``lr`` for every update.
        saves_all: Have the states of the optimizers inside in ``state_dict``, in which transformers has none of them.

    References:
        Same state and random draws as ``LayerWiseDummyOptimizer`` of transformers ``trainer_pt_utils.py``.
    """

    def __init__(
        self, optimizer_dict: dict[Tensor, Optimizer], lr: float, *, follows_schedule: bool, saves_all: bool = False
    ) -> None:
        self.optimizer_dict = optimizer_dict
        self.saves_all = saves_all
        self._follows_schedule = follows_schedule
        # Random rather than zeros, because transformers draws from the global generator here.
        super().__init__([torch.randn(1, 1)], {"lr": lr})
        for parameter in optimizer_dict:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._update)  # type: ignore[no-untyped-call]

    def _update(self, parameter: Tensor) -> None:
        optimizer = self.optimizer_dict[parameter]
        if self._follows_schedule:
            for group in optimizer.param_groups:
                group["lr"] = self.param_groups[0]["lr"]
        optimizer.step()
        optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the learning rate, and with ``saves_all`` the state dict of each optimizer inside."""
        inside = [optimizer.state_dict() for optimizer in self.optimizer_dict.values()] if self.saves_all else None
        return super().state_dict() | ({} if inside is None else {"optimizers": inside})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the learning rate, and the state of each optimizer inside that ``state_dict`` has."""
        super().load_state_dict(state_dict)
        if self.saves_all and "optimizers" in state_dict:
            for optimizer, state in zip(self.optimizer_dict.values(), state_dict["optimizers"], strict=True):
                optimizer.load_state_dict(state)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Return what ``closure`` returns; the parameters are updated already."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: each gradient is freed after its update."""


# GaLore and APOLLO: optimizers that keep the state of target linear layers in a low-rank projection.


_GALORE: dict[str, tuple[Callable[[str], Any], str]] = {
    "rank": (int, "128"),
    "update_proj_gap": (int, "200"),
    "scale": (float, "0.25"),
    "proj_type": (str, "std"),
}
_APOLLO: dict[str, tuple[Callable[[str], Any], str]] = {
    "rank": (int, "128"),
    "proj": (str, "random"),
    "scale_type": (str, "channel"),
    "update_proj_gap": (int, "200"),
    "scale": (float, "1.0"),
    "proj_type": (str, "std"),
}
_FIXED_RATE = {"scale_parameter": False, "relative_step": False}


def galore(request: OptimizerRequest, *, attribute: str, layerwise: bool = False) -> ClassAndKwargs:
    """Return a GaLore optimizer that projects the layers in ``optim_target_modules``.

    A layerwise GaLoreAdafactor is supported; in transformers it fails.
    """
    optimizer = request.load("galore_torch", attribute, extra="galore")  # upstream's first error is that it is missing
    _check(request, layerwise=layerwise)
    if attribute.endswith("8bit") and not torch.cuda.is_available():
        raise UnsupportedArgumentsError(
            [f"`optim={request.name!r}`: galore-torch supports it on CUDA GPUs only; use optim='galore_adamw'."]
        )
    fixed = _FIXED_RATE if attribute == "GaLoreAdafactor" else {}
    return _build(request, optimizer, _options(request, _GALORE), fixed, layerwise=layerwise)


def apollo(request: OptimizerRequest, *, layerwise: bool = False) -> ClassAndKwargs:
    """Return an APOLLO optimizer that projects the layers in ``optim_target_modules``."""
    optimizer = request.load("apollo_torch", "APOLLOAdamW", extra="apollo")
    _check(request, layerwise=layerwise)
    return _build(request, optimizer, _options(request, _APOLLO) | request.adam, {}, layerwise=layerwise)


def target_weights(model: nn.Module, targets: str | Collection[str]) -> set[str]:
    """Return the names of the weights of the linear layers of ``model`` that match ``targets``.

    Args:
        model: The model.
        targets: ``"all-linear"``; a regular expression that matches a module's full name; or a list of names, parts
            of names or regular expressions.
    """
    every = isinstance(targets, str) and targets.replace("_", "-") == "all-linear"
    found = set()
    for name, module in model.named_modules():
        matches = _matches(name, targets)
        if isinstance(module, nn.Linear):
            if matches or every:
                found.add(f"{name}.weight")
        elif matches and _is_named(name, targets):
            logger.warning(
                "`optim_target_modules`: `%s` matched but ignored: it is not a linear layer, so it has no projection.",
                name,
            )
    return found


def _matches(name: str, targets: str | Collection[str]) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(target in name or re.fullmatch(target, name) for target in targets)


def _is_named(name: str, targets: str | Collection[str]) -> bool:
    """Return whether ``targets`` names ``name`` literally, not by a regular expression."""
    return name == targets if isinstance(targets, str) else any(target in name for target in targets)


def _options(request: OptimizerRequest, table: dict[str, tuple[Callable[[str], Any], str]]) -> dict[str, Any]:
    return {name: convert(request.options.get(name, default)) for name, (convert, default) in table.items()}


def _check(request: OptimizerRequest, *, layerwise: bool) -> None:
    """Raise one error with all problems of the optimizer's fields."""
    name, settings, problems = request.name, request.settings, []
    targets = settings.optim_target_modules
    is_wrong = not isinstance(targets, str | list | None)
    if targets is None:
        problems.append(
            f"`optim={name!r}` needs `optim_target_modules`: You need to define `optim_target_modules`, such as "
            "'all-linear'."
        )
    elif is_wrong:
        problems.append(f"`optim_target_modules={targets!r}`: must be a list of strings, a regex or 'all-linear'.")
    if request.model is None:
        problems.append(f"`optim={name!r}`: You need to pass a model, from which it is built.")
    if layerwise and settings.gradient_accumulation_steps != 1:
        problems.append(
            f"`gradient_accumulation_steps={settings.gradient_accumulation_steps}` with `optim={name!r}`, which "
            "updates parameters in the backward pass and does not support gradient accumulation: set "
            "`gradient_accumulation_steps=1`."
        )
    if layerwise and settings.world_size > 1:
        plain = name.removesuffix("_layerwise")
        problems.append(
            f"`optim={name!r}` does not support a world size of {settings.world_size}; use optim={plain!r}."
        )
    if problems:
        others = (NotImplementedError,) if layerwise and settings.world_size > 1 else ()
        raise (ArgumentTypesError if is_wrong else ArgumentsError).also(*others)(problems)


def _build(
    request: OptimizerRequest,
    optimizer: Callable[..., Any],
    projection: dict[str, Any],
    fixed: dict[str, Any],
    *,
    layerwise: bool,
) -> ClassAndKwargs:
    """Return the optimizer with two parameter groups: the target weights with their ``projection`` come second."""
    targets = request.settings.optim_target_modules
    assert request.model is not None, "_check raised otherwise"
    assert targets is not None, "_check raised otherwise"
    names = target_weights(request.model, targets)
    if not names:
        raise ArgumentsError(
            [
                f"`optim_target_modules={targets!r}`: No target modules found, {type(request.model).__name__} has no "
                "linear layer that matches."
            ]
        )
    parameters = list(request.model.named_parameters())
    others = [parameter for name, parameter in parameters if name not in names]
    target = [parameter for name, parameter in parameters if name in names]
    if not layerwise:
        return optimizer, {"params": [{"params": others}, {"params": target, **projection}], **fixed}
    rate = {"lr": request.settings.learning_rate, **fixed}
    each = {parameter: optimizer([{"params": [parameter]}], **rate) for parameter in others}
    each |= {parameter: optimizer([{"params": [parameter], **projection}], **rate) for parameter in target}
    follows = not request.semantics.leaves_layerwise_rate_constant
    saves_all = request.semantics.corrected
    return LayerwiseOptimizer, {"optimizer_dict": each, "follows_schedule": follows, "saves_all": saves_all}


_TORCH_READS_OPTIM_ARGS = Version("5.3")


def _adamw(request: OptimizerRequest, **extra: Any) -> ClassAndKwargs:
    return torch.optim.AdamW, request.adam | extra


def _adafactor(request: OptimizerRequest) -> ClassAndKwargs:
    return adafactor_class(), {"scale_parameter": False, "relative_step": False}


def _from_torch(
    request: OptimizerRequest, *, optimizer: type, converters: dict[str, Callable[[str], Any]]
) -> ClassAndKwargs:
    reads = request.semantics.release >= _TORCH_READS_OPTIM_ARGS
    return optimizer, convert_options(request.options, converters) if reads else {}


OPTIMIZERS: dict[str, Callable[[OptimizerRequest], ClassAndKwargs]] = {
    "adamw_hf": _adamw,  # removed in 4.50 in favour of torch's
    "adamw_torch": _adamw,
    "adamw_torch_fused": partial(_adamw, fused=True),
    "adamw_torch_xla": partial(adamw_like, module="torch_xla.amp.syncfree", attribute="AdamW", extra="xla"),
    "adamw_torch_npu_fused": partial(adamw_like, module="torch_npu.optim", attribute="NpuFusedAdamW", extra="npu"),
    "adamw_apex_fused": apex,
    "adamw_anyprecision": anyprecision,
    "adamw_torch_4bit": partial(torchao, attribute="AdamW4bit"),
    "adamw_torch_8bit": partial(torchao, attribute="AdamW8bit"),
    "adafactor": _adafactor,
    "sgd": partial(
        _from_torch,
        optimizer=torch.optim.SGD,
        converters={"momentum": float, "dampening": float, "weight_decay": float, "nesterov": parse_bool},
    ),
    "adagrad": partial(
        _from_torch, optimizer=torch.optim.Adagrad, converters={"lr_decay": float, "weight_decay": float, "eps": float}
    ),
    "rmsprop": partial(
        _from_torch,
        optimizer=torch.optim.RMSprop,
        converters={"momentum": float, "alpha": float, "eps": float, "weight_decay": float, "centered": parse_bool},
    ),
    "adamw_bnb_8bit": partial(bnb_adamw, bits=8, paged=False),
    "adamw_8bit": partial(bnb_adamw, bits=8, paged=False),
    "paged_adamw_32bit": partial(bnb_adamw, bits=32, paged=True),
    "paged_adamw_8bit": partial(bnb_adamw, bits=8, paged=True),
    "lion_32bit": partial(bnb_lion, bits=32, paged=False),
    "lion_8bit": partial(bnb_lion, bits=8, paged=False),
    "paged_lion_32bit": partial(bnb_lion, bits=32, paged=True),
    "paged_lion_8bit": partial(bnb_lion, bits=8, paged=True),
    "ademamix": partial(bnb_ademamix, bits=32, paged=False),
    "ademamix_8bit": partial(bnb_ademamix, bits=8, paged=False),
    "paged_ademamix_32bit": partial(bnb_ademamix, bits=32, paged=True),
    "paged_ademamix_8bit": partial(bnb_ademamix, bits=8, paged=True),
    "rmsprop_bnb": partial(bnb_rmsprop, bits=32),
    "rmsprop_bnb_8bit": partial(bnb_rmsprop, bits=8),
    "rmsprop_bnb_32bit": partial(bnb_rmsprop, bits=32),
    "schedule_free_radam": partial(schedule_free, attribute="RAdamScheduleFree", adam=True, warmup=False),
    "schedule_free_adamw": partial(schedule_free, attribute="AdamWScheduleFree", adam=True, warmup=True),
    "schedule_free_sgd": partial(schedule_free, attribute="SGDScheduleFree", adam=False, warmup=True),
    "grokadamw": grokadamw,
    "stable_adamw": stable_adamw,
    "galore_adamw": partial(galore, attribute="GaLoreAdamW"),
    "galore_adamw_8bit": partial(galore, attribute="GaLoreAdamW8bit"),
    "galore_adafactor": partial(galore, attribute="GaLoreAdafactor"),
    "galore_adamw_layerwise": partial(galore, attribute="GaLoreAdamW", layerwise=True),
    "galore_adamw_8bit_layerwise": partial(galore, attribute="GaLoreAdamW8bit", layerwise=True),
    "galore_adafactor_layerwise": partial(galore, attribute="GaLoreAdafactor", layerwise=True),
    "apollo_adamw": apollo,
    "apollo_adamw_layerwise": partial(apollo, layerwise=True),
    "lomo": partial(lomo, attribute="Lomo"),
    "adalomo": partial(lomo, attribute="AdaLomo"),
}
"""``optim`` to the function that returns the class and its keywords, without the learning rate."""


def optimizer_class_and_kwargs(
    settings: TrainingArguments, model: nn.Module | None = None, *, semantics: Semantics | None = None
) -> ClassAndKwargs:
    """Return the optimizer class of ``settings.optim``, and its keywords without the parameters.

    Args:
        settings: The ``TrainingArguments``, ours or transformers'.
        model: The model to train; GaLore, APOLLO and LOMO need it.
        semantics: The transformers release to follow: it decides which optimizers read ``optim_args``. Default: the
            installed one.

    Raises:
        ArgumentsError: If ``optim`` is unknown, ``optim_args`` is invalid, or a field that the optimizer needs is not
            set.
        UnsupportedArgumentsError: If the optimizer needs a GPU and there is none.
        MissingPackageError: If the optimizer's package is not installed.

    References:
        Same as ``Trainer.get_optimizer_cls_and_kwargs`` of transformers.
    """
    name = plain_name(settings.optim)
    if name not in OPTIMIZERS:
        near = difflib.get_close_matches(name, OPTIMIZERS, n=1, cutoff=0.0)[0]
        raise ArgumentsError([f"`optim={name!r}` is unknown: did you mean {near!r}?"])
    options = parse_optim_args(settings.optim_args)
    request = OptimizerRequest(name, settings, options, semantics or resolve_semantics(), model)
    optimizer, kwargs = OPTIMIZERS[name](request)
    return optimizer, {"lr": settings.learning_rate} | kwargs
