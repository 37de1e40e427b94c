"""``LightningBackend``: placement, precision and ``lightning.Trainer`` of a Trainer's runs."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.callbacks import Callback, ProgressBar, ThroughputMonitor
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import CombinedLoader
from torch import nn

from hf_compat.arguments.releases import effective_args
from hf_compat.data.windows import WindowLoader
from hf_compat.engine.initial_states import InitialStates
from hf_compat.engine.internals.callbacks import (
    callback_states,
    publish_metrics,
    resume_from_no_file,
    saved_checkpoint,
    with_window_counts,
)
from hf_compat.engine.internals.exceptions import raising_keyboard_interrupt, unwraps_stop_iteration
from hf_compat.engine.internals.loops import (
    AutogradModes,
    disable_signal_handlers,
    is_fitting,
    keep_memory_cache,
    quiet_lightning,
    refer_weakly_to,
    renew_loops,
    run_evaluation,
    sanity_checking,
    without_minimum,
)
from hf_compat.engine.internals.stepping import use_fast_loops
from hf_compat.engine.internals.strategies import has_plain_ddp, plain_class, replace_strategy
from hf_compat.engine.keywords import lightning_callbacks, user_plugins
from hf_compat.engine.lightning_callbacks import IdleHooks, RunStarter, defines_hook, without_logger
from hf_compat.engine.loggers.reporters import user_loggers
from hf_compat.engine.module import Evaluation, HFModule, Loaders, Run
from hf_compat.engine.moving import settle_model
from hf_compat.engine.precision import input_dtype, precision_plugin
from hf_compat.engine.process_layout import ProcessLayout, place_run, presume_layout
from hf_compat.engine.run_settings import Settings
from hf_compat.engine.strategies.base import ModelStrategy, OneDeviceStrategy, device_keywords
from hf_compat.engine.strategies.choice import StrategyTraits
from hf_compat.engine.strategy_table import is_of_ray
from hf_compat.errors import LogWriteError, TrainerSetupError
from hf_compat.metrics import has_length
from hf_compat.model_facts import unwrap_model

if TYPE_CHECKING:
    from torch.amp import GradScaler

    from hf_compat.arguments import TrainingArguments

# Joining a `lightning.Trainer` built by the user: what it was given, and what a run needs from it.


_LIGHTNINGS_EPOCHS = 1000
"""What Lightning takes for ``max_epochs`` if neither epochs nor steps are given."""

_LIGHTNINGS_INTERVAL = 50
"""Its ``log_every_n_steps`` if that is not given."""

_LIMITS = ("limit_predict_batches", "limit_test_batches", "limit_train_batches", "limit_val_batches")
"""Keywords of ``lightning.Trainer``: the share, if a float, or the number of batches that are read."""


def _is_all(share: Any) -> bool:
    return isinstance(share, float) and share == 1.0


_IS_DEFAULT: dict[str, Callable[[Any], bool]] = {
    "check_val_every_n_epoch": lambda value: value == 1,
    "fast_dev_run": lambda value: not value,
    **dict.fromkeys(_LIMITS, _is_all),
    "log_every_n_steps": lambda value: value == _LIGHTNINGS_INTERVAL,
    "max_epochs": lambda value: value in (None, -1, _LIGHTNINGS_EPOCHS),
    "max_steps": lambda value: value == -1,
    "min_steps": lambda value: value is None,
    "overfit_batches": lambda value: not value,
    "reload_dataloaders_every_n_epochs": lambda value: not value,
    "val_check_interval": _is_all,
}
"""Keywords of ``lightning.Trainer`` that it has as attributes, to whether a value is Lightning's default."""

_FREE = {**dict.fromkeys(_LIMITS, 1.0), "overfit_batches": 0.0}
"""What a Lightning trainer has whose run limits the data itself."""


def user_keywords(pl_trainer: pl.Trainer) -> dict[str, Any]:
    """Return the keywords with which a person has built ``pl_trainer``, of those that training arguments say as well.

    A value that is Lightning's default counts as not given: then the training arguments decide.
    """
    keywords = {
        name: value for name, is_default in _IS_DEFAULT.items() if not is_default(value := getattr(pl_trainer, name))
    }
    if isinstance(pl_trainer.strategy, SingleDeviceStrategy) and pl_trainer.strategy.root_device.type == "cuda":
        keywords["devices"] = 1  # not all that are visible
    if type(pl_trainer.precision_plugin) is not Precision:
        keywords["precision"] = pl_trainer.precision
    if pl_trainer.loggers:
        keywords["logger"] = list(pl_trainer.loggers)
    return keywords


