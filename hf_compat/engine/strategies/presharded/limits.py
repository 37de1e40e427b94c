"""The arguments of a Trainer that are not supported with a model that ``from_pretrained`` has sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.model_facts import presharded_size

if TYPE_CHECKING:
    from hf_compat.engine.strategies.traits import StrategyRequest

__all__ = ["presharded_limits"]


def presharded_limits(request: StrategyRequest) -> list[str]:
    """Return a message if float16 is requested of a model whose parameters are on several device meshes."""
    sizes = {name: presharded_size(request.model, name) for name in ("tp_size", "ep_size")}
    if request.args.mixed_precision != "fp16" or max(sizes.values()) == 1:
        return []
    split = " and ".join(f"`{name}={size}`" for name, size in sizes.items() if size > 1)
    return [
        f"`fp16=True` is not supported with a model that was loaded with {split}: torch's gradient scaler takes no "
        "gradients on several device meshes. Set `bf16=True` instead."
    ]
