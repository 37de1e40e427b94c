"""DeepSpeed's engine around a model, with its tensor and sequence parallelism and its optimizers on the CPU."""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hf_compat.arguments.deepspeed import HfTrainerDeepSpeedConfig
from hf_compat.arguments.sequence_parallelism import SequenceParallelism
from hf_compat.distributed.launch import Launch
from hf_compat.distributed.processes import import_deepspeed, prepare_process
from hf_compat.errors import ModelError, TrainerSetupError

# DeepSpeed's engine around a model, and wrappers of the optimizer and the schedule inside it.
#
# The engine clips gradients, steps the optimizer and, if its config has one, the schedule at the end of an update step.


class EngineOptimizer(Optimizer):
    """Wraps the optimizer of an engine, which steps it: ``step`` and ``zero_grad`` do nothing.

    Args:
        optimizer: The engine's optimizer.
    """

    def __init__(self, optimizer: Any) -> None:  # ZeRO's optimizers derive from no class of torch's
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups, with this rank's partitions."""
        return self.optimizer.param_groups  # type: ignore[no-any-return]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of each parameter."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The default settings of a parameter group."""
        return getattr(self.optimizer, "defaults", {})

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of this rank's partitions."""
        return self.optimizer.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of :meth:`state_dict`."""
        self.optimizer.load_state_dict(state_dict)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Do nothing: the engine has stepped the optimizer."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the engine zeroes the gradients after its step."""


class EngineScheduler:
    """Wraps the schedule of an engine, which steps it: ``step`` does nothing; other attributes are the schedule's.

    Args:
        scheduler: DeepSpeed's schedule, or a schedule for DeepSpeed's optimizer.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def step(self, *_: Any) -> None:
        """Do nothing: the engine has stepped the schedule."""

    def get_last_lr(self) -> list[Any]:
        """Return the learning rate of each parameter group; 0 before the first step, which fp16 may skip."""
        try:
            rates: list[Any] = self.scheduler.get_last_lr()
        except AssertionError:  # DeepSpeed's schedules raise before the first step
            return [0 for _ in self.scheduler.optimizer.param_groups]
        return rates

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # while it is copied
            raise AttributeError(name)
        return getattr(self.scheduler, name)


def build_engine(
    model: nn.Module,
    config: dict[str, Any],
    *,
    device: torch.device,
    launch: Launch,
    optimizer: Optimizer | None = None,
    parameters: list[nn.Parameter] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    parallel_state: ModuleType | None = None,
) -> Any:
    """Return a ``DeepSpeedEngine`` around ``model``.

    Args:
        model: The unwrapped model.
        config: DeepSpeed's config, without ``"auto"`` values.
        device: The device of this rank.
        launch: Rank and world size.
        optimizer: The optimizer; None for the one in ``config``, or for none.
        parameters: The trainable parameters, for an optimizer in ``config``.
        scheduler: Creates a schedule for DeepSpeed's optimizer; None for the one in ``config``, or for none.
        parallel_state: DeepSpeed's groups of ranks that share sequences; None if each has its own.

    Raises:
        TrainerSetupError: If DeepSpeed does not accept the config.
    """
    deepspeed = import_deepspeed(device)
    index = 0 if device.index is None else device.index
    given: dict[str, Any] = {"lr_scheduler": scheduler} if scheduler is not None else {}
    if parallel_state is not None:
        given["mpu"] = parallel_state
    if optimizer is not None:
        given["optimizer"] = optimizer
    elif parameters is not None:
        given["model_parameters"] = parameters
    prepare_process(launch, device)
    try:
        engine, *_ = deepspeed.initialize(args=Namespace(device_rank=index), model=model, config=config, **given)
    except (AssertionError, ValueError, _config_error()) as error:
        raise TrainerSetupError(
            f"`deepspeed`: DeepSpeed does not accept the config for this run. Change what it names: {error}"
        ) from error
    return engine


def _config_error() -> type[Exception]:
    """Return DeepSpeed's error for a config that it refuses."""
    error: type[Exception] = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfigError
    return error


# DeepSpeed's tensor parallelism (AutoTP): the engine splits the model's matrices over ranks.


_RECORD = "deepspeed.runtime.tensor_parallel.init_utils"
_AUTOTP_GROUPS = ("mpu", "_TENSOR_MODEL_PARALLEL_GROUP", "_MODEL_PARALLEL_GROUP", "_DATA_PARALLEL_GROUP")
"""Where DeepSpeed keeps the process groups of the last model that it has split."""