def join(backend: LightningBackend, pl_trainer: pl.Trainer, args: TrainingArguments) -> None:
    """Make ``pl_trainer``, which is inside its ``fit`` or an evaluation, that of ``backend``.

    Args:
        backend: Ranks, strategy and precision.
        pl_trainer: The Lightning trainer.
        args: The training arguments.

    Raises:
        TrainerSetupError: If it cannot run where ``args`` say.
    """
    problems = [*_strategy_problems(pl_trainer, args), *_callback_problems(pl_trainer)]
    if problems:
        raise TrainerSetupError("\n  ".join(problems))
    model = unwrap_model(pl_trainer.lightning_module.model)  # type: ignore[arg-type]
    replace_strategy(pl_trainer, device_keywords(backend.process_layout, args, model)["strategy"], backend.precision)
    for name, value in {**_FREE, **backend.monitored_at(args)}.items():
        setattr(pl_trainer, name, value)
    renew_loops(pl_trainer)
    backend.adopt(pl_trainer)


def one_loader(loader: Any) -> Any:
    """Return the one loader of what a person gave, or a hook returned.

    Raises:
        TrainerSetupError: If there are several.
    """
    if isinstance(loader, list | tuple) and len(loader) == 1:
        return loader[0]
    if isinstance(loader, list | tuple | dict | CombinedLoader):
        raise TrainerSetupError(
            "Several loaders were given, but a run trains on one loader and evaluates on one. Pass one of each; to "
            "evaluate on several datasets, pass `HFDataModule(eval_dataset={name: dataset, ...})`."
        )
    return loader


def _strategy_problems(pl_trainer: pl.Trainer, args: TrainingArguments) -> list[str]:
    strategy = pl_trainer.strategy
    if isinstance(strategy, ModelStrategy):  # of an earlier call
        strategy.close()
        return []
    name = type(strategy).__name__
    kind = plain_class(strategy) if is_of_ray(strategy) else type(strategy)
    if kind not in (SingleDeviceStrategy, DDPStrategy) or not has_plain_ddp(strategy):
        return [
            f"`strategy`: {name} is not supported, or has settings, in a `lightning.Trainer` with hf_compat's "
            "callbacks. The training arguments `fsdp`, `deepspeed` and `ddp_...` decide how the model is distributed: "
            "pass `strategy='auto'` or, under a launcher, `strategy='ddp'`."
        ]
    if pl_trainer.world_size != (size := args.world_size):
        return [
            f"`devices`: this `lightning.Trainer` runs in {pl_trainer.world_size} processes, the training arguments in "
            f"{size}. Start the script with `torchrun`, or pass `devices=1`."
        ]
    if strategy.root_device.type != (device := args.device).type:
        return [
            f"`accelerator`: this `lightning.Trainer` runs on {strategy.root_device}, the training arguments on "
            f"{device}. Pass `accelerator={device.type!r}`, or set `use_cpu`."
        ]
    return []


def _callback_problems(pl_trainer: pl.Trainer) -> list[str]:
    found = [each for each in pl_trainer.callbacks if isinstance(each, ThroughputMonitor)]  # type: ignore[attr-defined]
    if not found:
        return []
    return [
        "`callbacks`: ThroughputMonitor would count a window as a batch. Use it with `hf_compat.Trainer`, or with the "
        "`lightning.Trainer` of `hf_compat.to_lightning`."
    ]


