"""The members of accelerate's ``Accelerator`` that subclasses of the Trainer call, on a Lightning run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.data.loader import PreparedDataLoader, prepare_dataloader

if TYPE_CHECKING:
    from hf_compat.engine.module import HFModule

__all__ = ["Accelerator"]


class Accelerator:
    """One process on one device, with accelerate's names.

    Args:
        device: Where the model is.
        config: How loaders are shared out; its settings are readable here too.
        data_seed: Seed of the order of samples; None takes torch's initial seed.
    """

    num_processes = 1
    process_index = 0
    local_process_index = 0
    is_main_process = True
    is_local_main_process = True
    distributed_type = "NO"

    def __init__(self, device: torch.device, config: AcceleratorConfig, data_seed: int | None = None) -> None:
        self.device = device
        self.split_batches = config.split_batches
        self.dispatch_batches = config.dispatch_batches
        self.even_batches = config.even_batches
        self.use_seedable_sampler = config.use_seedable_sampler
        self.non_blocking = config.non_blocking
        self._data_seed = data_seed
        self._module: HFModule | None = None
        self._eval_loader: Any = None
        self.sync_gradients = True

    def attach(self, module: HFModule | None) -> None:
        """Let backward passes go through ``module``'s Lightning run; None once the run is over."""
        self._module = module

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the gradient scaler left the last optimizer step out."""
        return bool(getattr(self._plugin, "step_was_skipped", False))

    @property
    def scaler(self) -> Any:
        """The gradient scaler of an fp16 run, None otherwise."""
        return getattr(self._plugin, "scaler", None)

    @property
    def _plugin(self) -> Any:
        return None if self._module is None else self._module.trainer.precision_plugin

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Run the backward pass of ``loss``, scaled under fp16."""
        kwargs.pop("scale_wrt_gas", None)
        if self._module is None:
            torch.autograd.backward(loss, **kwargs)
        else:
            self._module.manual_backward(loss, **kwargs)

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the gradients of ``parameters`` to ``max_norm`` together; return their norm before, ``()``."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Hold back gradient synchronisation; with one process there is none."""
        self.sync_gradients = False
        try:
            yield
        finally:
            self.sync_gradients = True

    def watch_evaluation(self, loader: Any) -> Any:
        """Let :meth:`gather_for_metrics` trim by ``loader``, by none if it is None; return the one before."""
        before, self._eval_loader = self._eval_loader, loader
        return before

    def gather(self, tensors: Any) -> Any:
        """Return ``tensors`` of all processes, concatenated along the first axis."""
        return tensors

    def gather_for_metrics(self, tensors: Any, use_gather_object: bool = False) -> Any:
        """Return ``tensors`` of all processes; on the last batch only as many samples as the data set holds.

        References:
            As accelerate's: with a data set without length, or a tensor without dimensions, nothing is trimmed.
        """
        loader = self._eval_loader
        remainder = getattr(loader, "remainder", -1)
        if not getattr(loader, "end_of_dataloader", False) or remainder <= 0:
            return tensors
        try:
            return _first(tensors, remainder)
        except IndexError:
            return tensors

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return ``tensor`` padded along ``dim`` to the longest of all processes."""
        return tensor

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return ``tensor`` reduced over all processes."""
        return tensor

    def prepare(self, *objects: Any, **_: Any) -> Any:
        """Return ``objects`` ready for the run: loaders shuffle by seed and epoch, the rest is as it was."""
        prepared = tuple(self._prepare_loader(item) if isinstance(item, DataLoader) else item for item in objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepare_loader(self, loader: DataLoader[Any]) -> PreparedDataLoader:
        return prepare_dataloader(
            loader,
            device=self.device,
            data_seed=self._data_seed,
            seedable=self.use_seedable_sampler,
            non_blocking=self.non_blocking,
            dispatch=self.dispatch_batches,
        )

    def prepare_model(self, model: nn.Module, device_placement: bool | None = None, **_: Any) -> nn.Module:
        """Return ``model`` on the run's device."""
        return model if device_placement is False else model.to(self.device)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, **_: Any) -> nn.Module:
        """Return the model itself, without ``torch.compile``'s wrapper."""
        return getattr(model, "_orig_mod", model)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return ``model``'s whole state."""
        return self.unwrap_model(model).state_dict() if unwrap else model.state_dict()

    def wait_for_everyone(self) -> None:
        """Wait until all processes are here."""

    def free_memory(self, *objects: Any) -> list[Any]:
        """Return as many Nones as ``objects``."""
        return [None for _ in objects]

    def print(self, *values: Any, **kwargs: Any) -> None:
        """Print on the main process."""
        print(*values, **kwargs)  # noqa: T201 - that is what is asked for


def _first(data: Any, count: int) -> Any:
    """Return the first ``count`` samples of every tensor in ``data``."""
    if isinstance(data, Tensor):
        return data[:count]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_first(item, count) for item in data))
    if isinstance(data, list | tuple):
        return type(data)(_first(item, count) for item in data)
    if isinstance(data, dict):
        return type(data)({key: _first(value, count) for key, value in data.items()})
    return data