def request_autotp(model: nn.Module, settings: HfTrainerDeepSpeedConfig, device: torch.device) -> None:
    """Have the next engine split ``model`` as the section ``tensor_parallel`` of ``settings`` requests, or not at all.

    Raises:
        TrainerSetupError: If DeepSpeed is too old.
    """
    reset_autotp()
    size = settings.tensor_parallel_size
    if size == 1:
        return
    deepspeed = import_deepspeed(device)
    try:
        importlib.import_module(_RECORD)  # before, `tp_model_init` split the model itself
    except ImportError as error:
        raise TrainerSetupError(
            f"`tensor_parallel.autotp_size={size}` in the DeepSpeed config needs DeepSpeed 0.18.6 or later, but "
            f"{deepspeed.__version__} is installed."
        ) from error
    deepspeed.tp_model_init(model=model, tp_size=size, dtype=settings.dtype(), config=settings.config)


def reset_autotp() -> None:
    """Have later engines of this process split no model, and use no process groups of an earlier one.

    DeepSpeed, and transformers' Trainer with it, would otherwise split each of them. A model that has been split keeps
    its groups.
    """
    groups = importlib.import_module("deepspeed.utils.groups")
    if getattr(groups, "_TENSOR_MODEL_PARALLEL_GROUP", None) is None:  # older releases have no such group
        return
    for name in _AUTOTP_GROUPS:
        setattr(groups, name, None)
    record: Any = importlib.import_module(_RECORD)
    record._TP_MODEL_INIT_ARGS = None
    importlib.import_module("deepspeed.module_inject.layers").set_autotp_mode(training=False)


# DeepSpeed's CPU optimizers, for parameters that are offloaded to the CPU.


_CPU_OPTIMIZERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "AdamW": ("adam", "DeepSpeedCPUAdam", {"adamw_mode": True}),
    "Adam": ("adam", "DeepSpeedCPUAdam", {"adamw_mode": False}),
    "Adagrad": ("adagrad", "DeepSpeedCPUAdagrad", {}),
    "Lion": ("lion", "DeepSpeedCPULion", {}),
}
"""Name of an optimizer's class → module, class and keywords of DeepSpeed's CPU optimizer."""


def cpu_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return DeepSpeed's CPU optimizer that corresponds to ``optimizer``, with the same parameter groups.

    Raises:
        TrainerSetupError: If there is none.
    """
    classes = [kind.__name__ for kind in type(optimizer).__mro__]
    if any(name.startswith("DeepSpeedCPU") for name in classes):
        return optimizer
    found = next((_CPU_OPTIMIZERS[name] for name in classes if name in _CPU_OPTIMIZERS), None)
    if found is None:
        raise TrainerSetupError(
            f"`zero_optimization.offload_optimizer`: DeepSpeed has no CPU optimizer for {classes[0]}, only for "
            f"{', '.join(_CPU_OPTIMIZERS)}. Set `optim` to one of these, remove the section, or set "
            "`zero_force_ds_cpu_optimizer` to false."
        )
    module, name, keywords = found
    kind: Any = getattr(importlib.import_module(f"deepspeed.ops.{module}"), name)
    made: Optimizer = kind(optimizer.param_groups, **keywords)
    return made


def optimizer_for_config(optimizer: Optimizer, config: dict[str, Any]) -> Optimizer:
    """Return ``optimizer``, or the corresponding CPU optimizer if ``config`` offloads its state."""
    offload = config.get("zero_optimization", {}).get("offload_optimizer") or {}
    offloads = offload.get("device", "none") != "none" and config.get("zero_force_ds_cpu_optimizer", True)
    return cpu_optimizer(optimizer) if offloads else optimizer


# DeepSpeed's Ulysses: attention over whole sequences of which each rank has a chunk.


_SEQUENCE_GROUPS = ("_SEQUENCE_PARALLEL_GROUP", "_SEQUENCE_DATA_PARALLEL_GROUP")
"""Where DeepSpeed keeps the process groups of the run."""


class UlyssesAttention:
    """Exchanges chunks of the sequence for shares of the heads around each attention call in training.

    transformers looks the attention function up by its name, under which the exchange is put between :meth:`enter` and
    :meth:`leave`. Evaluations have whole sequences: they call the function itself, without a mask as in training.

    Args:
        sequences: The sizes.

    Attributes:
        group: The ranks that share sequences with this one; None before :meth:`begin` and after :meth:`end`.
    """

    def __init__(self, sequences: SequenceParallelism) -> None:
        self.sequences = sequences
        self.group: ProcessGroup | None = None
        self._groups: dict[str, ProcessGroup] = {}
        self._function: Any = None
        self._exchanging: Any = None

    def enter(self) -> None:
        """Put the exchange in the place of the attention function."""
        self.leave()
        functions, name = _attention_functions(), self.sequences.attention
        self._function, functions[name] = functions.get(name), self._attend

    def leave(self) -> None:
        """Put the attention function into its place again."""
        if self._function is not None:
            _attention_functions()[self.sequences.attention] = self._function
            self._function = None

    def begin(self, model: nn.Module, config: dict[str, Any]) -> tuple[ModuleType, dict[str, Any]]:
        """Make the process groups, and the exchange for ``model``; every rank calls it, after :meth:`enter`.

        Args:
            model: The unwrapped model.
            config: DeepSpeed's config, without ``"auto"`` values.

        Returns:
            The parallel state that ``deepspeed.initialize`` takes as ``mpu``, and the config with the samples of an
            update step, which are those of all groups.

        Raises:
            ModelError: If ``model`` cannot be trained so.
            TrainerSetupError: If DeepSpeed is too old.
        """
        if problems := [*_model_problems(model, self.sequences)]:
            raise ModelError("\n  ".join(problems))
        self.end()
        try:
            ulysses = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
        except ImportError as error:
            raise TrainerSetupError(
                f"`sp_size={self.sequences.size}` in `parallelism_config` needs DeepSpeed 0.18.2 or later: {error}."
            ) from error
        vars(_parallel_state()).update(dict.fromkeys(_SEQUENCE_GROUPS))  # another Trainer may have left its own
        importlib.import_module("deepspeed").init_distributed()  # which takes over torch's process group
        batch_size = config["train_micro_batch_size_per_gpu"]
        self.leave()  # DeepSpeed wraps what it finds
        functions, attention = _attention_functions(), self.sequences.attention
        function = functions.get(attention)
        state: ModuleType = ulysses.UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=model,
            core_attn_implementation=attention,
            sequence_parallel_size=self.sequences.size,
            micro_batch_size=batch_size,
            seq_length=self.sequences.length,
            seq_length_is_variable=self.sequences.length is None,
        )
        self._exchanging, functions[attention] = functions[attention], function
        self.enter()
        self._groups = {name: getattr(state, name) for name in _SEQUENCE_GROUPS}
        self.group = state.get_sequence_parallel_group()
        samples = batch_size * config["gradient_accumulation_steps"] * self.sequences.data
        return state, {**config, "train_batch_size": samples}

    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, *args: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        attend = self._exchanging if module.training else self._function
        groups = getattr(module, "num_key_value_groups", None)
        result: tuple[Tensor, Tensor | None] = attend(module, query, key, value, None, *args, **named)
        if groups is not None:
            module.num_key_value_groups = groups  # the exchange sets it to that of a rank's share of the heads
        return result

    def end(self) -> None:
        """Free DeepSpeed's process groups; every rank calls it."""
        deepspeed_groups: Any = importlib.import_module("deepspeed.utils.groups")
        for name, group in self._groups.items():
            if getattr(_parallel_state(), name) is group:
                setattr(_parallel_state(), name, None)
                deepspeed_groups.mpu = None  # the engine has set it
            distributed.destroy_process_group(group)
        self.group, self._groups, self._exchanging = None, {}, None


