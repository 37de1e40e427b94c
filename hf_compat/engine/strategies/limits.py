"""The arguments of a Trainer that each strategy does not support."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.tensor import DTensor

from hf_compat.arguments.deepspeed.contradictions import config_contradictions, field_contradictions
from hf_compat.arguments.deepspeed.requested import config_in_use
from hf_compat.arguments.fsdp.fsdp_checks import node_limits
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
    from hf_compat.arguments.deepspeed.config import HfTrainerDeepSpeedConfig
    from hf_compat.arguments.sequence_parallelism import SequenceParallelism
    from hf_compat.engine.strategies.traits import StrategyRequest

__all__ = ["data_parallel_limits", "deepspeed_limits", "fsdp_limits", "presharded_limits"]

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
    problems = [*field_contradictions(args)]
    problems += _tensor_parallel_problems(deepspeed, sequences, request.model)
    problems += config_contradictions(args, in_background=is_requested(args))
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
    problems += node_limits(args)
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
