"""The parallelism of a run as other code reads it: accelerate's own plugins where it is installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.arguments.deepspeed import uses_deepspeed
from hf_compat.arguments.fsdp import LOADING_VARIABLE
from hf_compat.arguments.parallelism import ParallelSizes, read_parallelism, read_sequence_parallelism
from hf_compat.arguments.sequence_parallelism import SequenceParallelism, rotation
from hf_compat.distributed.accelerate_state import accelerate_module
from hf_compat.errors import NotSupportedError

if TYPE_CHECKING:
    import torch

    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.fsdp import FsdpSettings

_WRAPPINGS = {"transformer": "TRANSFORMER_BASED_WRAP", "size": "SIZE_BASED_WRAP", "none": "NO_WRAP"}


@dataclass(frozen=True, slots=True)
class FsdpVersion:
    """Stands for accelerate's FSDP plugin where accelerate is not installed."""

    fsdp_version: int
    """1 or 2."""


def fsdp_plugin(settings: FsdpSettings | None, mixed_precision: str, device: torch.device) -> Any:
    """Return accelerate's FSDP plugin with ``settings``; None without FSDP.

    Args:
        settings: How FSDP shards the model; None without FSDP.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``.
        device: The device of this rank; torch synchronises the ranks' weights on GPUs only.
    """
    if settings is None:
        return None
    module = accelerate_module("accelerate.utils")
    if module is None:
        return FsdpVersion(settings.version)
    before = os.environ.get(LOADING_VARIABLE)
    try:
        plugin = module.FullyShardedDataParallelPlugin(**_keywords(settings, on_cpu=device.type == "cpu"))
    finally:  # the plugin sets it, though it is the arguments' to set
        if before is None:
            os.environ.pop(LOADING_VARIABLE, None)
        else:
            os.environ[LOADING_VARIABLE] = before
    if mixed_precision != "no":
        plugin.set_mixed_precision(mixed_precision)
    return plugin


def _keywords(settings: FsdpSettings, *, on_cpu: bool) -> dict[str, Any]:
    shared = {
        "fsdp_version": settings.version,
        "auto_wrap_policy": _WRAPPINGS[settings.wrapping],
        "transformer_cls_names_to_wrap": list(settings.layer_classes) or None,
        "min_num_params": settings.min_num_params,
        "cpu_offload": settings.cpu_offload,
        "state_dict_type": f"{settings.state_dict_type.upper()}_STATE_DICT",
        "activation_checkpointing": settings.activation_checkpointing,
        "cpu_ram_efficient_loading": settings.cpu_ram_efficient_loading and not on_cpu,
    }
    if settings.version == 2:
        return shared | {"reshard_after_forward": settings.reshards_after_forward}
    return shared | {
        "reshard_after_forward": settings.sharding.upper(),
        "backward_prefetch": settings.backward_prefetch and settings.backward_prefetch.upper(),
        "forward_prefetch": settings.forward_prefetch,
        "limit_all_gathers": settings.limit_all_gathers,
        "use_orig_params": settings.use_orig_params,
        "sync_module_states": settings.sync_module_states and not on_cpu,
    }


def parallelism_config(args: TrainingArguments, sizes: ParallelSizes) -> Any:
    """Return accelerate's ``ParallelismConfig`` of ``args``, of the launcher or of ``sizes``; None without one.

    Without accelerate, our own value of the sizes.

    Args:
        args: The training arguments.
        sizes: Sizes of the device mesh, which a model that was sharded as it was loaded may have chosen.
    """
    given = args.parallelism_config
    if given is not None and not isinstance(given, Mapping):
        return given
    sequences = read_sequence_parallelism(args)
    if sequences is not None:
        return _sequence_parallelism_config(sequences)
    if read_parallelism(args) is None:
        if sizes.tp == 1 or uses_deepspeed(args):
            return None
        # As transformers: replicas and shards, which are the model's own matter, count together.
        sizes = ParallelSizes(dp_shard=sizes.dp_replicate * sizes.dp_shard, tp=sizes.tp)
    module = accelerate_module("accelerate.utils")
    if module is None:
        return sizes
    handlers = {}
    if sizes.cp > 1:
        handlers["cp_handler"] = module.TorchContextParallelConfig(cp_comm_strategy=rotation(given))
    return module.ParallelismConfig(**sizes.keywords, **handlers)


