"""The arguments of a Trainer that each strategy does not support."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor

from hf_compat.arguments.deepspeed.requested import config_in_use
from hf_compat.arguments.parallelism import read_sequence_parallelism
from hf_compat.checkpoint.background import is_requested
from hf_compat.engine.moving import is_spread
from hf_compat.engine.parallel_mesh import TENSOR_PARALLEL, float16_problem
from hf_compat.engine.precision import FullPrecision
from hf_compat.engine.ring_attention import context_parallel_limits
from hf_compat.engine.strategies.deepspeed.sequence_parallel import sequence_parallel_limits
from hf_compat.model_facts import indivisible_heads, is_peft_model, presharded_size
from hf_compat.optim.optimizer_request import plain_name

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.deepspeed.filling import HfTrainerDeepSpeedConfig
    from hf_compat.arguments.sequence_parallelism import SequenceParallelism
    from hf_compat.engine.strategies.traits import StrategyRequest

__all__ = ["data_parallel_limits", "deepspeed_limits", "fsdp_limits", "presharded_limits"]

_OFFLOADED = ("offload_param", "offload_optimizer")
"""Sections of ``zero_optimization`` that offload to the CPU or to a disk."""

_HEADS = {
    "q_proj": "num_attention_heads",
    "k_proj": "num_key_value_heads",
    "v_proj": "num_key_value_heads",
}
"""A module of an attention layer → the number in the config of the heads that it computes."""


def deepspeed_limits(request: StrategyRequest) -> list[str]:
    """Return a message for each argument that is not supported with DeepSpeed."""
    args, precision, deepspeed = request.args, request.precision, config_in_use(request.args)
    config, sequences = deepspeed.config, read_sequence_parallelism(args)
    loads_best, problems = args.load_best_model_at_end, list[str]()
    if args.save_only_model and loads_best:
        problems.append(
            "DeepSpeed can't be used with `save_only_model` along with `load_best_model_at_end`: it loads full "
            "checkpoints only. Set one of them to False."
        )
    if args.auto_find_batch_size and deepspeed.is_zero3():
        problems.append(
            "`auto_find_batch_size` isn't supported yet with DeepSpeed Zero-3, whose parameters cannot be gathered "
            "after an error in the middle of a pass. Set `per_device_train_batch_size`, or use ZeRO-1 or 2."
        )
    problems += _tensor_parallel_problems(deepspeed, sequences, request.model)
    problems += _sequence_problems(sequences, config)
    if deepspeed.is_zero3():
        problems += _zero_3_problems(args.world_size, config["zero_optimization"])
    problems += _writer_problems(args, config)
    problems += _universal_problems(config, loads_best=loads_best)
    problems += sequence_parallel_limits(sequences, request.model)
    if not isinstance(precision, FullPrecision):
        problems.append(
            f"`lightning={{'plugins': [{type(precision).__name__}]}}` is not supported with `deepspeed`: its config "
            "sets the precision. Remove the plugin."
        )
    optim = str(plain_name(args.optim))
    if "optimizer" in config and not optim.startswith("adamw"):
        problems.append(f"`optim={optim!r}`: the DeepSpeed config has an `optimizer` too. Set only one of them.")
    return problems


def _tensor_parallel_problems(
    config: HfTrainerDeepSpeedConfig, sequences: SequenceParallelism | None, model: nn.Module | None
) -> Iterator[str]:
    """Yield a message for each setting beside which DeepSpeed's tensor parallelism, if ``config`` has it, fails."""
    size = config.tensor_parallel_size
    if size == 1:
        return
    name = f"`tensor_parallel.autotp_size={size}` in the DeepSpeed config"
    if is_peft_model(model):
        yield (
            f"{name} is not supported with the adapters of a peft model, whose parameters DeepSpeed does not find "
            "again once it has split the matrices below them. Merge the adapters, or use ZeRO-3 in its place."
        )
    if config.is_zero3():
        yield (
            f"{name} is not supported with ZeRO-3, which refuses the samples of an update step that the Trainer fills "
            "in, also that of transformers. Set `zero_optimization.stage` to 0, 1 or 2, or remove `tensor_parallel`."
        )
    if sequences is not None:
        yield (
            f"{name} is not supported with `sp_size={sequences.size}` in `parallelism_config`: DeepSpeed takes the "
            "groups of ranks of one of them only. Remove one."
        )


