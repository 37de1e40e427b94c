"""``ModelStrategy``: what the Trainer needs of a strategy besides Lightning; the defaults for an unsharded model."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from hf_compat.arguments.accelerator_config import syncs_each_batch
from hf_compat.checkpoint import names, states, weights
from hf_compat.checkpoint.background import HostBuffers, Put, to_host
from hf_compat.engine.internals.loops import is_fitting
from hf_compat.engine.internals.strategies import starts_no_processes
from hf_compat.engine.moving import is_in_8_or_4_bits
from hf_compat.engine.process_layout import ProcessLayout, lightning_accelerator
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments


@starts_no_processes
class ModelStrategy(Strategy):
    """Base class of Lightning strategies that wrap the raw model, not the LightningModule around it.

    Towards Lightning: the ranks are started already, the device is the training arguments', the steps are the module's
    own, and the optimizers' state stays on the device when a run ends. Contract: Lightning calls the steps through
    ``self.model`` if that is not the module; ``teardown`` moves the state of ``optimizers`` to the CPU.

    A strategy overrides what it does differently. Optimizer and schedule are created in Lightning's
    ``setup_optimizers``: by ``HFModule.configure_optimizers``, or by an override that calls
    ``module.run.optimization``. A strategy belongs to one ``lightning.Trainer``; :meth:`close` is called before the
    next one is created.

    Methods that "every rank calls" communicate: a rank that does not call them blocks the others.
    """

    engine: Any = None
    """DeepSpeed's engine, which contains model, optimizer and schedule; None without DeepSpeed."""
    ends_update: bool = True
    """Whether the current backward pass is the last of its update step; the loop sets it for each batch."""
    step_was_skipped: bool = False
    """Whether the last optimizer step was skipped, because of an infinite gradient."""
    sequence_group: ProcessGroup | None = None
    """The ranks that share sequences with this one in the current or last fit; None if none do."""
    gathers_weights = False
    """Whether every rank has to call ``full_state_dict`` to save the model."""
    copy_of_weights: Callable[[Any, HostBuffers], Any] = staticmethod(to_host)
    """Copies the state dict to save to host memory, for a save in the background: ``CheckpointFile.copy``."""
    saves_on_every_rank = False
    """Whether the Trainer's ``_save`` communicates, so that every rank calls it, whatever the release does."""
    saves_sharded_weights = False
    """Whether checkpoints contain sharded weights, saved by ``save_sharded_weights``."""
    wraps_each_fit = False
    """Whether each fit makes a new wrapper of the model, so that none is left from the last one."""
    syncs_each_batch: bool = False
    """Whether gradients are synchronised after every batch, by ``sync_each_batch``; set on creation."""
    engine_has_scheduler = False
    """Whether ``save_optimizer`` and ``load_optimizer`` include the learning-rate schedule."""

    lightning_module: Any
    """The module of the current or last run."""
    _device: torch.device

    # ---- Lightning's side ----

    @property
    def root_device(self) -> torch.device:
        """The device of this process, from the training arguments."""
        return self._device

    def model_to_device(self) -> None:
        """Do nothing: the Trainer has moved the model, unless it is sharded or its ``device_map`` says where it is."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself: the wrapper is around the model inside it."""
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        with self.precision_plugin.test_step_context():
            return self.lightning_module.test_step(*args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        with self.precision_plugin.predict_step_context():
            return self.lightning_module.predict_step(*args, **kwargs)

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Run the backward pass as Lightning does, without ``pre_backward``: a wrapper has prepared it in its forward.

        Args:
            closure_loss: The loss, ``()``.
            optimizer: Handed to the precision plugin.
            *args: Of ``Tensor.backward``.
            **kwargs: Of ``Tensor.backward``.

        Returns:
            The loss.
        """
        precision, module = self.precision_plugin, self.lightning_module
        loss = precision.pre_backward(closure_loss, module)
        precision.backward(loss, module, optimizer, *args, **kwargs)
        return precision.post_backward(loss, module)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **named: Any) -> dict[str, Any]:
        """Load the weights of ``ckpt_path`` for an evaluation: a checkpoint of a run, or a Lightning checkpoint.

        Raises:
            TrainerSetupError: In a fit: a run resumes by itself.
        """
        if is_fitting(self.lightning_module.trainer):
            raise TrainerSetupError(
                f"`ckpt_path={str(checkpoint_path)!r}`: Lightning would resume without data position and random "
                "states. Pass it as `resume_from_checkpoint` to `hf_compat.lightning.callbacks` or `to_lightning`."
            )
        if not Path(checkpoint_path).is_dir():
            return super().load_checkpoint(checkpoint_path, *args, **named)
        self.lightning_module.run.original("_load_from_checkpoint")(str(checkpoint_path))
        return {"pytorch-lightning_version": lightning.__version__}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the weights of a Lightning checkpoint; those of a folder are loaded already."""
        if "state_dict" in checkpoint:
            super().load_model_state_dict(checkpoint, strict)

    def teardown(self) -> None:
        """Tear down without moving the optimizers' state: the Trainer keeps the parameters on their device."""
        kept, self.optimizers = self.optimizers, []
        super().teardown()
        self.optimizers = kept

    # ---- a fit: called by the run and the module ----

    def compiled(self, wrapped: nn.Module, *, backend: str, mode: str | None) -> nn.Module:
        """Return ``wrapped`` compiled; called with the argument of ``take_wrapper``.

        Args:
            wrapped: The model in its wrapper.
            backend: Backend of ``torch.compile``.
            mode: Mode of ``torch.compile``; None for its default.
        """
        return torch.compile(wrapped, backend=backend, mode=mode)  # type: ignore[return-value]

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any] | None:
        """Return a context in which backward passes of the wrapped ``model`` do not synchronise gradients.

        None if they never do.
        """
        held: Any = getattr(model, "no_sync", None)
        return None if held is None else held()

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; every rank calls it.

        Args:
            parameters: The parameters of the wrapped model.
            max_norm: The maximum; infinite to compute the norm only.
            norm_type: The p of the p-norm.

        Returns:
            The total norm before clipping, over all ranks, ``()``.
        """
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    # ---- evaluating ----

    def prepare_evaluation(self, model: nn.Module) -> nn.Module | None:
        """Return a new wrapper that ``model`` needs to be evaluated or saved; None if it needs none.

        Every rank calls it, before each evaluation and before saving a model that is sharded when it is loaded.
        """
        return None

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return the module that evaluations call, of the model or, if it is sharded, of the one that trains."""
        return model

    def gathered(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which the unwrapped ``model`` has its full parameters; every rank enters it."""
        return nullcontext()

    # ---- weights ----

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of the unwrapped ``model``; every rank calls it.

        If the model is sharded, rank 0 gets the state dict, on the CPU, and the other ranks an empty dict.
        """
        return model.state_dict()

    def state_dict_of_adapters(self) -> dict[str, Any] | None:
        """Return the trainable weights, to save in place of the full state dict; None to save that.

        Every rank calls it. Rank 0 gets the weights, on the CPU, and the other ranks an empty dict.
        """
        return None

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Load the weights of a checkpoint, full or sharded, into the unwrapped ``model``; every rank calls it.

        Args:
            model: The unwrapped model; one that is to be sharded is wrapped already.
            folder: The checkpoint.
            trains_on: Whether training continues with them.

        Returns:
            Missing and unexpected names.
        """
        return weights.load_weights(model, folder, trains_on=trains_on)

    def save_sharded_weights(self, model: nn.Module, folder: str, put: Put) -> None:
        """Save this rank's shards of the unwrapped ``model`` to ``folder``; every rank calls it.

        Does nothing if ``saves_sharded_weights`` is False.

        Args:
            model: The unwrapped model.
            folder: The checkpoint being written.
            put: Takes each file, to write it at once or in the background.
        """

    # ---- the optimizer's state ----

    def save_optimizer(self, optimizer: Optimizer, folder: str, put: Put, *, saves_common: bool) -> None:
        """Save the optimizer's state to ``folder``; every rank calls it.

        Args:
            optimizer: The run's optimizer.
            folder: The checkpoint being written.
            put: Takes each file, to write it at once or in the background.
            saves_common: Whether this rank writes the files that are equal on all ranks, besides its shards.
        """
        if saves_common:
            states.save_state_file(optimizer, folder, names.OPTIMIZER_NAME, put)

    def has_optimizer_and_schedule(self, folder: str) -> bool:
        """Return whether ``folder`` has the states of both optimizer and schedule; otherwise neither is loaded."""
        return states.has_optimizer_state(Path(folder)) and Path(folder, names.SCHEDULER_NAME).is_file()

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Load the optimizer's state in ``folder``, saved with any strategy; every rank calls it."""
        if Path(folder, names.OPTIMIZER_NAME).is_file():
            states.load_state_file(optimizer, folder, names.OPTIMIZER_NAME)
        else:
            states.load_optimizer_state(optimizer, self.lightning_module.model, Path(folder))

    def resume_engine(self, folder: str) -> None:
        """Load weights, optimizer and schedule in ``folder`` into the engine; does nothing without an engine.

        Every rank calls it, after ``take_wrapper`` and ``take_optimizers`` and before ``load_optimizer``.
        """

    # ---- the end ----

    def abandon(self, model: nn.Module) -> None:
        """Leave the pass of the unwrapped ``model`` that an error has ended, so that it can begin another.

        Every rank calls it, wherever in the pass it was; the pass's gradients are lost.
        """

    def close(self) -> None:
        """Destroy the engine and remove its hooks from the model; does nothing without an engine.

        Every rank calls it, before the strategy of the next ``lightning.Trainer`` is set up.
        """


# A single device, or several GPUs in one process, which to Lightning are the first of them.


class OneDeviceStrategy(ModelStrategy, SingleDeviceStrategy):
    """A single device, or the first of several GPUs, onto which torch's ``DataParallel`` replicates the model.

    That wrapper is what the Trainer's ``_wrap_model`` returns: it is the Trainer's ``model_wrapped`` in training, and
    evaluations make one of their own.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        super().__init__(device=device)

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any] | None:
        """Return None, unless ``model`` is one of several processes', prepared before a run has a strategy."""
        return super().without_sync(model) if torch.distributed.is_initialized() else None


def one_device_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> OneDeviceStrategy:
    """Return the strategy of a run in one process."""
    return OneDeviceStrategy(device)


def replicated(model: nn.Module) -> nn.Module:
    """Return ``model`` in ``DataParallel``, or as it is if its weights are quantized and cannot be replicated."""
    return model if is_in_8_or_4_bits(model) else nn.DataParallel(model)


# Creating the strategy of a `lightning.Trainer` by its name.


STRATEGIES = {
    "one device": "base.one_device_strategy",
    "data parallel": "base.one_device_strategy",
    "ddp": "ddp.ddp_strategy",
    "fsdp1": "fsdp1.fsdp1_strategy",
    "fsdp2": "device_mesh.fsdp2_strategy",
    "deepspeed": "deepspeed.deepspeed_strategy",
    "tensor parallel": "device_mesh.tensor_parallel_strategy",
    "presharded": "device_mesh.presharded_strategy",
}
"""``ProcessLayout.strategy`` → the function in this package that creates the strategy of a run.

By their names, as a run imports one of them. Each takes the layout, the device, the training arguments and the model.
"""


def _create(process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module) -> Strategy:
    builder = pkgutil.resolve_name(f"{__package__}.{STRATEGIES[process_layout.strategy]}")
    strategy: Strategy = builder(process_layout, device, args, model)
    return strategy


def device_keywords(process_layout: ProcessLayout, args: TrainingArguments, model: nn.Module) -> dict[str, Any]:
    """Return the keywords of ``lightning.Trainer`` for devices, nodes and strategy."""
    device, launch = args.device, process_layout.launch
    devices: Any = launch.local_world_size
    if launch.world_size == 1 and device.type != "cpu":
        devices = [device.index or 0]
    strategy: Any = _create(process_layout, device, args, model)
    strategy.syncs_each_batch = syncs_each_batch(args.accelerator_config)
    return {
        "accelerator": lightning_accelerator(device),
        "devices": devices,
        "num_nodes": launch.num_nodes,
        "strategy": strategy,
    }
