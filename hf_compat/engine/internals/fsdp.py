"""The private names of Lightning's ``FSDPStrategy`` that hf_compat touches, with the contract it relies on.

Beside ``internals``, which would be too long with it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.engine.internals.strategies import RawModelStrategy

__all__ = ["RawModelFSDPStrategy", "fsdp_choices"]


class RawModelFSDPStrategy(RawModelStrategy, FSDPStrategy):
    """Lightning's FSDP with the wrapper around the model inside the LightningModule, in processes that run already.

    Contract: only the exact class is refused on a CPU; ``kwargs``, ``sharding_strategy``, ``cpu_offload`` and
    ``mixed_precision`` are what the wrapper is made with, in ``_setup_model``, which only ``setup`` calls;
    ``setup_optimizers`` asks the module for its optimizer.
    """

    # Lightning's own takes its FSDPPrecision alone, which brings what the wrapper is told here anyway.
    precision_plugin = Strategy.precision_plugin  # type: ignore[assignment]

    def wrapped(self, model: Any) -> Any:
        """Return what gathers the parameters of ``model``: the model itself, unless a strategy wraps it."""
        return model

    def setup(self, trainer: pl.Trainer) -> None:
        """Wrap the model, for evaluations alone too, and hand the wrapper to the run; a fit needs an optimizer."""
        assert self.accelerator is not None, "a trainer has given it"
        module: Any = self.lightning_module
        self.accelerator.setup(trainer)
        self.model = self.wrapped(module.model)
        module.host.take_wrapper(self.model)
        if trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()


def fsdp_choices(strategy: FSDPStrategy) -> tuple[FsdpSettings, list[str]]:
    """Return what a user chose for ``strategy``, and what of it cannot be kept.

    Contract: Lightning's ``FSDPStrategy`` keeps ``sharding_strategy`` and ``cpu_offload`` as torch's, the size of what
    checkpoints hold in ``_state_dict_type``, the layers to compute again in ``_activation_checkpointing_kwargs``, and
    other keywords of the wrapper in ``kwargs``, a set of layers as a ``ModuleWrapPolicy``.
    """
    given = dict(strategy.kwargs)
    policy, prefetch = given.pop("auto_wrap_policy", None), given.pop("backward_prefetch", None)
    again = dict(strategy._activation_checkpointing_kwargs)
    layers = _layers_of(policy)
    flags = ("forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states")
    values = {name: bool(given.pop(name)) for name in flags if name in given}
    by_size = isinstance(policy, partial) and policy.func is size_based_auto_wrap_policy
    least = policy.keywords.get("min_num_params", 10**8) if by_size else 0
    problems = [f"leave its `{name}` out" for name in (*given, *_unknown_choices(strategy))]
    if policy is not None and layers is None and not by_size:
        problems.append("its `auto_wrap_policy` has to be a set of layer classes, or torch's policy by size")
    if again and (layers is None or _layers_of(again.get("auto_wrap_policy")) != layers):
        problems.append("its `activation_checkpointing_policy` has to name the layers of its `auto_wrap_policy`")
    return FsdpSettings(
        version=1,
        sharding=strategy.sharding_strategy.name.lower().removeprefix("_"),  # type: ignore[arg-type]
        wrapping="size" if by_size else "transformer" if layers else "none",
        layer_classes=layers or (),
        min_num_params=least,
        cpu_offload=strategy.cpu_offload is not None and strategy.cpu_offload.offload_params,
        state_dict_type=strategy._state_dict_type,
        activation_checkpointing=bool(again),
        backward_prefetch=None if prefetch is None else prefetch.name.lower(),
        **values,
    ), problems


def _layers_of(policy: Any) -> tuple[str, ...] | None:
    if not isinstance(policy, ModuleWrapPolicy):
        return None
    return tuple(sorted(layer.__name__ for layer in policy._module_classes))


def _unknown_choices(strategy: FSDPStrategy) -> list[str]:
    """Return the arguments, by their names, that say what is said elsewhere or cannot be kept."""
    plain = FSDPStrategy()
    names = ("process_group_backend", "timeout", "parallel_devices", "checkpoint_io", "precision_plugin")
    found = [name for name in names if vars(strategy).get(f"_{name}") != vars(plain).get(f"_{name}")]
    if strategy.mixed_precision is not None:
        found.append("mixed_precision")
    return found if strategy.cluster_environment is None else [*found, "cluster_environment"]