def _parallel_state() -> ModuleType:
    return importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")


def _attention_functions() -> Any:
    return importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS


def sequence_parallel_limits(sequences: SequenceParallelism | None, model: nn.Module | None) -> Iterator[str]:
    """Yield why ``model`` cannot be trained with ``sequences``.

    Args:
        sequences: The sizes; None without sequence parallelism.
        model: The model; None if ``model_init`` has not been called yet.
    """
    if sequences is not None and model is not None:
        yield from _model_problems(model, sequences)


def _model_problems(model: nn.Module, sequences: SequenceParallelism) -> Iterator[str]:
    name, size = type(model).__name__, sequences.size
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        yield f"`model`: {name} has no config of transformers, by which `sp_size={size}` shares out the heads."
        return
    own = getattr(config, "_attn_implementation", None)
    if own != sequences.attention:
        yield (
            f"`model`: the attention of {name} is {own!r}, but that of `sp_size={size}` in `parallelism_config` is "
            f"{sequences.attention!r}. Load the model with `attn_implementation={sequences.attention!r}`, or set "
            "`sp_attn_implementation` of `sp_handler`."
        )
    text = config.get_text_config()
    heads, shared = getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)
    if heads is None or shared is None:
        missing = "num_attention_heads" if heads is None else "num_key_value_heads"
        yield f"`model`: the config of {name} has no `{missing}`, by which `sp_size={size}` shares out the heads."
    elif heads % size or (shared % size and size % shared):
        yield (
            f"`model`: {name} has `num_attention_heads={heads}` and `num_key_value_heads={shared}`, which cannot be "
            f"shared out over `sp_size={size}` ranks: the first has to be a multiple of it, the second a multiple or a "
            "divisor. Set another `sp_size`."
        )
    recurrent = sorted({kind for kind in getattr(text, "layer_types", None) or () if "linear_attention" in kind})
    if recurrent:
        yield (
            f"`model`: {name} has layers of type {', '.join(recurrent)}, whose state runs along the sequence: with "
            f"`sp_size={size}` each rank would start it anew. Use a model of attention layers, or remove `sp_size`."
        )
