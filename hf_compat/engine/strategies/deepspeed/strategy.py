"""The Lightning strategy that trains through a DeepSpeed engine around the model.

References:
    The order of calls is that of accelerate ``utils/deepspeed.py``, ``DeepSpeedEngineWrapper.backward``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hf_compat.arguments.deepspeed.filling import HfTrainerDeepSpeedConfig
from hf_compat.checkpoint.background import Writes
from hf_compat.distributed.deepspeed import import_deepspeed
from hf_compat.engine.environments import LaunchedEnvironment
from hf_compat.engine.host import Host, Optimization
from hf_compat.engine.internals.strategies import RawModelDeepSpeedStrategy
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.deepspeed.engine import EngineOptimizer, EngineScheduler, build_engine
from hf_compat.engine.strategies.deepspeed.files import check_files
from hf_compat.engine.strategies.deepspeed.host_optimizers import optimizer_for_config
from hf_compat.errors import CheckpointError
from hf_compat.model_facts import is_peft_model

logger = logging.getLogger(__name__)

__all__ = ["DeepSpeedStrategy", "deepspeed_strategy"]


class DeepSpeedStrategy(ModelStrategy, RawModelDeepSpeedStrategy):
    """Trains through a DeepSpeed engine around the model itself, the Trainer's ``model_wrapped``.

    It owns the engine: one for a fit, made with the run's optimizer; under ZeRO-3 one to evaluate with where nothing
    was trained yet.

    Args:
        placement: Which rank of how many this is.
        device: The device of this rank.
        settings: DeepSpeed's config, some of it perhaps ``"auto"``.
        finalize: Fills in what the model and the update steps of the run decide; ``settings`` are complete then.
        log_level: Of DeepSpeed's own logger while a model trains.

    Attributes:
        engine: The engine of the fit under way, or of the last one; None before.
    """

    def __init__(
        self,
        placement: Placement,
        device: torch.device,
        settings: HfTrainerDeepSpeedConfig,
        *,
        finalize: Callable[[HfTrainerDeepSpeedConfig, nn.Module, int], None],
        log_level: int,
    ) -> None:
        import_deepspeed(device)
        super().__init__(cluster_environment=LaunchedEnvironment(placement.launch), config=settings.config)
        self._device = device
        self._launch = placement.launch
        self._settings = settings
        self._finalize = finalize
        self._log_level = log_level

    # ---- a fit ----

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Build the engine with the run's optimizer; give it, its optimizer and its schedule to the run."""
        module: Any = self.lightning_module
        host: Host = module.host
        logging.getLogger("DeepSpeed").setLevel(self._log_level)
        scheduler = self._start(module.model, host.optimization)
        optimizer = EngineOptimizer(self.engine.optimizer)
        if self.engine.lr_scheduler is not None:
            scheduler = EngineScheduler(self.engine.lr_scheduler)
        self.optimizers = [optimizer]
        self.lr_scheduler_configs = []
        host.take_wrapper(self.engine)
        host.take_optimizers(optimizer, scheduler)

    def _start(self, model: nn.Module, optimization: Optimization) -> Any:
        """Build the engine to train ``model``; return the schedule of the run, None if the engine has one.

        The run makes what the config does not name. A schedule for the config's optimizer is made inside
        ``deepspeed.initialize``, which is where there is that optimizer.
        """
        self._finalize(self._settings, model, optimization.num_training_steps)
        config = self._settings.config
        optimizer = scheduler = None
        factory: Callable[[Optimizer], Any] | None = None
        if "optimizer" not in config:
            optimizer = optimizer_for_config(optimization.create_optimizer(), config)
            config["zero_allow_untested_optimizer"] = True
            if "scheduler" not in config:
                scheduler = optimization.create_scheduler(optimizer)
        elif "scheduler" not in config:
            factory = optimization.create_scheduler
        self.engine = build_engine(
            model,
            config,
            device=self._device,
            launch=self._launch,
            optimizer=optimizer,
            parameters=[weight for weight in model.parameters() if weight.requires_grad],
            scheduler=factory,
        )
        return scheduler

    def compiled(self, wrapped: nn.Module, *, backend: str, mode: str | None) -> nn.Module:
        """Return ``wrapped``; the engine compiles the model in it, a model alone waits for its engine."""
        if wrapped is self.engine:
            self.engine.compile(backend=backend, compile_kwargs={"mode": mode} if mode else None)
        return wrapped

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update step left the weights as they were, because a gradient was infinite."""
        return bool(getattr(getattr(self.engine, "optimizer", None), "overflow", False))

    def backward(  # type: ignore[override]
        self, closure_loss: Tensor, optimizer: Optimizer | None, *_: Any, **keywords: Any
    ) -> None:
        """Run the backward pass; step if it ends the update step, with as many batches as that has."""
        # The Trainer has averaged over the window; dividing by the config's accumulation as well would be wrong.
        self.engine.set_gradient_accumulation_boundary(is_boundary=self.ends_update)
        self.engine.backward(closure_loss, scale_wrt_gas=False, **keywords)
        if self.ends_update:
            self.engine.step()

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context that does nothing: the engine decides when gradients are exchanged."""
        return nullcontext()

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Any:
        """Return the norm of all gradients in the last update step: the engine has clipped them by its config."""
        norm = self.engine.get_global_grad_norm()
        return norm.item() if isinstance(norm, Tensor) else norm

    # ---- evaluating ----

    def prepare_evaluation(self, model: nn.Module) -> nn.Module | None:
        """Return an engine to evaluate ``model`` with, or to save it from; None if there is one already.

        Raises:
            ValueError: If the config is not of ZeRO-3, the one stage of use without training.
        """
        if self.engine is not None and self.engine.module is model:
            return None
        self.close()
        if not self._settings.is_zero3():
            raise ValueError(
                "`deepspeed`: ZeRO inference only makes sense with ZeRO Stage 3. Set `zero_optimization.stage` to 3, "
                "or drop `deepspeed` where a script evaluates without training."
            )
        settings = copy.deepcopy(self._settings)  # a training later has its own
        self._finalize(settings, model, 0)
        for section in ("optimizer", "scheduler"):
            settings.config.pop(section, None)
        self.engine = build_engine(model, settings.config, device=self._device, launch=self._launch)
        return self.engine  # type: ignore[no-any-return]

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return the model itself: under ZeRO-3 its layers gather their weights as they are called."""
        return model.module if model is self.engine else model

    # ---- weights ----

    @property
    def saves_sharded_weights(self) -> bool:  # type: ignore[override]
        """Whether the config has the weights of ZeRO-3 saved as each rank's part."""
        return self._is_sharded and not self.engine.zero_gather_16bit_weights_on_model_save()

    @property
    def gathers_weights(self) -> bool:  # type: ignore[override]
        """Whether a save has full weights, which under ZeRO-3 are gathered."""
        return not self.saves_sharded_weights

    @property
    def _is_sharded(self) -> bool:
        return bool(self.engine.zero_optimization_partition_weights())

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of ``model``, under ZeRO-3 on rank 0 alone; every rank calls it.

        Raises:
            ValueError: If the config does not have the weights of ZeRO-3 gathered.
        """
        if not self._is_sharded:
            from deepspeed.checkpoint import utils

            state: dict[str, Any] = utils.clone_tensors_for_torch_save(model.state_dict())
            return state
        if self.saves_sharded_weights:
            raise ValueError(
                "`zero_optimization.stage3_gather_16bit_weights_on_model_save=False` in the DeepSpeed config: the "
                "full weights are not gathered. Set it to true, or use `zero_to_fp32.py` on a checkpoint."
            )
        return self.engine._zero3_consolidated_16bit_state_dict(is_peft_model(model)) or {}

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Give the engine all that DeepSpeed wrote into ``folder``: weights, optimizer and schedule."""
        self.resume_engine(folder)
        return [], []

    def save_sharded_weights(self, model: nn.Module, folder: str) -> None:
        """Write into ``folder`` what each rank holds of the weights; every rank calls it."""
        logger.warning(
            "The weights in `%s` are sharded, as `stage3_gather_16bit_weights_on_model_save=False`: run "
            "`zero_to_fp32.py` in it to consolidate them.",
            folder,
        )
        self.save_optimizer(None, folder, writes=None)

    # ---- the optimizer's state ----

    @property
    def saves_scheduler(self) -> bool:  # type: ignore[override]
        """Whether the engine has a schedule, and so saves it."""
        return self.engine.lr_scheduler is not None

    def save_optimizer(self, optimizer: Any, folder: str, *, writes: Writes | None) -> None:
        """Write what DeepSpeed needs to resume into ``folder``; every rank calls it."""
        self.engine.save_checkpoint(folder, exclude_frozen_parameters=is_peft_model(self.engine.module))

    def has_optimizer(self, folder: str) -> bool:
        """Return True: ``resume_engine`` has loaded it, or has refused the folder."""
        return True

    def load_optimizer(self, optimizer: Any, folder: str) -> None:
        """Do nothing: ``resume_engine`` has given the engine its state."""

    def resume_engine(self, folder: str) -> None:
        """Give the engine weights, optimizer and schedule in ``folder``; nothing is unpickled that could run code.

        Raises:
            CheckpointError: If DeepSpeed wrote none there, or another number of ranks did, or they do not fit.
        """
        universal = bool(self.engine.load_universal_checkpoint())
        check_files(folder, launch=self._launch, universal=universal)
        try:
            path, _ = self.engine.load_checkpoint(folder, load_module_strict=not is_peft_model(self.engine.module))
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"DeepSpeed could not load `{folder}`: {error or type(error).__name__}. Resume with the model, the "
                "arguments and the DeepSpeed config that the checkpoint was written with."
            ) from error
        if path is None:
            raise CheckpointError(f"DeepSpeed found no checkpoint in `{folder}`.")

    # ---- the end ----

    def close(self) -> None:
        """Take the engine's hooks off the model and let go of it; every rank calls it."""
        if self.engine is not None:
            self.engine.destroy()
            self.engine = None


def deepspeed_strategy(placement: Placement, args: Any, model: nn.Module) -> DeepSpeedStrategy:
    """Return the strategy of one run from placement, arguments and model."""

    def finalize(settings: HfTrainerDeepSpeedConfig, model: nn.Module, num_training_steps: int) -> None:
        settings.trainer_config_finalize(args, model, num_training_steps)

    return DeepSpeedStrategy(
        placement,
        args.device,
        args.hf_deepspeed_config,
        finalize=finalize,
        log_level=args.get_process_log_level(),
    )
