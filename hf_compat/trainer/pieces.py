"""A run as three pieces on which the user calls ``fit``: ``lightning.Trainer``, ``HFModule`` and ``HFDataModule``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from hf_compat.engine.data_module import HFDataModule
from hf_compat.engine.internals.exceptions import raise_keyboard_interrupt
from hf_compat.engine.internals.loops import ignoring_misleading_warnings, is_fitting
from hf_compat.engine.lightning_callbacks import FirstCallback
from hf_compat.engine.loggers import open_loggers
from hf_compat.engine.module import HFModule
from hf_compat.errors import NotSupportedError, TrainerSetupError
from hf_compat.model_facts import unwrap_model
from hf_compat.optim.schedulers import get_scheduler
from hf_compat.overriding import is_ours
from hf_compat.run.assembly import UserPieces
from hf_compat.run.hooks import RunHooks
from hf_compat.trainer.assembled import Assembly
from hf_compat.trainer.current_run import current_run, new_run
from hf_compat.trainer.user_data import Evaluated, data_of, method_overrides, standing_in
from hf_compat.trainer.user_evaluation import evaluating, user_evaluation_data

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.arguments import TrainingArguments
    from hf_compat.evaluation.results import PredictionOutput, TrainOutput
    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

__all__ = ["RunGroup", "callbacks", "to_lightning"]

_REPLACED = {"max_steps": -1, "max_epochs": -1}
"""Limits of a Lightning trainer whose plan is made in its ``fit``."""


class RunGroup(RunHooks):
    """The hooks of a run that begins with ``lightning.Trainer.fit`` and ends with it, and of evaluations.

    Args:
        make: Returns the Trainer of a ``lightning.Trainer`` inside a call; the second argument is what an evaluation
            reads, None in a fit.
        resume_from_checkpoint: As of ``Trainer.train``.
        ignore_keys_for_eval: As of ``Trainer.train``.

    Attributes:
        hf_trainer: The Trainer that the pieces of the last call make up, with ``state`` and its ``log_history``; None
            before the first.
    """

    def __init__(
        self,
        make: Callable[[pl.Trainer, Evaluated | None], Trainer],
        resume_from_checkpoint: str | bool | None = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.hf_trainer: Trainer | None = None
        self._fitted: TrainingRun | None = None  # also while the Trainer is at another one
        self._make = make
        self._resume_from = resume_from_checkpoint
        self._ignore_keys = ignore_keys_for_eval
        self._begun = ExitStack()
        self._interrupts = ExitStack()
        self._evaluated: dict[str, float] | PredictionOutput | None = None
        self._made_of: tuple[HFModule | None, HFDataModule | None] = None, None

    @property
    def output(self) -> TrainOutput | PredictionOutput | dict[str, float] | None:
        """Result of the last call: ``Trainer.train``; ``evaluate`` for ``validate``; ``predict`` for the others."""
        return self.run.output if self._evaluated is None and self.run is not None else self._evaluated

    @property
    def best_model_path(self) -> str:
        """The best checkpoint of the fit, for ``ckpt_path="best"``; empty without one."""
        return "" if self.hf_trainer is None else self.hf_trainer.state.best_model_checkpoint or ""

    def begin(self, pl_trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Begin what a person has called, before any callback is set up.

        Raises:
            TrainerSetupError: If the call cannot be one of these callbacks.
        """
        if getattr(module, "session", None) is not None:
            return  # an evaluation of the Trainer's own
        if not isinstance(module, HFModule):
            raise TrainerSetupError(
                f"`model`: {type(module).__name__} is not an HFModule, which these callbacks train. Pass "
                "`hf_compat.lightning.HFModule(model)`; single callbacks of `hf_compat.lightning` work with any module."
            )
        self._begun.enter_context(ignoring_misleading_warnings())
        self._interrupts.callback(raise_keyboard_interrupt(pl_trainer))
        if is_fitting(pl_trainer):
            self._begin_fit(pl_trainer, module)
        else:
            self._begin_evaluation(pl_trainer, module)

    def _begin_fit(self, pl_trainer: pl.Trainer, module: HFModule) -> None:
        if self.run is not None:
            raise TrainerSetupError(
                "These callbacks have trained already. Each `fit` needs its own: call `hf_compat.lightning.callbacks` "
                "or `hf_compat.to_lightning` again."
            )
        self._evaluated = None
        trainer = self.hf_trainer = self._make(pl_trainer, None)
        run = self.run = self._fitted = new_run(trainer, ignore_keys=self._ignore_keys)
        data = data_of(pl_trainer)
        self._made_of = module, data
        if data is not None:
            data.connect(run)
        module.connect(run)
        methods = method_overrides(pl_trainer, module, trainer)
        self._begun.enter_context(standing_in(trainer, run, methods))
        self._begun.enter_context(run.begun(self._resume_from))
        run.fit_user_pieces(UserPieces(pl_trainer, module, self))

    def _begin_evaluation(self, pl_trainer: pl.Trainer, module: HFModule) -> None:
        """Begin an evaluation by the Trainer of the last call, or by a new one if the pieces are others."""
        evaluated = user_evaluation_data(pl_trainer)
        pieces = module, data_of(pl_trainer)
        if self.hf_trainer is None or any(one is not other for one, other in zip(pieces, self._made_of, strict=True)):
            self.hf_trainer, self._made_of = self._make(pl_trainer, evaluated), pieces
        settings: dict[str, Any] = {"ignore_keys": self._ignore_keys, "done": self._take_evaluated}
        self._begun.enter_context(evaluating(pl_trainer, module, self.hf_trainer, evaluated, **settings))

    def _take_evaluated(self, output: dict[str, float] | PredictionOutput) -> None:
        self._evaluated = output

    def on_fit_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take optimizer and schedule from a module that configures its own; then go on as in every run."""
        if self.run is not None and type(pl_module).configure_optimizers is not HFModule.configure_optimizers:
            with self.run.optimization.wrapping() as wrap:
                wrap()
            self.run.take_optimizers(*_configured(pl_trainer, self.run))
        super().on_fit_start(pl_trainer, pl_module)

    def on_fit_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the training if no epoch was left."""
        if self.run is not None:
            self.run.finish_without_epoch()

    def on_exception(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End the run, and wait for a checkpoint that is being saved in the background."""
        self.save_if_interrupted()
        self._begun.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End the run."""
        self._begun.close()
        self._interrupts.close()


def _configured(pl_trainer: pl.Trainer, run: TrainingRun) -> tuple[Any, Any]:
    """Return optimizer and schedule that the module has configured; without a schedule, one that changes nothing.

    Raises:
        TrainerSetupError: If a run cannot step them.
    """
    optimizers, schedules = pl_trainer.optimizers, pl_trainer.lr_scheduler_configs
    if run.backend.traits.has_engine or len(optimizers) != 1 or len(schedules) > 1:
        raise TrainerSetupError(
            f"`configure_optimizers` returns {len(optimizers)} optimizers and {len(schedules)} schedules; a run steps "
            "one optimizer and at most one schedule, and under DeepSpeed its own. Return one of each."
        )
    if any((config.interval, config.frequency) != ("step", 1) for config in schedules):
        raise TrainerSetupError(
            "`configure_optimizers` returns a schedule that is not stepped after each update step. Return "
            "`{'optimizer': ..., 'lr_scheduler': {'scheduler': ..., 'interval': 'step'}}`."
        )
    optimizer = optimizers[0]
    return optimizer, schedules[0].scheduler if schedules else get_scheduler("constant", optimizer)


# ---- the two ways to get pieces ----


def to_lightning(
    trainer: Trainer,
    resume_from_checkpoint: str | bool | None = None,
    ignore_keys_for_eval: list[str] | None = None,
) -> tuple[pl.Trainer, HFModule, HFDataModule]:
    """Return the pieces of the run that ``trainer.train()`` would be; ``fit`` of the first with the others runs it.

    ::

        lightning_trainer, module, data = to_lightning(trainer)
        lightning_trainer.fit(module, datamodule=data)

    Numbers, checkpoints and callbacks are those of ``train``; afterwards ``trainer`` has state, logs and model as after
    it. What happens before the first update step happens in ``fit``: until then the pieces can be changed, or others
    be passed to it. Each ``fit`` needs its own pieces.

    Args:
        trainer: The Trainer.
        resume_from_checkpoint: As of ``Trainer.train``.
        ignore_keys_for_eval: As of ``Trainer.train``.

    Raises:
        NotSupportedError: If the run cannot be one ``fit``.
    """
    _refuse_several_fits(trainer)
    backend, args = trainer.lightning_backend, trainer.args

    group = RunGroup(functools.partial(_with_pieces_of, trainer), resume_from_checkpoint, ignore_keys_for_eval)
    loggers = open_loggers(trainer.callback_handler.callbacks, args, trainer.state)
    model = unwrap_model(trainer.model)
    lightning_trainer = backend.build(args, model, limits=_REPLACED, hooks=group, loggers=loggers, first=_first(group))
    data = HFDataModule(
        args,
        trainer.train_dataset,
        trainer.eval_dataset,
        data_collator=trainer.data_collator,
        processing_class=trainer.processing_class,
    )
    return lightning_trainer, HFModule(trainer.model, args), data


def _with_pieces_of(trainer: Trainer, lightning_trainer: pl.Trainer, evaluated: Evaluated | None) -> Trainer:
    """Return ``trainer`` with model and data that ``lightning_trainer`` was called with, which may be others."""
    module, data = lightning_trainer.lightning_module, data_of(lightning_trainer)
    if trainer.model is not module.model:
        trainer.model = trainer.model_wrapped = module.model
    if data is not None and evaluated is None:
        trainer.train_dataset = trainer.train_dataset if data.train_dataset is None else data.train_dataset
        trainer.eval_dataset = trainer.eval_dataset if data.eval_dataset is None else data.eval_dataset
        trainer.data_collator = data.data_collator or trainer.data_collator
    return trainer


def _first(group: RunGroup) -> FirstCallback:
    return FirstCallback(group.begin)


def _refuse_several_fits(trainer: Trainer) -> None:
    problems = []
    if current_run(trainer).may_fit_again:
        problems.append("`auto_find_batch_size=True` would start further fits. Set it to False.")
    if trainer.lightning_backend.process_layout.start is not None:
        problems.append("`lightning={'strategy': ...}` starts processes. Start the script with `torchrun` instead.")
    problems += [
        f"`{name}` is overridden in {type(trainer).__name__}, but would not be called. Call `train`, or move the code "
        "into a callback."
        for name in ("train", "_inner_training_loop")
        if not is_ours(getattr(trainer, name))
    ]
    if problems:
        raise NotSupportedError("\n  ".join(["A run in pieces is one `fit`:", *problems]))


def callbacks(
    args: TrainingArguments,
    user_callbacks: Sequence[Any] = (),
    *,
    resume_from_checkpoint: str | bool | None = None,
    ignore_keys_for_eval: list[str] | None = None,
) -> list[pl.Callback]:
    """Return the callbacks that make a ``lightning.Trainer`` train an ``HFModule`` as transformers' Trainer does.

    ::

        lightning_trainer = lightning.Trainer(callbacks=callbacks(args))
        lightning_trainer.fit(HFModule(model), datamodule=HFDataModule(train_dataset=rows))

    Args:
        args: The training arguments. Where the ``lightning.Trainer`` has a default, they decide; otherwise the two must
            not contradict each other.
        user_callbacks: ``TrainerCallback`` classes or instances. Lightning callbacks go to the ``lightning.Trainer``,
            after these.
        resume_from_checkpoint: The checkpoint folder to resume from; True for the newest complete one in
            ``output_dir``; ``"auto"`` for the same if there is one, else from the beginning.
        ignore_keys_for_eval: Model outputs excluded from the predictions of evaluations.
    """
    group = RunGroup(Assembly(args, user_callbacks), resume_from_checkpoint, ignore_keys_for_eval)
    return [_first(group), group]