_EVALUATION_LIMITS = {"max_epochs": 0, "max_steps": -1}
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
        loop_settings: How a run goes about its work, besides its arguments.
        sanity_batches: Batches of the sanity check under way, which is neither logged nor told; None outside one.
        process_layout: Ranks and strategy.
        traits: The properties of the strategy that are known by its name.
        precision: The precision plugin of every run; its gradient scaler is kept from one training to the next, except
            by a search, whose trials begin with it as it was given.
        callbacks: The user's Lightning callbacks.
        user_loggers: The user's Lightning loggers.
        pl_trainer: The Lightning trainer of the current or last run; None before the first.
        module: The module of the current or last run; None before the first.
        loaders: The current loaders.
        strategy: The strategy of the current or last run; before the first, that of a single device.
        trains: Whether a fit is running; backward passes then go through its module.
        cast_model: The model whose forward pass is under autocast if the precision wants that; None before the first.
        model_is_prepared: Whether a run or an evaluation has prepared the model itself. False in a run that goes on
            with the wrapper of an earlier one: its first evaluation reports the time, as in transformers.
        model_is_narrowed: Whether an evaluation outside of a run has cast trainable weights to half precision.

    Raises:
        ModelError: If processes would be started for a model that they cannot share.
        TrainerSetupError: If keywords, arguments and launcher contradict each other.
    """

    def __init__(
        self, settings: Settings, callbacks: Sequence[Any] | None = None, model: nn.Module | None = None
    ) -> None:
        args, self.keywords = settings.args, dict(settings.keywords)
        self.limits, self.loop_settings = settings.limits, settings.loop_settings
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
        self._given_scale = None if self.scaler is None else self.scaler.state_dict()
        self.callbacks: list[Callback] = lightning_callbacks(callbacks)
        self._initial_states = InitialStates()
        self.sanity_batches: float | None = None
        self.pl_trainer: pl.Trainer | None = None
        self.module: HFModule | None = None
        self.loaders = Loaders()
        self.trains = False
        self._modes: AutogradModes | None = None
        self.model_is_prepared = self.model_is_narrowed = False
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
        of_strategy = self.traits.input_dtype
        return (None if of_strategy is None else of_strategy(args)) or self._input_dtype

    @property
    def scaler(self) -> GradScaler | None:
        """The gradient scaler of all runs, None without fp16."""
        return getattr(self.precision, "scaler", None)

    def reset_scaler(self) -> None:
        """Set the gradient scaler's state to that in which it was given."""
        if self.scaler is not None and self._given_scale is not None:
            self.scaler.load_state_dict(self._given_scale)

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
        limits: Mapping[str, int] | None,
        hooks: IdleHooks,
        loggers: Sequence[Logger] = (),
        first: Callback | None = None,
    ) -> pl.Trainer:
        """Create a ``lightning.Trainer``, set it as ``pl_trainer`` and return it.

        Args:
            args: The training arguments.
            model: The model, unwrapped.
            limits: ``max_epochs`` and ``max_steps``; None for one that only evaluates.
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
            **(_EVALUATION_LIMITS if limits is None else limits),
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
        if limits is not None and not pl_trainer.loggers and (names := without_logger(self.callbacks)):
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
        return _AT_EPOCH_END if self.callbacks and effective_args(args).eval_strategy == "no" else _AT_EVALUATIONS

    def adopt(self, pl_trainer: pl.Trainer) -> None:
        """Make ``pl_trainer`` the current Lightning trainer, without signal handlers and resuming."""
        resume_from_no_file(pl_trainer)
        disable_signal_handlers(pl_trainer)
        keep_memory_cache(pl_trainer)
        noop_transfer = HFModule.transfer_batch_to_device
        use_fast_loops(pl_trainer, noop_transfer=noop_transfer, strategy_class=ModelStrategy)
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
            self.build(args, unwrap_model(model), limits=None, hooks=IdleHooks(), loggers=loggers)
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
        modes = self._modes = AutogradModes()
        try:
            with quiet_lightning(), raising_keyboard_interrupt(pl_trainer):
                pl_trainer.fit(module, train_dataloaders=windows)
        except OSError as error:
            if isinstance(error.__context__, LogWriteError):  # loggers write again as the fit ends with an error
                raise error.__context__ from None
            raise
        finally:
            self._modes = None
            modes.set()

    def set_modes(self) -> None:
        """Set the modes of autograd in which ``fit`` was called; a fit that a person calls has Lightning's."""
        if self._modes is not None:
            self._modes.set()

    @unwraps_stop_iteration
    def evaluate(self, model: nn.Module, session: Evaluation, run: Run, *, test: bool) -> None:
        """Run ``session`` over its batches in a Lightning evaluation loop, so that Lightning callbacks are called.

        Inside a fit that is the validation loop; outside, ``Trainer.validate`` or, if ``test``, ``Trainer.test``, or
        the loop of the call that a person has made. A nested evaluation, as in ``compute_metrics``, runs without
        Lightning, and so does one without a batch: Lightning would not open its loader, which draws random numbers.

        Args:
            model: The model.
            session: The evaluation.
            run: The run, for a new module if there is none of ``model``; in a fit its module evaluates any model.
            test: Whether it is a prediction.

        Raises:
            KeyboardInterrupt: If the user interrupts; Lightning itself would exit the process.
        """
        pl_trainer = self.pl_trainer
        assert pl_trainer is not None, "evaluations are prepared before"
        module, fits = self.module, is_fitting(pl_trainer)
        if module is None or not (fits or (module.model is model and module.belongs_to(run))):
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
        self.sanity_batches = math.inf if self.loop_settings.sanity_batches < 0 else self.loop_settings.sanity_batches
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

    def checkpoint_entries(self) -> dict[str, Any]:
        """Return what Lightning callbacks make of a checkpoint in ``on_save_checkpoint``; empty outside a fit.

        That is what they add, and the module's ``state_dict`` if they replace it; to be called once a checkpoint.
        """
        saves = self.trains and any(defines_hook(callback, "on_save_checkpoint") for callback in self.callbacks)
        if not saves or self.pl_trainer is None:
            return {}
        return saved_checkpoint(self.pl_trainer, self.callback_states())


def _let_go(pl_trainer: pl.Trainer | None) -> None:
    """Free the Lightning trainer of a past run from its circles, unless a person runs it."""
    if pl_trainer is not None and not any(isinstance(each, RunStarter) for each in pl_trainer.callbacks):  # type: ignore[attr-defined]
        refer_weakly_to(pl_trainer)
