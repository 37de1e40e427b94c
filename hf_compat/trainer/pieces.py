"""A run as three pieces, of which a person calls ``fit``: ``lightning.Trainer``, ``HFModule`` and ``HFDataModule``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from hf_compat.callbacks import ProgressCallback
from hf_compat.data.loader import PreparedDataLoader
from hf_compat.engine.callbacks import CallbackGroup, FirstCallback
from hf_compat.engine.data_module import HFDataModule
from hf_compat.engine.internals.loops import given_loader, without_misleading_warnings
from hf_compat.engine.joining import join, keywords_given
from hf_compat.engine.loggers import open_loggers
from hf_compat.engine.module import HFModule
from hf_compat.errors import NotSupportedError, TrainerSetupError
from hf_compat.model_facts import unwrap_model
from hf_compat.optim.schedulers import get_scheduler
from hf_compat.overriding import is_ours
from hf_compat.run.assembly import GivenPieces
from hf_compat.trainer.current_run import current_run, new_run
from hf_compat.trainer.trainer import Trainer

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.arguments import TrainingArguments
    from hf_compat.evaluation.results import TrainOutput
    from hf_compat.run.run import TrainingRun

__all__ = ["RunGroup", "callbacks", "to_lightning"]

_REPLACED = {"max_steps": -1, "max_epochs": -1}
"""Limits of a Lightning trainer whose plan is made in its ``fit``."""


class RunGroup(CallbackGroup):
    """The callbacks of a run that begins with ``lightning.Trainer.fit`` and ends with it.

    Args:
        make: Returns the Trainer of a ``lightning.Trainer`` inside its ``fit``.
        resume_from_checkpoint: As of ``Trainer.train``.
        ignore_keys_for_eval: As of ``Trainer.train``.

    Attributes:
        hf_trainer: The Trainer that the pieces make up, with ``state`` and its ``log_history``; None before the fit.
    """

    def __init__(
        self,
        make: Callable[[pl.Trainer], Trainer],
        resume_from_checkpoint: str | bool | None = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.hf_trainer: Trainer | None = None
        self._make = make
        self._resume_from = resume_from_checkpoint
        self._ignore_keys = ignore_keys_for_eval
        self._begun = ExitStack()
        self._run: TrainingRun | None = None

    @property
    def output(self) -> TrainOutput | None:
        """What ``Trainer.train`` returns; None before the end of the fit."""
        return None if self._run is None else self._run.output

    def begin(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Begin the run, before any callback is set up.

        Raises:
            TrainerSetupError: If the fit cannot be one of these callbacks.
        """
        self._check(trainer, module)
        assert isinstance(module, HFModule), "checked"
        self._begun.enter_context(without_misleading_warnings())
        host = self.hf_trainer = self._make(trainer)
        run = self._run = new_run(host, ignore_keys=self._ignore_keys)
        data = getattr(trainer, "datamodule", None)
        if isinstance(data, HFDataModule):
            data.connect(run)
        module.connect(run, self)
        for name, function in _stand_ins(trainer, module, host).items():
            run.originals[name] = getattr(host, name)
            self._begun.enter_context(_assigned(host, name, function))
        self._begun.enter_context(run.begun(self._resume_from))
        run.fit_given(GivenPieces(trainer, module, self))

    def _check(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._run is not None:
            raise TrainerSetupError(
                "These callbacks have trained already. Each `fit` needs its own: call `hf_compat.lightning.callbacks` "
                "or `hf_compat.to_lightning` again."
            )
        if not isinstance(module, HFModule):
            raise TrainerSetupError(
                f"`model`: {type(module).__name__} is not an HFModule, which these callbacks train. Pass "
                "`hf_compat.lightning.HFModule(model)`; single callbacks of `hf_compat.lightning` work with any module."
            )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take optimizer and schedule from a module that configures its own; then call the members."""
        if self._run is not None and type(pl_module).configure_optimizers is not HFModule.configure_optimizers:
            self._run.take_optimizers(*_configured(trainer, self._run))
        super().on_fit_start(trainer, pl_module)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the training if no epoch was left."""
        if self._run is not None:
            self._run.finish_without_epoch()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End the run, and wait for a checkpoint that is being saved in the background."""
        self._begun.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End the run."""
        if stage == "fit":
            self._begun.close()


def _configured(trainer: pl.Trainer, run: TrainingRun) -> tuple[Any, Any]:
    """Return optimizer and schedule that the module has configured; without a schedule, one that changes nothing.

    Raises:
        TrainerSetupError: If a run cannot step them.
    """
    optimizers, schedules = trainer.optimizers, trainer.lr_scheduler_configs
    if run.runtime.facts.has_engine or len(optimizers) != 1 or len(schedules) > 1:
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


def _stand_ins(trainer: pl.Trainer, module: HFModule, host: Trainer) -> dict[str, Callable[..., Any]]:
    """Return the methods of the Trainer that the module and the data have in its place."""
    found: dict[str, Callable[..., Any]] = {}
    if type(module).compute_loss is not HFModule.compute_loss:
        found["compute_loss"] = module.compute_loss
    train, evaluation = _loader_of(trainer, evaluates=False), _loader_of(trainer, evaluates=True)
    if train is not None:
        found["get_train_dataloader"] = lambda: _prepared(train(), host)
    if evaluation is not None:
        original = host.get_eval_dataloader

        def eval_loader(eval_dataset: Any = None) -> Any:
            own = eval_dataset is None or eval_dataset is host.eval_dataset
            return _prepared(evaluation(), host) if own else original(eval_dataset)

        found["get_eval_dataloader"] = eval_loader
    return found


def _loader_of(trainer: pl.Trainer, *, evaluates: bool) -> Callable[[], Any] | None:
    """Return what loads the batches that ``fit`` was given; None if the Trainer's own method is what does."""
    data, name = getattr(trainer, "datamodule", None), "val_dataloader" if evaluates else "train_dataloader"
    if isinstance(data, HFDataModule) and getattr(type(data), name) is getattr(HFDataModule, name):
        return None
    return given_loader(trainer, evaluates=evaluates)


def _prepared(loader: Any, host: Trainer) -> Any:
    """Return ``loader`` with the batches of this rank."""
    if isinstance(loader, DataLoader) and not isinstance(loader, PreparedDataLoader):
        return host.accelerator.prepare_data_loader(loader)
    return loader


@contextmanager
def _assigned(host: Trainer, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Context in which the method ``name`` of ``host`` is ``function``."""
    before = vars(host).get(name)
    setattr(host, name, function)
    try:
        yield
    finally:
        if before is None:
            delattr(host, name)
        else:
            setattr(host, name, before)


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
    runtime, args = trainer._lightning_runtime, trainer.args

    group = RunGroup(functools.partial(_with_model_of, trainer), resume_from_checkpoint, ignore_keys_for_eval)
    loggers = open_loggers(trainer.callback_handler.callbacks, args, trainer.state)
    model = unwrap_model(trainer.model)
    lightning_trainer = runtime.build(args, model, limits=_REPLACED, group=group, loggers=loggers, first=_first(group))
    data = HFDataModule(
        args,
        trainer.train_dataset,
        trainer.eval_dataset,
        data_collator=trainer.data_collator,
        processing_class=trainer.processing_class,
    )
    return lightning_trainer, HFModule(trainer.model, args), data


def _with_model_of(trainer: Trainer, lightning_trainer: pl.Trainer) -> Trainer:
    """Return ``trainer`` with the model that ``lightning_trainer`` fits, which may be another."""
    module = lightning_trainer.lightning_module
    if trainer.model is not module.model:
        trainer.model = trainer.model_wrapped = module.model
    return trainer


def _first(group: RunGroup) -> FirstCallback:
    return FirstCallback(group.begin)


def _refuse_several_fits(trainer: Trainer) -> None:
    problems = []
    if current_run(trainer).may_fit_again:
        problems.append("`auto_find_batch_size=True` begins further fits. Set it to False.")
    if trainer._lightning_runtime.placement.start is not None:
        problems.append("`lightning={'strategy': ...}` starts processes. Start the script with `torchrun` instead.")
    problems += [
        f"`{name}` is overridden in {type(trainer).__name__}, and would not be called. Call `train`, or put what it "
        "does into a callback."
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
    group = RunGroup(
        lambda trainer: _assembled(trainer, args, user_callbacks), resume_from_checkpoint, ignore_keys_for_eval
    )
    return [_first(group), group]


def _assembled(trainer: pl.Trainer, args: TrainingArguments, user_callbacks: Sequence[Any]) -> Trainer:
    """Return the Trainer that a person's ``lightning.Trainer``, module and data make up."""
    module, data = trainer.lightning_module, getattr(trainer, "datamodule", None)
    assert isinstance(module, HFModule), "checked before"
    for piece in (module, data):
        other = getattr(piece, "args", None)
        if other is not None and other is not args and other.to_dict() != args.to_dict():
            raise TrainerSetupError(
                f"`args`: those of {type(piece).__name__} differ from those of the callbacks. Pass the same ones."
            )
    given = trainer.callbacks  # type: ignore[attr-defined]
    own = [one for one in given if not isinstance(one, RunGroup | FirstCallback)]
    host = Trainer(
        module.model,
        args,
        getattr(data, "data_collator", None),
        _dataset_of(trainer, data, evaluates=False),
        _dataset_of(trainer, data, evaluates=True),
        getattr(data, "processing_class", None),
        compute_loss_func=module.compute_loss_func,
        compute_metrics=module.compute_metrics,
        callbacks=[*user_callbacks, *own],
        preprocess_logits_for_metrics=module.preprocess_logits_for_metrics,
        lightning=keywords_given(trainer),
    )
    if trainer.progress_bar_callback is not None:
        host.pop_callback(ProgressCallback)
    trainer.loggers = [*open_loggers(host.callback_handler.callbacks, args, host.state), *trainer.loggers]
    join(host._lightning_runtime, trainer, host.args)
    return host


def _dataset_of(trainer: pl.Trainer, data: Any, *, evaluates: bool) -> Any:
    """Return the dataset of a fit."""
    if isinstance(data, HFDataModule):
        return data.eval_dataset if evaluates else data.train_dataset
    load = given_loader(trainer, evaluates=evaluates)
    loader = None if load is None else load()
    return getattr(loader, "dataset", loader)
