"""``DeepSpeedStrategy``, which trains with a DeepSpeed engine around the model.

References:
    Same order of calls as accelerate ``utils/deepspeed.py``, ``DeepSpeedEngineWrapper.backward``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import strategies
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hf_compat.arguments.deepspeed import HfTrainerDeepSpeedConfig, config_in_use
from hf_compat.arguments.sequence_parallelism import SequenceParallelism
from hf_compat.checkpoint.background import HostBuffers, Put, clones_on_host, to_host
from hf_compat.distributed.processes import import_deepspeed
from hf_compat.engine.process_layout import LaunchedEnvironment, ProcessLayout
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.deepspeed_engine import (
    EngineOptimizer,
    EngineScheduler,
    UlyssesAttention,
    build_engine,
    optimizer_for_config,
    request_autotp,
    reset_autotp,
)
from hf_compat.engine.strategies.deepspeed_files import (
    MISFITS,
    check_files,
    differing_settings,
    putting_files,
    readable_by,
    warn_of_buffers,
    warn_of_shared_settings,
)
from hf_compat.errors import ArgumentsError, CheckpointError
from hf_compat.model_facts import is_peft_model

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.engine.module import Optimization, Run

logger = logging.getLogger(__name__)


class DeepSpeedStrategy(ModelStrategy, strategies.DeepSpeedStrategy):
    """Trains with a DeepSpeed engine around the model itself, the Trainer's ``model_wrapped``.

    It owns the engine: one per fit, with the run's optimizer; with ZeRO-3 also one to evaluate before training.

    Args:
        process_layout: Rank and world size.
        device: The device of this rank.
        settings: DeepSpeed's config, possibly with ``"auto"`` values.
        finalize: Fills in the ``"auto"`` values that depend on the model and the number of update steps.
        log_level: Level of DeepSpeed's logger in training.
        sequences: How ranks share sequences; None if each has its own.

    Attributes:
        engine: The engine of the current or last fit; None before the first.
    """

    wraps_each_fit = True

    def __init__(
        self,
        process_layout: ProcessLayout,
        device: torch.device,
        settings: HfTrainerDeepSpeedConfig,
        *,
        finalize: Callable[[HfTrainerDeepSpeedConfig, nn.Module, int], None],
        log_level: int,
        sequences: SequenceParallelism | None = None,
    ) -> None:
        import_deepspeed(device)
        super().__init__(
            cluster_environment=LaunchedEnvironment(process_layout.launch, process_layout.environment),
            config=settings.config,
        )
        self._device = device
        self._launch = process_layout.launch
        self._settings = settings
        self._finalize = finalize
        self._log_level = log_level
        self._ulysses = None if sequences is None else UlyssesAttention(sequences)

    # ---- set-up: Lightning changes ``config`` only in ``_init_config_if_needed``, which its own ``setup`` calls ----

    def setup_environment(self) -> None:
        """Set the device; the process group is initialised already."""
        assert self.accelerator is not None, "set by the trainer"
        self.accelerator.setup_device(self.root_device)
        self.set_world_ranks()

    def setup(self, pl_trainer: pl.Trainer) -> None:
        """In a fit, create the optimizer and the engine around the model."""
        assert self.accelerator is not None, "set by the trainer"
        self.accelerator.setup(pl_trainer)
        if self._ulysses is not None:
            self._ulysses.enter()
        if pl_trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(pl_trainer)
        self.setup_precision_plugin()

    @property
    def handles_gradient_accumulation(self) -> bool:
        """False: the module accumulates the batches of a window."""
        return False

    # ---- a fit ----

    def setup_optimizers(self, pl_trainer: pl.Trainer) -> None:
        """Create the engine with the run's optimizer; pass engine, optimizer and schedule to the run."""
        module: Any = self.lightning_module
        run: Run = module.run
        logging.getLogger("DeepSpeed").setLevel(self._log_level)
        scheduler: LRScheduler | EngineScheduler | None = self._start(module.model, run.optimization)
        optimizer = EngineOptimizer(self.engine.optimizer)
        if self.engine.lr_scheduler is not None:
            scheduler = EngineScheduler(self.engine.lr_scheduler)
        self.optimizers, self.lr_scheduler_configs = [optimizer], []
        run.take_wrapper(self.engine)
        run.take_optimizers(optimizer, scheduler)

    def _start(self, model: nn.Module, optimization: Optimization) -> LRScheduler | None:
        """Create the engine for training; return the run's schedule, None if the engine has one.

        The run creates what the config does not contain. A schedule for the config's optimizer is created inside
        ``deepspeed.initialize``, which creates that optimizer.
        """
        self._finalize(self._settings, model, optimization.num_training_steps)
        request_autotp(model, self._settings, self._device)
        config = self._settings.config
        optimizer = scheduler = None
        factory: Callable[[Optimizer], LRScheduler] | None = None
        if "optimizer" not in config:
            optimizer = optimizer_for_config(optimization.create_optimizer(), config)
            # As DeepSpeed will: a schedule has a learning rate for each group. All of LoRA's weights decay.
            optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
            config["zero_allow_untested_optimizer"] = True
            if "scheduler" not in config:
                scheduler = optimization.create_scheduler(optimizer)
        elif "scheduler" not in config:
            factory = optimization.create_scheduler
        parallel_state = None
        if self._ulysses is not None:
            parallel_state, config = self._ulysses.begin(model, config)
        self.engine = build_engine(
            model,
            config,
            device=self._device,
            launch=self._launch,
            optimizer=optimizer,
            parameters=[weight for weight in model.parameters() if weight.requires_grad],
            scheduler=factory,
            parallel_state=parallel_state,
        )
        return scheduler

    def compiled(self, wrapped: nn.Module, *, backend: str, mode: str | None) -> nn.Module:
        """Return ``wrapped``; if it is the engine, compile its model. A model without engine is not compiled yet."""
        if wrapped is self.engine:
            self.engine.compile(backend=backend, compile_kwargs={"mode": mode} if mode else None)
        return wrapped

    @property
    def step_was_skipped(self) -> bool:  # type: ignore[override]  # it is not set elsewhere
        """Whether the last optimizer step was skipped, because of an infinite gradient."""
        return bool(getattr(getattr(self.engine, "optimizer", None), "overflow", False))

    def backward(  # type: ignore[override]
        self, closure_loss: Tensor, optimizer: Optimizer | None, *_: Any, **keywords: Any
    ) -> None:
        """Run the backward pass and, if it ends the update step, the engine's step.

        Without ``scale_wrt_gas=False`` the engine divides the loss by the config's gradient accumulation.
        """
        self.engine.set_gradient_accumulation_boundary(is_boundary=self.ends_update)
        self.engine.backward(closure_loss, **keywords)
        if self.ends_update:
            self.engine.step()

    def without_sync(self, model: nn.Module) -> None:
        """Return None: the engine decides when gradients are synchronised."""

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Any:
        """Return the total gradient norm of the last update step; the engine clips gradients by its config."""
        norm = self.engine.get_global_grad_norm()
        return norm.item() if isinstance(norm, Tensor) else norm

    @property
    def sequence_group(self) -> ProcessGroup | None:  # type: ignore[override]
        """The ranks that share sequences with this one in the current or last fit; None if none do."""
        return None if self._ulysses is None else self._ulysses.group

    def teardown(self) -> None:
        """Tear down; attention is transformers' own again."""
        if self._ulysses is not None:
            self._ulysses.leave()
        super().teardown()

    # ---- evaluating ----

    def prepare_evaluation(self, model: nn.Module) -> nn.Module | None:
        """Return a new engine for evaluating or saving ``model``; None if there is one already.

        Raises:
            ArgumentsError: If the config is not ZeRO-3, the only stage that is supported without training.
        """
        if self.engine is not None and self.engine.module is model:
            return None
        self.close()
        if not self._settings.is_zero3():
            text = (
                "`deepspeed`: ZeRO inference only makes sense with ZeRO Stage 3. Set `zero_optimization.stage` to 3, "
                "or do not set `deepspeed` in a script that evaluates without training."
            )
            raise ArgumentsError([text], fields=["deepspeed"])
        settings = copy.deepcopy(self._settings)  # a later training fills in other values
        self._finalize(settings, model, 0)
        for section in ("optimizer", "scheduler"):
            settings.config.pop(section, None)
        self.engine = build_engine(model, settings.config, device=self._device, launch=self._launch)
        return self.engine  # type: ignore[no-any-return]

    # ---- weights ----

    @property
    def saves_sharded_weights(self) -> bool:  # type: ignore[override]
        """Whether the config saves the shards of weights; adapters, which are small, are gathered whatever it says."""
        return self._stays_sharded and not self._saves_adapters

    @property
    def _saves_adapters(self) -> bool:
        """Whether adapters are saved without the model's frozen weights, which ZeRO-3 would have to gather."""
        return self._is_sharded and is_peft_model(self.engine.module)

    @property
    def gathers_weights(self) -> bool:  # type: ignore[override]
        """Whether full weights are saved, which ZeRO-3 and tensor parallelism have to gather."""
        return not self.saves_sharded_weights

    @property
    def copy_of_weights(self) -> Callable[[Any, HostBuffers], Any]:  # type: ignore[override]
        """Copies the state dict to save: weights that are whole are each a part of one large tensor."""
        return to_host if self._is_sharded else clones_on_host

    @property
    def _is_sharded(self) -> bool:
        return self._has_autotp or self._is_partitioned

    @property
    def _has_autotp(self) -> bool:
        return self._settings.tensor_parallel_size > 1

    @property
    def _is_partitioned(self) -> bool:
        return bool(self.engine.zero_optimization_partition_weights())

    @property
    def _stays_sharded(self) -> bool:
        return self._is_sharded and not self.engine.zero_gather_16bit_weights_on_model_save()

    @property
    def _remedy_for_shards(self) -> str:
        return "set it to true" if self._has_autotp else "set it to true, or run `zero_to_fp32.py` in a checkpoint"

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of ``model``, gathered on rank 0 only; every rank calls it.

        Raises:
            ArgumentsError: If the config does not gather weights on save.
        """
        if not self._is_sharded:
            from deepspeed.checkpoint import utils

            state: dict[str, Any] = utils.clone_tensors_for_torch_save(model.state_dict())
            return state
        if self._stays_sharded:
            text = "`zero_optimization.stage3_gather_16bit_weights_on_model_save=False`, so weights are not gathered"
            raise ArgumentsError([f"`deepspeed`: {text}: {self._remedy_for_shards}."], fields=["deepspeed"])
        if self._has_autotp:
            return self.engine._consolidated_16bit_state_dict() or {}
        return self.engine._zero3_consolidated_16bit_state_dict() or {}

    def state_dict_of_adapters(self) -> dict[str, Any] | None:
        """Return the trainable weights of adapters under ZeRO-3, on rank 0 only; every rank calls it."""
        if not self._saves_adapters:
            return None
        return self.engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True) or {}

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Load DeepSpeed's weights, optimizer and schedule in ``folder`` into the engine."""
        self.resume_engine(folder)
        return [], []

    def save_sharded_weights(self, model: nn.Module, folder: str, put: Put) -> None:
        """Save this rank's shards to ``folder``; every rank calls it."""
        logger.warning(
            "The weights in `%s` are sharded, as stage3_gather_16bit_weights_on_model_save=false: %s.",
            folder,
            self._remedy_for_shards,
        )
        self._save_engine(folder, put)

    # ---- the optimizer's state ----

    @property
    def engine_has_scheduler(self) -> bool:  # type: ignore[override]
        """Whether the engine has a schedule, which it then saves."""
        return self.engine.lr_scheduler is not None

    def save_optimizer(self, optimizer: Optimizer, folder: str, put: Put, *, saves_common: bool) -> None:
        """Save DeepSpeed's checkpoint to ``folder``; every rank calls it."""
        self._save_engine(folder, put)

    def _save_engine(self, folder: str, put: Put) -> None:
        with putting_files(self.engine, put):
            self.engine.save_checkpoint(folder, exclude_frozen_parameters=is_peft_model(self.engine.module))

    def has_optimizer_and_schedule(self, folder: str) -> bool:
        """Return True: ``resume_engine`` has loaded its state."""
        return True

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Do nothing: ``resume_engine`` has loaded the state."""

    def resume_engine(self, folder: str) -> None:
        """Load weights, optimizer and schedule in ``folder`` into the engine, without running code in the files.

        Raises:
            CheckpointError: If DeepSpeed's files are missing or do not fit.
        """
        universal = bool(self.engine.load_universal_checkpoint())
        written = check_files(
            folder, launch=self._launch, universal=universal, tensor=self._settings.tensor_parallel_size
        )
        if universal:
            warn_of_buffers(self.engine.module)
        differing = differing_settings(self.engine.optimizer.param_groups) if universal and self._is_partitioned else []
        try:
            with readable_by(self.engine, folder, written) as place:
                path, _ = self.engine.load_checkpoint(place, load_module_strict=not is_peft_model(self.engine.module))
        except MISFITS as error:
            raise CheckpointError(
                f"DeepSpeed could not load `{folder}`: {error or type(error).__name__}. Resume with the model, the "
                "arguments and the DeepSpeed config that the checkpoint was written with."
            ) from error
        if path is None:
            raise CheckpointError(f"DeepSpeed found no checkpoint in `{folder}`.")
        if universal and self._is_partitioned:
            warn_of_shared_settings(self.engine.optimizer.optimizer, differing)

    # ---- the end ----

    def close(self) -> None:
        """Destroy the engine and remove its hooks from the model; every rank calls it."""
        if self.engine is not None:
            self.engine.destroy()
            self.engine = None
        if self._ulysses is not None:
            self._ulysses.end()
        if self._has_autotp:
            reset_autotp()


def deepspeed_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DeepSpeedStrategy:
    """Return the DeepSpeed strategy of a run."""

    def finalize(settings: HfTrainerDeepSpeedConfig, model: nn.Module, num_training_steps: int) -> None:
        settings.trainer_config_finalize(args, model, num_training_steps)

    return DeepSpeedStrategy(
        process_layout,
        device,
        config_in_use(args),
        finalize=finalize,
        log_level=args.get_process_log_level(),
        sequences=process_layout.sequences,
    )
