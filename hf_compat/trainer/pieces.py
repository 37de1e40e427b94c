"""A run as three pieces on which the user calls ``fit``: ``lightning.Trainer``, ``HFModule`` and ``HFDataModule``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from torch.utils.data import DataLoader

from hf_compat.callbacks import ProgressCallback
from hf_compat.data.loader import PreparedDataLoader
from hf_compat.engine.backend import join, one_loader, user_keywords
from hf_compat.engine.internals.exceptions import raise_keyboard_interrupt
from hf_compat.engine.internals.loops import (
    evaluation_loader,
    ignoring_misleading_warnings,
    is_fitting,
    run_instead,
    user_data,
    user_loader,
)
from hf_compat.engine.lightning_callbacks import IdleHooks, RunStarter
from hf_compat.engine.loggers import open_loggers
from hf_compat.engine.module import HFDataModule, HFModule
from hf_compat.errors import NotSupportedError, TrainerSetupError
from hf_compat.model_facts import unwrap_model
from hf_compat.overriding import is_overridden
from hf_compat.trainer.evaluation import prepare_to_evaluate
from hf_compat.trainer.loop import RunHooks
from hf_compat.trainer.run import current_run, new_run
from hf_compat.trainer.trainer import Trainer

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.engine.backend import LightningBackend
    from hf_compat.trainer.outputs import PredictionOutput, TrainOutput
    from hf_compat.trainer.run import TrainingRun

# The data that the user's `lightning.Trainer` was given, and what then stands in for the Trainer's methods.


def data_of(pl_trainer: pl.Trainer) -> HFDataModule | None:
    """Return the data module of the call that ``pl_trainer`` is inside of, None if it was given something else."""
    data = user_data(pl_trainer)
    return data if isinstance(data, HFDataModule) else None


class Evaluated(NamedTuple):
    """The data that ``validate``, ``test`` or ``predict`` reads."""

    dataset: Any
    loader: Any
    """The loader that the call was given, or its data module returned; None if the Trainer loads the dataset."""


def evaluated_data(pl_trainer: pl.Trainer, name: str) -> Evaluated:
    """Return what the call reads that the hook ``name`` belongs to; without any, the dataset is None."""
    data, load = data_of(pl_trainer), _loader_of(pl_trainer, name)
    if load is None:
        return Evaluated(None if data is None else _dataset_in(data, name), None)
    loader = one_loader(load())
    return Evaluated(getattr(loader, "dataset", loader), loader)


def dataset_behind(pl_trainer: pl.Trainer, name: str) -> Any:
    """Return the dataset that the hook ``name`` loads in a fit, or its loader; None without any."""
    data = data_of(pl_trainer)
    own = None if data is None else _dataset_in(data, name)
    return evaluated_data(pl_trainer, name).dataset if own is None else own


def _dataset_in(data: HFDataModule, name: str) -> Any:
    return {"train_dataloader": data.train_dataset, "val_dataloader": data.eval_dataset}.get(name, data.test_dataset)


def _loader_of(pl_trainer: pl.Trainer, name: str) -> Callable[[], Any] | None:
    """Return what loads the batches that the call was given; None if a method of the Trainer is what does.

    Args:
        pl_trainer: The Lightning trainer, inside the call.
        name: The hook: ``train_dataloader``, ``val_dataloader``, ``test_dataloader`` or ``predict_dataloader``.
    """
    data = data_of(pl_trainer)
    if data is not None and getattr(type(data), name) is getattr(HFDataModule, name):
        return None
    if not is_fitting(pl_trainer):
        return evaluation_loader(pl_trainer)
    return user_loader(pl_trainer, evaluates=name == "val_dataloader")


_Methods: TypeAlias = dict[str, Callable[..., Any]]
"""Methods that stand in for the Trainer's, by name."""


def method_overrides(pl_trainer: pl.Trainer, module: HFModule, trainer: Trainer) -> _Methods:
    """Return the methods of ``trainer`` that module and data have in its place during a fit of ``pl_trainer``."""
    found = _of_module(module)
    train, evaluation = _loader_of(pl_trainer, "train_dataloader"), _loader_of(pl_trainer, "val_dataloader")
    if train is not None:
        found["get_train_dataloader"] = lambda: _prepared(train(), trainer)
    if evaluation is not None:
        original = trainer.get_eval_dataloader

        def eval_loader(eval_dataset: Any = None) -> Any:
            own = eval_dataset is None or eval_dataset is trainer.eval_dataset
            return _prepared(evaluation(), trainer) if own else original(eval_dataset)

        found["get_eval_dataloader"] = eval_loader
    return found