def _sequence_problems(sequences: SequenceParallelism | None, config: dict[str, Any]) -> Iterator[str]:
    """Yield a message if ``config`` has another number of ranks share sequences than ``sequences``."""
    size, wanted = config.get("sequence_parallel_size"), 1 if sequences is None else sequences.size
    if size not in (None, wanted):
        yield (
            f"`sequence_parallel_size={size}` in the DeepSpeed config, but `sp_size` of `parallelism_config` is "
            f"{wanted}: the Trainer shares out sequences and batches by the latter alone. Remove the former, and set "
            "`sp_size`."
        )


def _zero_3_problems(world_size: int, zero: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each key of the section ``zero`` that ZeRO-3 reads, as no other stage does, and fails on."""
    size = zero.get("zero_hpz_partition_size", 1)
    if isinstance(size, int) and 1 < size < world_size and world_size % size:
        yield (
            f"`zero_optimization.zero_hpz_partition_size={size}` in the DeepSpeed config does not divide the "
            f"{world_size} processes into groups of that size. Set a divisor of {world_size}, or 1."
        )
    offloaded = [name for name in _OFFLOADED if (zero.get(name) or {}).get("device") == "nvme"]
    if offloaded and not _loads_async_io():
        keys = " and ".join(f"`zero_optimization.{name}.device=nvme`" for name in offloaded)
        yield (
            f"{keys} in the DeepSpeed config: DeepSpeed cannot build its op `async_io` here. Install libaio "
            "with its header (libaio-dev or libaio-devel) and ninja, or set the device to cpu. `ds_report` lists what "
            "it can build."
        )


def _loads_async_io() -> bool:
    """Return whether DeepSpeed's op that reads and writes a disk is installed, or can be built."""
    git_version_info = importlib.import_module("deepspeed.git_version_info")
    if git_version_info.installed_ops.get("async_io"):
        return True
    return bool(importlib.import_module("deepspeed.ops.op_builder").AsyncIOBuilder().is_compatible(verbose=False))


def _writer_problems(args: TrainingArguments, config: dict[str, Any]) -> Iterator[str]:
    """Yield a message if ``config`` has DeepSpeed write checkpoints in a way that the folders do not allow."""
    writer = (config.get("checkpoint") or {}).get("writer")
    decoupled = isinstance(writer, dict) and writer.get("decoupled")
    if decoupled or config.get("datastates_ckpt", False) is not False:
        name = "checkpoint.writer.decoupled" if decoupled else "datastates_ckpt"
        yield (
            f"`{name}` in the DeepSpeed config is not supported: DeepSpeed would still be writing files after the "
            "checkpoint folder has appeared. Remove it, and set `save_async=True` to save in the background."
        )
    elif writer is not None and is_requested(args):
        yield (
            f"`save_async={args.save_async}` (or HF_COMPAT_ASYNC_SAVE) is not supported with `checkpoint.writer` in "
            "the DeepSpeed config: DeepSpeed's writer would copy the files once more, into its own buffers. Remove one "
            "of the two."
        )


def _universal_problems(config: dict[str, Any], *, loads_best: bool) -> Iterator[str]:
    """Yield a message for each argument that contradicts resuming a universal checkpoint, if ``config`` requests it."""
    if not (config.get("checkpoint") or {}).get("load_universal"):
        return
    name = "`checkpoint.load_universal=true` in the DeepSpeed config"
    if (config.get("zero_optimization") or {}).get("stage", 0) == 0:
        yield (
            f"{name} is not supported without ZeRO: DeepSpeed reads universal checkpoints into ZeRO's optimizers. "
            "Set `zero_optimization.stage` to 1, 2 or 3."
        )
    if loads_best:
        yield (
            f"{name} with `load_best_model_at_end=True` is not supported: the run's own checkpoints are not "
            "universal, so the best one could not be loaded at the end. Set one of them to False, or save once with "
            "the new number of processes and resume that checkpoint without `load_universal`."
        )


def data_parallel_limits(request: StrategyRequest) -> list[str]:
    """Return a message for each argument that is not supported with several GPUs in one process."""
    args, model = request.args, request.model
    if "underflow_overflow" not in args.debug or (model is not None and is_spread(model, args.device)):
        return []
    return [
        f"`debug='underflow_overflow'` is not supported under DP, with {args.n_gpu} GPUs in one process: its hooks "
        "would not be those of the replicas. Start the script with `torchrun`, or set CUDA_VISIBLE_DEVICES to one GPU."
    ]


def fsdp_limits(request: StrategyRequest) -> list[str]:
    """Return a message for each argument that is not supported with FSDP, or with tensor parallelism."""
    args, settings, problems = request.args, request.fsdp, list[str]()
    if request.sizes.tp > 1 and args.mixed_precision == "fp16":
        problems.append(float16_problem(f"`tp_size={request.sizes.tp}`"))
    if settings is None:  # tensor parallelism only
        return problems
    if args.save_on_each_node and (nodes := args.launch.num_nodes) > 1:
        problems.append(
            f"`save_on_each_node=True` with {nodes} nodes is not supported with FSDP: only rank 0 has "
            "the full state dicts. Set it to False."
        )
    if is_peft_model(request.model) and settings.state_dict_type == "sharded":
        problems.append(
            "`model`: the adapters of a peft model can only be saved as a full state dict. Set "
            "`fsdp_config={'state_dict_type': 'FULL_STATE_DICT'}`."
        )
    if request.has_optimizers:
        problems.append(
            "Passing `optimizers` is not allowed if PyTorch FSDP is enabled: it was created with the full parameters, "
            "which FSDP replaces by shards. Override `create_optimizer`, or pass `optimizer_cls_and_kwargs`."
        )
    problems += context_parallel_limits(request.sizes.cp, request.model)
    return problems


def presharded_limits(request: StrategyRequest) -> list[str]:
    """Return a message for heads that ranks cannot share, and for float16 of parameters on several device meshes."""
    sizes = {name: presharded_size(request.model, name) for name in ("tp_size", "ep_size")}
    problems = [*_divided_heads(request.model, sizes["tp_size"])]
    if request.args.mixed_precision == "fp16" and max(sizes.values()) > 1:
        split = " and ".join(f"`{name}={size}`" for name, size in sizes.items() if size > 1)
        problems.append(float16_problem(f"a model that was loaded with {split}"))
    return problems


def _divided_heads(model: nn.Module | None, size: int) -> Iterator[str]:
    """Yield a message if the ``size`` ranks that split matrices of attention have parts of heads."""
    if model is None or size == 1:
        return
    split = {name.split(".")[-2] for name, item in model.named_parameters() if "." in name and _is_split(item)}
    computed = {_HEADS[name] for name in _HEADS.keys() & split}
    wrong = [f"`{name}={count}`" for name, count in indivisible_heads(model, size) if name in computed]
    if wrong:
        yield (
            f"`model`: {type(model).__name__} was loaded with `tp_size={size}`, which does not divide "
            f"{' and '.join(wrong)} of its config: each rank would have parts of heads. Load it with another `tp_size`."
        )


def _is_split(parameter: nn.Parameter) -> bool:
    if not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names or (TENSOR_PARALLEL,)  # without names it is by a `tp_plan`
    return any(
        name == TENSOR_PARALLEL and placement.is_shard()
        for name, placement in zip(names, parameter.placements, strict=False)
    )