def _sequence_parallelism_config(sequences: SequenceParallelism) -> Any:
    module = accelerate_module("accelerate.utils")
    if module is None:
        return sequences
    handler = module.DeepSpeedSequenceParallelConfig(
        sp_seq_length=sequences.length,
        sp_seq_length_is_variable=sequences.length is None,
        sp_attn_implementation=sequences.attention,
    )
    return module.ParallelismConfig(
        sp_size=sequences.size, sp_backend="deepspeed", sp_handler=handler, dp_shard_size=sequences.data
    )


# Members of accelerate's `Accelerator` that a Trainer's does not have or cannot change, and what to use instead.


_CHECKPOINTS = "the Trainer saves and resumes: `save_strategy` and `train(resume_from_checkpoint=...)`"
_STATES = "put the state into a callback that derives from `ExportableState`, which checkpoints save"
_TRACKERS = "report by `report_to`, or pass `lightning={'logger': ...}` to the Trainer"
_UNEVEN = "give every rank the same number of batches: keep `accelerator_config={'even_batches': True}`"
_PARALLEL = "this parallelism is not supported; see the table in docs/distributed.md"

REFUSED: dict[str, str] = {
    "context_parallel_rank": "read `accelerator.torch_device_mesh['cp'].get_local_rank()`",
    "deepspeed_ulysses_dl_adapter": "with an `sp_size` the Trainer itself shares out the sequences of its train loader",
    "get_tracker": _TRACKERS,
    "init_trackers": _TRACKERS,
    "join_uneven_inputs": _UNEVEN,
    "load_state": _CHECKPOINTS,
    "pipeline_parallel_rank": _PARALLEL,
    "register_for_checkpointing": _STATES,
    "register_load_state_pre_hook": _STATES,
    "register_save_state_pre_hook": _STATES,
    "save_state": _CHECKPOINTS,
}
"""Name → what to use instead."""

_FP8 = "8-bit training is not supported"
_POSITIONS = "the Trainer restores the position of a loader itself"
FIXED: dict[str, tuple[Any, str]] = {
    "ao_recipe_handler": (None, _FP8),
    "ddp_handler": (None, "set the fields `ddp_...`, or pass `lightning={'strategy': DDPStrategy(...)}`"),
    "delayed_fp8_autocast": (False, _FP8),
    "device_placement": (True, "pass `device_placement=False` to `prepare`, `prepare_model` or `prepare_data_loader`"),
    "fp8_backend": ("NO", _FP8),
    "fp8_enabled": (False, _FP8),
    "fp8_recipe_handler": (None, _FP8),
    "has_fp8_handler": (False, _FP8),
    "init_handler": (None, "set the fields `ddp_backend` and `ddp_timeout`"),
    "log_with": ([], _TRACKERS),
    "msamp_recipe_handler": (None, _FP8),
    "rng_types": (["generator"], "the ranks only share the order of samples; seed other generators on each rank"),
    "scaler_handler": (None, "pass a precision plugin with a scaler: `lightning={'plugins': [MixedPrecision(...)]}`"),
    "step_scheduler_with_optimizer": (True, "do not prepare a schedule that steps by itself"),
    "te_recipe_handler": (None, _FP8),
    "dataloader_config.use_stateful_dataloader": (False, _POSITIONS),
    "project_configuration.automatic_checkpoint_naming": (False, _CHECKPOINTS),
    "project_configuration.iteration": (0, _CHECKPOINTS),
    "project_configuration.save_on_each_node": (False, "save where `accelerator.is_local_main_process`"),
    "project_configuration.total_limit": (None, "set `save_total_limit`"),
}
"""Settings of accelerate's that have one value here → that value, and what to use instead of assigning another."""


