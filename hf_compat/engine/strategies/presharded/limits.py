"""The arguments of a Trainer that are not supported with a model that ``from_pretrained`` has sharded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.tensor import DTensor

from hf_compat.engine.parallel_mesh import TENSOR_PARALLEL, float16_problem
from hf_compat.model_facts import indivisible_heads, presharded_size

if TYPE_CHECKING:
    from hf_compat.engine.strategies.traits import StrategyRequest

__all__ = ["presharded_limits"]


_HEADS = {
    "q_proj": "num_attention_heads",
    "k_proj": "num_key_value_heads",
    "v_proj": "num_key_value_heads",
}
"""A module of an attention layer → the number in the config of the heads that it computes."""


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