def evaluation_overrides(evaluated: Evaluated, module: HFModule, trainer: Trainer) -> _Methods:
    """Return the methods of ``trainer`` that module and data have in its place while it reads ``evaluated``."""
    found = _of_module(module)
    if evaluated.loader is not None:
        for name in ("get_eval_dataloader", "get_test_dataloader"):
            found[name] = partial(_loader_or, evaluated, trainer, getattr(trainer, name))
    return found


def _loader_or(evaluated: Evaluated, trainer: Trainer, original: Callable[..., Any], dataset: Any = None) -> Any:
    return _prepared(evaluated.loader, trainer) if dataset is evaluated.dataset else original(dataset)


def _of_module(module: HFModule) -> _Methods:
    return {} if type(module).compute_loss is HFModule.compute_loss else {"compute_loss": module.compute_loss}


@contextmanager
def patched_methods(trainer: Trainer, run: TrainingRun, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Context in which ``methods`` stand in for those of ``trainer``, which ``run`` keeps as the originals."""
    before = {name: vars(trainer).get(name) for name in methods}
    run.originals.update({name: getattr(trainer, name) for name in methods})
    for name, function in methods.items():
        setattr(trainer, name, function)
    try:
        yield
    finally:
        for name, own in before.items():
            del run.originals[name]
            if own is None:
                delattr(trainer, name)
            else:
                setattr(trainer, name, own)


def _prepared(loader: Any, trainer: Trainer) -> Any:
    """Return ``loader`` with the batches of this rank."""
    loader = one_loader(loader)
    if isinstance(loader, DataLoader) and not isinstance(loader, PreparedDataLoader):
        return trainer.accelerator.prepare_data_loader(loader)
    return loader


# `TrainerFactory`: the Trainer made from the user's `lightning.Trainer`, module and data.


class TrainerFactory:
    """Makes a Trainer of what a ``lightning.Trainer`` was built with and is called with.

    Args:
        args: The training arguments.
        user_callbacks: ``TrainerCallback`` classes or instances.
    """

    def __init__(self, args: TrainingArguments, user_callbacks: Sequence[Any]) -> None:
        self._args = args
        self._user_callbacks = tuple(user_callbacks)
        self._built: tuple[pl.Trainer, dict[str, Any], list[Any]] | None = None

    def __call__(self, pl_trainer: pl.Trainer, evaluated: Evaluated | None = None) -> Trainer:
        """Return a new Trainer.

        Args:
            pl_trainer: The Lightning trainer, inside a call.
            evaluated: What ``validate``, ``test`` or ``predict`` reads; None in a fit.

        Raises:
            TrainerSetupError: If the pieces do not fit together.
        """
        module, data = pl_trainer.lightning_module, data_of(pl_trainer)
        assert isinstance(module, HFModule), "checked before"
        self._check_arguments(module, data)
        keywords, loggers = self._built_with(pl_trainer)
        train_dataset, callbacks = None, list(self._user_callbacks)
        if evaluated is None:
            train_dataset = dataset_behind(pl_trainer, "train_dataloader")
            eval_dataset = dataset_behind(pl_trainer, "val_dataloader")
            callbacks += _own_callbacks(pl_trainer)
        else:
            eval_dataset = evaluated.dataset
        trainer = Trainer(
            module.model,
            self._args,
            getattr(data, "data_collator", None),
            train_dataset,
            eval_dataset,
            getattr(data, "processing_class", None),
            compute_loss_func=module.compute_loss_func,
            compute_metrics=module.compute_metrics,
            callbacks=callbacks,
            preprocess_logits_for_metrics=module.preprocess_logits_for_metrics,
            lightning=keywords,
        )
        if pl_trainer.progress_bar_callback is not None:
            trainer.pop_callback(ProgressCallback)
        pl_trainer.loggers = [*open_loggers(trainer.callback_handler.callbacks, trainer.args, trainer.state), *loggers]
        join(trainer.lightning_backend, pl_trainer, trainer.args)
        return trainer

    def _built_with(self, pl_trainer: pl.Trainer) -> tuple[dict[str, Any], list[Any]]:
        """Return keywords and loggers of ``pl_trainer`` as it was before it was joined."""
        if self._built is None or self._built[0] is not pl_trainer:
            self._built = pl_trainer, user_keywords(pl_trainer), list(pl_trainer.loggers)
        return dict(self._built[1]), self._built[2]

    def _check_arguments(self, *pieces: Any) -> None:
        for piece in pieces:
            other = getattr(piece, "args", None)
            if other is not None and other is not self._args and other.to_dict() != self._args.to_dict():
                raise TrainerSetupError(
                    f"`args`: those of {type(piece).__name__} differ from those of the callbacks. Pass the same ones."
                )


def _own_callbacks(pl_trainer: pl.Trainer) -> list[Any]:
    """Return the callbacks of ``pl_trainer`` that are not the run's."""
    callbacks = pl_trainer.callbacks  # type: ignore[attr-defined]
    return [one for one in callbacks if not isinstance(one, RunHooks | RunStarter | StandaloneRun)]


# `validate`, `test` and `predict` called by the user, run as `Trainer.evaluate` and `Trainer.predict`.


_HOOKS = {"validate": "val_dataloader", "test": "test_dataloader", "predict": "predict_dataloader"}
"""The method of a ``lightning.Trainer`` → the hook that loads its batches."""


def user_evaluation_data(pl_trainer: pl.Trainer) -> Evaluated:
    """Return what the call that ``pl_trainer`` is inside of reads.

    Raises:
        TrainerSetupError: If it was given nothing.
    """
    call = _call_of(pl_trainer)
    evaluated = evaluated_data(pl_trainer, _HOOKS[call])
    if evaluated.dataset is None:
        name = "eval_dataset" if call == "validate" else "test_dataset"
        raise TrainerSetupError(
            f"`{call}` has no data: pass `datamodule=HFDataModule({name}=...)` or `dataloaders=...` to it."
        )
    return evaluated


def _call_of(pl_trainer: pl.Trainer) -> str:
    assert pl_trainer.state.fn is not None, "inside a call"
    return pl_trainer.state.fn.value


@contextmanager
def evaluating(
    pl_trainer: pl.Trainer,
    module: HFModule,
    trainer: Trainer,
    evaluated: Evaluated,
    *,
    ignore_keys: list[str] | None,
    done: Callable[[dict[str, float] | PredictionOutput], None],
) -> Iterator[None]:
    """Context of a call that a person has made: ``trainer`` evaluates or predicts in it.

    Args:
        pl_trainer: The Lightning trainer, in the ``setup`` of the call.
        module: Its module.
        trainer: The Trainer.
        evaluated: What it reads.
        ignore_keys: Model outputs excluded from the predictions.
        done: Called with what ``Trainer.evaluate`` or ``Trainer.predict`` returns.
    """
    run, backend, data, call = (
        current_run(trainer),
        trainer.lightning_backend,
        data_of(pl_trainer),
        _call_of(pl_trainer),
    )
    _adopt(backend, pl_trainer)
    backend.module = module.connect(run)
    if data is not None:
        data.connect(run)

    def evaluate() -> Any:
        if call == "validate":
            own = evaluated.loader is None and evaluated.dataset is trainer.eval_dataset
            metrics = trainer.evaluate(None if own else evaluated.dataset, ignore_keys)
            done(metrics)
            return _returned(pl_trainer, metrics)
        output = trainer.predict(evaluated.dataset, ignore_keys)
        done(output)
        if call == "test":
            return _returned(pl_trainer, output.metrics or {})
        loop = pl_trainer.predict_loop
        return loop.predictions if loop.return_predictions else None

    methods = evaluation_overrides(evaluated, module, trainer)
    with patched_methods(trainer, run, methods), _limits(backend, call), run_instead(pl_trainer, evaluate):
        prepare_to_evaluate(trainer)
        yield


def _adopt(backend: LightningBackend, pl_trainer: pl.Trainer) -> None:
    """Have ``backend`` use ``pl_trainer`` and its strategy, which another run of the Trainer may have replaced."""
    if backend.pl_trainer is not pl_trainer:
        backend.strategy.close()
        backend.adopt(pl_trainer)


def _returned(pl_trainer: pl.Trainer, metrics: dict[str, float]) -> list[dict[str, Any]]:
    """Return ``metrics`` with what else was logged, as Lightning returns the metrics of one loader."""
    logged = {name: value.item() for name, value in pl_trainer.callback_metrics.items()}
    return [{**logged, **metrics}]


@contextmanager
def _limits(backend: LightningBackend, call: str) -> Iterator[None]:
    """Context in which ``Trainer.predict`` reads what ``call`` does."""
    before = backend.limits
    if call == "test":
        backend.limits = replace(before, prediction=before.test)
    try:
        yield
    finally:
        backend.limits = before


_REPLACED = {"max_steps": -1, "max_epochs": -1}
"""Limits of a Lightning trainer whose plan is made in its ``fit``."""


class StandaloneRun(IdleHooks):
    """A run that begins with ``lightning.Trainer.fit`` and ends with it, and evaluations; the last callback.

    The hooks of its fit, ``RunHooks``, are called just before it.

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
        self.hf_trainer: Trainer | None = None
        self._run: TrainingRun | None = None  # also while the Trainer is at another one
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
        return self._run.output if self._evaluated is None and self._run is not None else self._evaluated

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
        if self._run is not None:
            raise TrainerSetupError(
                "These callbacks have trained already. Each `fit` needs its own: call `hf_compat.lightning.callbacks` "
                "or `hf_compat.to_lightning` again."
            )
        self._evaluated = None
        trainer = self.hf_trainer = self._make(pl_trainer, None)
        _adopt(trainer.lightning_backend, pl_trainer)
        run = self._run = new_run(trainer, ignore_keys=self._ignore_keys)
        data = data_of(pl_trainer)
        self._made_of = module, data
        if data is not None:
            data.connect(run)
        module.connect(run)
        methods = method_overrides(pl_trainer, module, trainer)
        self._begun.enter_context(patched_methods(trainer, run, methods))
        self._begun.enter_context(run.begun(self._resume_from))
        hooks, callbacks = run.begin_user_fit(pl_trainer, module), pl_trainer.callbacks  # type: ignore[attr-defined]
        callbacks.insert(callbacks.index(self), hooks)
        self._begun.callback(callbacks.remove, hooks)

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

    def on_fit_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the training if no epoch was left."""
        if self._run is not None:
            self._run.finish_without_epoch()

    def on_exception(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End the run, and wait for a checkpoint that is being saved in the background."""
        self._begun.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End the run."""
        self._begun.close()
        self._interrupts.close()


# ---- the two ways to get pieces ----


def to_lightning(
    trainer: Trainer,
    resume_from_checkpoint: str | bool | None = None,
    ignore_keys_for_eval: list[str] | None = None,
) -> tuple[pl.Trainer, HFModule, HFDataModule]:
    """Return the pieces of the run that ``trainer.train()`` would be; ``fit`` of the first with the others runs it.

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

    group = StandaloneRun(functools.partial(_with_pieces_of, trainer), resume_from_checkpoint, ignore_keys_for_eval)
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


def _first(group: StandaloneRun) -> RunStarter:
    return RunStarter(group.begin)


def _refuse_several_fits(trainer: Trainer) -> None:
    problems = []
    if trainer.args.auto_find_batch_size:
        problems.append("`auto_find_batch_size=True` would start further fits. Set it to False.")
    if trainer.lightning_backend.process_layout.start is not None:
        problems.append("`lightning={'strategy': ...}` starts processes. Start the script with `torchrun` instead.")
    problems += [
        f"`{name}` is overridden in {type(trainer).__name__}, but would not be called. Call `train`, or move the code "
        "into a callback."
        for name in ("train", "_inner_training_loop")
        if is_overridden(getattr(trainer, name))
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
    group = StandaloneRun(TrainerFactory(args, user_callbacks), resume_from_checkpoint, ignore_keys_for_eval)
    return [_first(group), group]