class RefusedMemberError(NotSupportedError, AttributeError):
    """A member of accelerate's ``Accelerator`` that is not supported; ``hasattr`` is False for it."""


def refused_member(name: str) -> AttributeError:
    """Return the error of reading ``accelerator.<name>``."""
    if name in REFUSED:
        return RefusedMemberError(f"`accelerator.{name}` is not supported: {REFUSED[name]}.")
    return AttributeError(f"`accelerator` has no attribute {name!r}.")


class FixedSetting:
    """One of ``FIXED`` as an attribute: it has its one value, and assigning another is an error.

    Args:
        within: The settings object of the accelerator that it belongs to. Default: the accelerator itself.
    """

    def __init__(self, within: str | None = None) -> None:
        self._prefix = "" if within is None else f"{within}."

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._prefix + name

    def __get__(self, holder: object, owner: type) -> Any:
        return copy(FIXED[self._name][0])

    def __set__(self, holder: object, value: Any) -> None:
        fixed, remedy = FIXED[self._name]
        if value != fixed:
            raise RefusedMemberError(f"`accelerator.{self._name}={value!r}` cannot be set: {remedy}.")


# The settings that accelerate's `Accelerator` shows as objects: of loaders and of a project's folders.


Kind = TypeVar("Kind")


@dataclass
class LoaderSettings:
    """Settings of prepared loaders, by the names of accelerate's ``DataLoaderConfiguration``."""

    split_batches: bool = False
    """Whether one batch is split over the ranks."""
    dispatch_batches: bool | None = None
    """Whether rank 0 reads the data for all ranks; None: for iterable data sets only."""
    even_batches: bool = True
    """Whether samples are repeated so that every rank gets the same number of batches."""
    use_seedable_sampler: bool = False
    """Whether the order of samples depends only on the seed and the epoch."""
    data_seed: int | None = None
    """Seed of that order; None for torch's initial seed."""
    non_blocking: bool = False
    """Whether batches are copied to the device asynchronously."""
    use_stateful_dataloader: FixedSetting = FixedSetting("dataloader_config")
    """Whether torchdata's stateful loaders are used; the Trainer restores positions itself."""

    @classmethod
    def of(cls, config: AcceleratorConfig, data_seed: int | None) -> LoaderSettings:
        """Return the settings in ``config``, the field ``accelerator_config``."""
        return cls(
            split_batches=config.split_batches,
            dispatch_batches=config.dispatch_batches,
            even_batches=config.even_batches,
            use_seedable_sampler=config.use_seedable_sampler,
            data_seed=data_seed,
            non_blocking=config.non_blocking,
        )


@dataclass
class ProjectSettings:
    """Folders of a project, by the names of accelerate's ``ProjectConfiguration``; the Trainer uses ``output_dir``."""

    project_dir: str | None = None
    """Folder of the project."""
    logging_dir: str | None = None
    """Folder of its logs."""
    automatic_checkpoint_naming: FixedSetting = FixedSetting("project_configuration")
    """Whether accelerate numbers the checkpoints that it saves."""
    total_limit: FixedSetting = FixedSetting("project_configuration")
    """How many of them are kept."""
    iteration: FixedSetting = FixedSetting("project_configuration")
    """Number of the next one."""
    save_on_each_node: FixedSetting = FixedSetting("project_configuration")
    """Whether each node saves."""


class SettingsObject(Generic[Kind]):
    """Settings of ``kind`` as an attribute; accelerate's own object may be assigned, whose values are taken over."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, holder: None, owner: type) -> SettingsObject[Kind]: ...

    @overload
    def __get__(self, holder: object, owner: type) -> Kind: ...

    def __get__(self, holder: object, owner: type) -> SettingsObject[Kind] | Kind:
        if holder is None:
            return self
        value: Kind = vars(holder)[self._name]
        return value

    def __set__(self, holder: object, value: Any) -> None:
        names = (field.name for field in fields(self._kind))  # type: ignore[arg-type]
        vars(holder)[self._name] = self._kind(**{name: getattr(value, name) for name in names})
