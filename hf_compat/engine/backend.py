"""``LightningBackend``: placement, precision and ``lightning.Trainer`` of a Trainer's runs."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import Precision
from torch import nn

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.checkpoint.background import CheckpointFileWriter
from hf_compat.data.windows import WindowLoader
from hf_compat.engine.current_loaders import Loaders
from hf_compat.engine.initial_states import InitialStates
from hf_compat.engine.internals.callbacks import (
    callback_states,
    publish_metrics,
    resume_from_no_file,
    saved_checkpoint,
    with_window_counts,
)
from hf_compat.engine.internals.evaluating import run_evaluation
from hf_compat.engine.internals.evaluation_loop import use_fast_loops
from hf_compat.engine.internals.exceptions import raising_keyboard_interrupt, unwraps_stop_iteration
from hf_compat.engine.internals.loops import (
    disable_signal_handlers,
    is_fitting,
    keep_memory_cache,
    quiet_lightning,
    refer_weakly_to,
    sanity_checking,
    without_minimum,
)
from hf_compat.engine.keywords import lightning_callbacks, user_plugins
from hf_compat.engine.lightning_callbacks import FirstCallback, LastCallback, defines_hook, without_logger
from hf_compat.engine.loggers.user_loggers import user_loggers
from hf_compat.engine.module import HFModule
from hf_compat.engine.moving import settle_model
from hf_compat.engine.precision import input_dtype, precision_plugin
from hf_compat.engine.process_layout import ProcessLayout, place_run, presume_layout
from hf_compat.engine.run_settings import Settings
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.kinds import device_keywords
from hf_compat.engine.strategies.one_device import OneDeviceStrategy
from hf_compat.engine.strategies.traits import StrategyTraits
from hf_compat.errors import LogWriteError, TrainerSetupError
from hf_compat.metrics import has_length
from hf_compat.model_facts import unwrap_model

if TYPE_CHECKING:
    import torch
    from torch.amp import GradScaler

    from hf_compat.arguments import TrainingArguments
    from hf_compat.evaluation.session import EvaluationSession
    from hf_compat.run.run import TrainingRun

__all__ = ["EVALUATION_LIMITS", "LightningBackend"]

EVALUATION_LIMITS = {"max_epochs": 0, "max_steps": -1}
"""Limits of a ``lightning.Trainer`` that only evaluates."""
_AT_EVALUATIONS: dict[str, Any] = {"check_val_every_n_epoch": None, "val_check_interval": 1}
_AT_EPOCH_END: dict[str, Any] = {"check_val_every_n_epoch": 1, "val_check_interval": 1.0}
"""When Lightning callbacks with a monitor act."""


class LightningBackend:
    """Placement, precision and the last ``lightning.Trainer`` of a Trainer; as long-lived as the Trainer.

    A pickled backend does not contain the Lightning trainer, module and strategy of a past run.

    Args:
        settings: The training arguments and the user's keywords of ``lightning.Trainer``.
        callbacks: The user's callbacks, of which those of Lightning are kept.
        model: The model that is to be trained, which is not kept; None if ``model_init`` has not been called yet.

    Attributes:
        keywords: The user's keywords that ``lightning.Trainer`` is given, without the loggers.
        limits: How much of its data a run reads.
        loop: How a run goes about its work, besides its arguments.
        sanity_batches: Batches of the sanity check under way, which is neither logged nor told; None outside one.
        process_layout: Ranks and strategy.
        traits: The properties of the strategy that are known by its name.
        precision: The precision plugin of every run; its gradient scaler is kept from one training to the next.
        callbacks: The user's Lightning callbacks.
        user_loggers: The user's Lightning loggers.
        pl_trainer: The Lightning trainer of the current or last run; None before the first.
        module: Its module.
        loaders: The current loaders.
        strategy: The strategy of the current or last run; before the first, that of a single device.
        trains: Whether a fit is running; backward passes then go through its module.
        cast_model: The model whose forward pass is under autocast if the precision wants that; None before the first.
        model_is_prepared: Whether a run or an evaluation has prepared the model itself. False in a run that goes on
            with the wrapper of an earlier one: its first evaluation reports the time, as in transformers.

    Raises:
        ModelError: If processes would be started for a model that they cannot share.
        TrainerSetupError: If keywords, arguments and launcher contradict each other.
    """

    def __init__(
        self, settings: Settings, callbacks: Sequence[Any] | None = None, model: nn.Module | None = None
    ) -> None:
        args, self.keywords = settings.args, dict(settings.keywords)
        self.limits, self.loop = settings.limits, settings.loop
        self.problems = [*settings.problems]
        # Processes are started only if the keywords are valid; all problems are reported in one error later.
        if self.problems:
            process_layout, more = presume_layout(args, self.keywords)
            self.problems += more
        else:
            process_layout = place_run(args, self.keywords, model)
        self.set_layout(process_layout)
        user_choice, folder = self.keywords.pop("logger", None), self.keywords.get("default_root_dir", args.output_dir)
        # A development run writes to none; Lightning callbacks that need one get a dummy.
        self.user_loggers: list[Logger] = [] if "fast_dev_run" in self.keywords else user_loggers(user_choice, folder)
        device = args.device
        self.precision: Precision = precision_plugin(args.mixed_precision, device, self.plugins, strategy=self.traits)
        self._input_dtype = input_dtype(self.precision)
        self.callbacks: list[Callback] = lightning_callbacks(callbacks)
        self._initial_states = InitialStates()
        self.sanity_batches: float | None = None
        self.pl_trainer: pl.Trainer | None = None
        self.module: HFModule | None = None
        self.loaders = Loaders()
        self.trains = False
        self.model_is_prepared = False
        self._placed_model: nn.Module | None = None
        self.cast_model: nn.Module | None = None
        self.strategy: ModelStrategy = OneDeviceStrategy(device)

    def __getstate__(self) -> dict[str, Any]:
        strategy = OneDeviceStrategy(self.strategy.root_device)
        unset = {"pl_trainer": None, "module": None, "trains": False, "loaders": Loaders(), "strategy": strategy}
        return vars(self) | unset

    # ---- facts ----

    def set_layout(self, process_layout: ProcessLayout) -> None:
        """Set ``process_layout``, and ``traits``, which every batch reads."""
        self.process_layout: ProcessLayout = process_layout
        self.traits: StrategyTraits = process_layout.traits

    @property
    def plugins(self) -> list[Any]:
        """The user's plugins."""
        return user_plugins(self.keywords)

    def input_dtype(self, args: TrainingArguments) -> torch.dtype | None:
        """Return the dtype that floating-point inputs are cast to; None for no cast."""
        return self.traits.input_dtype(args) or self._input_dtype

    @property
    def scaler(self) -> GradScaler | None:
        """The gradient scaler of all runs, None without fp16."""
        return getattr(self.precision, "scaler", None)

    # ---- the model ----

    def place(self, model: nn.Module, device: torch.device) -> bool:
        """Move ``model`` to its device and convert it; return whether it was not placed before."""
        if self._placed_model is model:
            return False
        self._placed_model = model
        if self.traits.places_model:
            settle_model(model, device)
        self.precision.convert_module(model)
        return True

    def drop_last_run(self) -> None:
        """Drop the Lightning trainer, module and strategy of the last run."""
        _let_go(self.pl_trainer)
        self.pl_trainer = self.module = None
        self.strategy = OneDeviceStrategy(self.strategy.root_device)

    def release(self) -> None:
        """Drop the model and the last run, to free their memory."""
        self.strategy.close()
        self.drop_last_run()
        self._placed_model = self.cast_model = None

    # ---- Lightning ----

    def build(
        self,
        args: TrainingArguments,
        model: nn.Module,
        *,
        limits: Mapping[str, int],
        hooks: LastCallback,
        loggers: Sequence[Logger] = (),
        first: Callback | None = None,
    ) -> pl.Trainer:
        """Create a ``lightning.Trainer``, set it as ``pl_trainer`` and return it.

        Args:
            args: The training arguments.
            model: The model, unwrapped.
            limits: ``max_epochs`` and ``max_steps``.
            hooks: The run's hooks; for an evaluation outside a fit a callback that does nothing.
            loggers: The Lightning loggers of trackers, besides the user's.
            first: A callback that is called before the user's.
        """
        # Precision and cluster environment of the user are in `self.precision` and in the placement already.
        plugins = [plugin for plugin in self.plugins if not isinstance(plugin, Precision | ClusterEnvironment)]
        settings: dict[str, Any] = {
            "default_root_dir": args.output_dir,
            "enable_model_summary": False,
            # The default callbacks include transformers' progress bar.
            "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in self.callbacks),
            "logger": [*loggers, *self.user_loggers] or False,
            "inference_mode": False,  # as in transformers: what a model caches in an evaluation can be trained on
            "num_sanity_val_steps": 0,
            **{name: value for name, value in self.keywords.items() if name != "barebones"},
            **device_keywords(self.process_layout, args, model),
            **limits,
            "callbacks": [*([] if first is None else [first]), *with_window_counts(self.callbacks), hooks],
            **self.monitored_at(args),
            "plugins": [*plugins, self.precision],
            "use_distributed_sampler": False,
        }
        if "fast_dev_run" in settings:
            settings["logger"] = DummyLogger()
        self.strategy.close()
        with quiet_lightning():
            pl_trainer = pl.Trainer(**settings)
        pl_trainer.barebones = bool(self.keywords.get("barebones"))  # as a keyword it would refuse the hooks
        if limits is not EVALUATION_LIMITS and not pl_trainer.loggers and (names := without_logger(self.callbacks)):
            raise TrainerSetupError(
                f"`callbacks`: {', '.join(names)} needs a Lightning logger, and there is none. Set `report_to`, or "
                "pass `lightning={'logger': ...}`."
            )
        self.adopt(pl_trainer)
        return pl_trainer

    def monitored_at(self, args: TrainingArguments) -> dict[str, Any]:
        """Return the keywords of ``lightning.Trainer`` that say when callbacks with a monitor act.

        Evaluations are by update step: they wait for one, not for the epoch's end, unless there is none.
        """
        return _AT_EPOCH_END if self.callbacks and for_run(args).eval_strategy == "no" else _AT_EVALUATIONS

    def adopt(self, pl_trainer: pl.Trainer) -> None:
        """Make ``pl_trainer`` the current Lightning trainer, without signal handlers and resuming."""
        resume_from_no_file(pl_trainer)
        disable_signal_handlers(pl_trainer)
        keep_memory_cache(pl_trainer)
        use_fast_loops(pl_trainer, noop_transfer=HFModule.transfer_batch_to_device)
        _let_go(self.pl_trainer)
        self.pl_trainer, self.strategy = pl_trainer, pl_trainer.strategy  # type: ignore[assignment]
        weakref.finalize(self, lambda last: _let_go(last()), weakref.ref(pl_trainer)).atexit = False

    def prepare_evaluation(
        self, args: TrainingArguments, model: nn.Module, loggers: Sequence[Logger]
    ) -> nn.Module | None:
        """Create a Lightning trainer for evaluation if there is none; return the strategy's new wrapper of ``model``.

        Args:
            args: The training arguments.
            model: The model.
            loggers: The Lightning loggers of trackers, for a new Lightning trainer.

        Returns:
            The wrapper to call instead of the model; None if there is no new one.
        """
        if self.pl_trainer is None:
            self.build(args, unwrap_model(model), limits=EVALUATION_LIMITS, hooks=LastCallback(), loggers=loggers)
        return self.strategy.prepare_evaluation(model)

    def begin_fit(self, loader: object, module: HFModule) -> None:
        """Run backward passes through the fit of ``module`` that begins now, over ``loader``."""
        self.trains, self.loaders.train, self.module = True, loader, module

    def end_fit(self) -> None:
        """Run backward passes without Lightning again."""
        self.trains = False
        self._initial_states.end()

    @unwraps_stop_iteration
    def fit(self, module: HFModule, windows: WindowLoader) -> None:
        """Train ``module`` on ``windows`` with the current Lightning trainer.

        Args:
            module: The model's module.
            windows: One pass per epoch. Not a ``LightningDataModule``, which would add 30 µs per step.

        Raises:
            KeyboardInterrupt: If the user interrupts; Lightning itself would exit the process.
        """
        pl_trainer = self.pl_trainer
        assert pl_trainer is not None, "built before"
        try:
            with quiet_lightning(), raising_keyboard_interrupt(pl_trainer):
                pl_trainer.fit(module, train_dataloaders=windows)
        except OSError as error:
            if isinstance(error.__context__, LogWriteError):  # loggers write again as the fit ends with an error
                raise error.__context__ from None
            raise

    @unwraps_stop_iteration
    def evaluate(self, model: nn.Module, session: EvaluationSession, run: TrainingRun, *, test: bool) -> None:
        """Run ``session`` over its batches in a Lightning evaluation loop, so that Lightning callbacks are called.

        Inside a fit that is the validation loop; outside, ``Trainer.validate`` or, if ``test``, ``Trainer.test``, or
        the loop of the call that a person has made. A nested evaluation, as in ``compute_metrics``, runs without
        Lightning, and so does one without a batch: Lightning would not open its loader, which draws random numbers.

        Args:
            model: The model.
            session: The evaluation.
            run: The run, for a new module if there is none of ``model``.
            test: Whether it is a prediction.

        Raises:
            KeyboardInterrupt: If the user interrupts; Lightning itself would exit the process.
        """
        pl_trainer = self.pl_trainer
        assert pl_trainer is not None, "evaluations are prepared before"
        module, fits = self.module, is_fitting(pl_trainer)
        if module is None or module.model is not model or not (fits or module.belongs_to(run)):
            module = self.module = HFModule(model).connect(run)
        if module.session is not None or (has_length(session.batches) and len(session.batches) == 0):
            for batch in session.batches:
                session.step(batch)
            session.finish()
            return
        module.session = session
        of_callbacks = nullcontext() if self.trains else self._initial_states.evaluating(self.callbacks)
        try:
            with quiet_lightning(), raising_keyboard_interrupt(pl_trainer), of_callbacks:
                run_evaluation(pl_trainer, module, session.batches, test=test)
        finally:
            module.session = None

    @contextmanager
    def sanity_check(self) -> Iterator[None]:
        """Context of the fit's sanity check: evaluations of a few batches, for which no callback is called."""
        assert self.pl_trainer is not None, "there is a fit"
        self.sanity_batches = math.inf if self.loop.sanity_batches < 0 else self.loop.sanity_batches
        try:
            with sanity_checking(self.pl_trainer):
                yield
        finally:
            self.sanity_batches = None

    def stop_without_minimum(self) -> None:
        """Let the fit end before ``min_epochs`` and ``min_steps``."""
        if self.pl_trainer is not None:
            without_minimum(self.pl_trainer)

    # ---- the user's Lightning callbacks ----

    def renew_callbacks(self) -> None:
        """Have a fit begin with the callbacks as they were given, whatever an earlier one has left in them."""
        self._initial_states.restore(self.callbacks)

    def pop_callback(self, callback: object) -> Callback | None:
        """Remove the first Lightning callback that is, or is an instance of, ``callback``; return it, None without."""
        for index, one in enumerate(self.callbacks):
            if one is callback or type(one) is callback:
                return self.callbacks.pop(index)
        return None

    def publish_metrics(self, logs: Mapping[str, Any]) -> None:
        """Let Lightning callbacks monitor the numbers of ``logs``."""
        if self.callbacks and self.pl_trainer is not None:
            publish_metrics(self.pl_trainer, logs)

    def callback_states(self) -> dict[str, Any]:
        """Return the state of each Lightning callback by its key; empty before the first run."""
        return {} if self.pl_trainer is None else callback_states(self.pl_trainer)

    def checkpoint_entries(self, file_writer: CheckpointFileWriter) -> dict[str, Any]:
        """Return what Lightning callbacks make of a checkpoint in ``on_save_checkpoint``; empty outside a fit.

        That is what they add, and the module's ``state_dict`` if they replace it; they are asked once a checkpoint.
        """
        return file_writer.shared("callback entries", self._make_checkpoint_entries)

    def _make_checkpoint_entries(self) -> dict[str, Any]:
        saves = self.trains and any(defines_hook(callback, "on_save_checkpoint") for callback in self.callbacks)
        if not saves or self.pl_trainer is None:
            return {}
        return saved_checkpoint(self.pl_trainer, self.callback_states())


def _let_go(pl_trainer: pl.Trainer | None) -> None:
    """Free the Lightning trainer of a past run from its circles, unless a person runs it."""
    if pl_trainer is not None and not any(isinstance(each, FirstCallback) for each in pl_trainer.callbacks):  # type: ignore[attr-defined]
        refer_weakly_to(pl_trainer)
