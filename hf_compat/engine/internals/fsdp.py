"""The private names of Lightning's ``FSDPStrategy`` that hf_compat uses, with the contract it relies on."""

from __future__ import annotations

from functools import partial

from lightning.pytorch.strategies import FSDPStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

from hf_compat.arguments.fsdp.settings import FsdpSettings

__all__ = ["parse_fsdp_strategy"]


def parse_fsdp_strategy(strategy: FSDPStrategy) -> tuple[FsdpSettings, list[str]]:
    """Return the settings of the user's ``strategy``, and which keywords and policies are not supported.

    Contract: Lightning's ``FSDPStrategy`` stores ``sharding_strategy`` and ``cpu_offload`` as torch's objects, full or
    sharded state dicts in ``_state_dict_type``, activation checkpointing in ``_activation_checkpointing_kwargs``, and
    the wrapper's other keywords in ``kwargs``, with a set of layers as ``ModuleWrapPolicy``.
    """
    given = {name: value for name, value in strategy.kwargs.items() if name != "device_mesh"}
    policy, prefetch = given.pop("auto_wrap_policy", None), given.pop("backward_prefetch", None)
    checkpointing = dict(strategy._activation_checkpointing_kwargs)
    layers = _layers_of(policy)
    flags = ("forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states")
    values = {name: bool(given.pop(name)) for name in flags if name in given}
    by_size = isinstance(policy, partial) and policy.func is size_based_auto_wrap_policy
    least = policy.keywords.get("min_num_params", 10**8) if by_size else 0
    problems = [f"`{name}` is not supported, do not pass it" for name in given]
    if policy is not None and layers is None and not by_size:
        problems.append("`auto_wrap_policy` must be a set of layer classes, or torch's size-based policy")
    if checkpointing and (layers is None or _layers_of(checkpointing.get("auto_wrap_policy")) != layers):
        problems.append("`activation_checkpointing_policy` must be the layers of `auto_wrap_policy`")
    return FsdpSettings(
        version=1,
        sharding=strategy.sharding_strategy.name.lower().removeprefix("_"),  # type: ignore[arg-type]
        wrapping="size" if by_size else "transformer" if layers else "none",
        layer_classes=layers or (),
        min_num_params=least,
        cpu_offload=strategy.cpu_offload is not None and strategy.cpu_offload.offload_params,
        state_dict_type=strategy._state_dict_type,
        activation_checkpointing=bool(checkpointing),
        backward_prefetch=None if prefetch is None else prefetch.name.lower(),
        **values,
    ), problems


def _layers_of(policy: object) -> tuple[str, ...] | None:
    if not isinstance(policy, ModuleWrapPolicy):
        return None
    return tuple(sorted(layer.__name__ for layer in policy._module_classes))
