"""The Trainer's engine under DeepSpeed: when it is built, and from whose optimizer and schedule."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hf_compat.arguments.deepspeed.filling import HfTrainerDeepSpeedConfig
from hf_compat.checkpoint.background import is_wanted
from hf_compat.distributed.deepspeed import import_deepspeed
from hf_compat.engine.precision import FullPrecision
from hf_compat.engine.strategies.deepspeed.strategy import (
    EngineOptimizer,
    EngineScheduler,
    build_engine,
    ready_optimizer,
)
from hf_compat.nested import map_nested
from hf_compat.optim.settings import plain_name
from hf_compat.overriding import call_as_defined
from hf_compat.plan import RunPlan
from hf_compat.trainer.optimization import OptimizerMethods

__all__ = ["DeepSpeedMethods"]


class DeepSpeedMethods(OptimizerMethods):
    """DeepSpeed's engine in place of model, optimizer and schedule."""

    @property
    def _deepspeed_settings(self) -> HfTrainerDeepSpeedConfig:
        settings = self.args.hf_deepspeed_config
        assert settings is not None, "asked under DeepSpeed alone"
        return settings

    def _deepspeed_problems(self) -> list[str]:
        """Return what cannot be carried out under DeepSpeed."""
        args, problems = self.args, []
        if any(item is not None for item in (self.optimizer, self.lr_scheduler)):
            problems.append(
                "`optimizers` cannot be passed with `deepspeed`, where transformers drops them without a word: "
                "override `create_optimizer` and `create_scheduler`, or pass `optimizer_cls_and_kwargs`."
            )
        if args.save_only_model and args.load_best_model_at_end:
            problems.append(
                "`save_only_model=True` with `load_best_model_at_end=True`: DeepSpeed loads whole checkpoints only; "
                "drop one of them."
            )
        if args.auto_find_batch_size:
            problems.append("`auto_find_batch_size=True` is not carried out with `deepspeed`: choose a batch size.")
        if is_wanted(args):
            problems.append(
                f"`save_async={args.save_async}` (or HF_COMPAT_ASYNC_SAVE) is not carried out with `deepspeed`: drop "
                "it."
            )
        if not isinstance(self._precision, FullPrecision):
            problems.append(
                "`lightning={'plugins': [...]}` says how to compute, which under `deepspeed` its config does: drop it."
            )
        optim = str(plain_name(args.optim))
        if "optimizer" in self._deepspeed_settings.config and not optim.startswith("adamw"):
            problems.append(f"`optim={optim!r}`: the DeepSpeed config names an `optimizer` too; drop one of them.")
        return problems

    def _start_deepspeed(self, max_steps: int) -> None:
        """Build the engine for a run of ``max_steps`` update steps, and take its optimizer and schedule."""
        settings = self._deepspeed_settings
        settings.trainer_config_finalize(self.args, self.model, max_steps)
        config = settings.config
        self._end_engine()
        import_deepspeed(self.args.device)
        logging.getLogger("DeepSpeed").setLevel(self.args.get_process_log_level())
        self.optimizer = self.lr_scheduler = None
        scheduler: Callable[[Optimizer], Any] | None = None
        if "optimizer" not in config:
            self.create_optimizer()
            self.optimizer = ready_optimizer(self.optimizer, config)
            config["zero_allow_untested_optimizer"] = True
            if "scheduler" not in config:
                self._create_scheduler_for(self.optimizer, max_steps)
        elif "scheduler" not in config:

            def scheduler(optimizer: Optimizer) -> Any:
                return self._create_scheduler_for(optimizer, max_steps)

        engine = build_engine(
            self.model,
            config,
            device=self.args.device,
            launch=self.args.launch,
            optimizer=self.optimizer,
            parameters=[weight for weight in self.model.parameters() if weight.requires_grad],
            scheduler=scheduler,
        )
        self.optimizer = EngineOptimizer(engine.optimizer)
        if engine.lr_scheduler is not None:
            self.lr_scheduler = EngineScheduler(engine.lr_scheduler)
        self._take_engine(engine)

    def _create_scheduler_for(self, optimizer: Optimizer, max_steps: int) -> Any:
        self.lr_scheduler = None
        call_as_defined(self.create_scheduler, num_training_steps=max_steps, optimizer=optimizer)
        return self.lr_scheduler

    def _take_engine(self, engine: Any) -> None:
        if self.args.torch_compile:
            keywords = {"mode": self.args.torch_compile_mode} if self.args.torch_compile_mode else None
            engine.compile(backend=self.args.torch_compile_backend or "inductor", compile_kwargs=keywords)
        strategy: Any = self.accelerator.strategy
        strategy.engine = engine
        self.model_wrapped = self.deepspeed = engine

    def _ready_engine(self) -> None:
        """Build an engine to evaluate with, or to save from, if there is none yet.

        Raises:
            ValueError: If the config is not of ZeRO-3, the one stage of use without training.
        """
        if self.deepspeed is not None and self.deepspeed.module is self.model:
            return
        self._end_engine()
        if not self._deepspeed_settings.is_zero3():
            raise ValueError(
                "`deepspeed`: ZeRO inference only makes sense with ZeRO Stage 3. Set `zero_optimization.stage` to 3, "
                "or drop `deepspeed` where a script evaluates without training."
            )
        settings = copy.deepcopy(self._deepspeed_settings)  # a training later has its own
        settings.trainer_config_finalize(self.args, self.model, 0)
        for section in ("optimizer", "scheduler"):
            settings.config.pop(section, None)
        engine = build_engine(self.model, settings.config, device=self.args.device, launch=self.args.launch)
        if self.lightning_trainer is None:
            self.lightning_trainer = self._build_lightning_trainer(None)
        strategy: Any = self.lightning_trainer.strategy
        self.accelerator.attach(None, strategy)
        self._take_engine(engine)

    def _build_lightning_trainer(self, plan: RunPlan | None) -> Any:
        raise NotImplementedError

    def _end_engine(self) -> None:
        """Take the hooks of an earlier run's engine off the model."""
        if self.deepspeed is not None:
            self.deepspeed.destroy()
            self.deepspeed = None

    def _in_deepspeed_precision(self, data: Any) -> Any:
        """Return ``data`` with its floating-point tensors in the precision that the engine computes in."""
        dtype = self._deepspeed_settings.dtype()

        def cast(leaf: Any) -> Any:
            floating = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
            return leaf.to(dtype) if floating else leaf

        return map_nested(cast, data)

    def _get_learning_rate(self) -> float:
        """Return the learning rate of the first parameter group, as last scheduled."""
        if not self.is_deepspeed_enabled:
            return super()._get_learning_rate()
        try:
            rate = self.lr_scheduler.get_last_lr()[0]
        except AssertionError:  # DeepSpeed's own have none before the first step, which a scaled gradient may delay
            return 0
        return rate.item() if hasattr(rate, "item") else rate  # type: ignore[no-any-return]
