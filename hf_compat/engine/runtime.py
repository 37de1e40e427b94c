"""Where and how a Trainer's runs take place: from placement and precision to ``lightning.Trainer``."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.precision import Precision
from torch import nn

from hf_compat.data.windows import WindowLoader
from hf_compat.engine.callbacks import CallbackGroup
from hf_compat.engine.host import EvaluationPass, Host
from hf_compat.engine.internals.loops import (
    callback_states,
    fast_forward,
    is_fitting,
    leave_signals_alone,
    restore_callback_states,
    validate_in_fit,
    without_notices,
    without_signal_broadcast,
)
from hf_compat.engine.keywords import given_plugins, keyword_problems
from hf_compat.engine.module import HFModule
from hf_compat.engine.placement import Placement, place_run
from hf_compat.engine.precision import ForwardMixedPrecision, autocast_forward, precision_plugin
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.facts import StrategyFacts
from hf_compat.engine.strategies.kinds import device_keywords
from hf_compat.errors import ModelError
from hf_compat.model_facts import unwrap_model

if TYPE_CHECKING:
    import torch

    from hf_compat.arguments import TrainingArguments

__all__ = ["EVALUATION_LIMITS", "Loaders", "Runtime", "move_model"]

EVALUATION_LIMITS = {"max_epochs": 0, "max_steps": -1}
"""Limits of a ``lightning.Trainer`` that never fits."""


@dataclass(slots=True)
class Loaders:
    """The loaders under way, by whose last batch ``gather_for_metrics`` trims."""

    train: Any = None
    evaluation: Any = None

    @property
    def current(self) -> Any:
        """The evaluation's if one is under way, else the train loader; None outside a run."""
        return self.train if self.evaluation is None else self.evaluation

    def watch_evaluation(self, loader: Any) -> Any:
        """Trim by ``loader`` from now on, by the train loader if None; return the one before."""
        before, self.evaluation = self.evaluation, loader
        return before


class Runtime:
    """Lives as long as its Trainer, in this process: the placement, the precision, the last ``lightning.Trainer``.

    It pickles without what a past run has left: the Lightning trainer, the module and the strategy.

    Args:
        args: The training arguments.
        lightning: The user's keywords of ``lightning.Trainer``.

    Attributes:
        keywords: The user's keywords, without the loggers.
        placement: Where runs take place.
        precision: The Lightning plugin of every run: its gradient scaler goes on from one training to the next.
        callbacks: The user's Lightning callbacks.
        loggers: The Lightning loggers, opened and closed by Lightning, written to by the Trainer's ``log``.
        trainer: The Lightning trainer of the run under way or the last one; None before.
        module: Its module.
        loaders: The loaders under way.
        trains: Whether a fit is under way, whose module backward passes go through.
        model_is_prepared: Whether a run or an evaluation has readied the model.

    Raises:
        TrainerSetupError: If keywords, arguments and launcher contradict each other.
    """

    def __init__(self, args: TrainingArguments, lightning: Mapping[str, Any] | None) -> None:
        self.keywords: dict[str, Any] = dict(lightning or {})
        self.problems = keyword_problems(self.keywords)
        # Processes are started only if Lightning takes the keywords; what is wrong is told with all else.
        self.placement = Placement(args.launch, "one device") if self.problems else place_run(args, self.keywords)
        given = self.keywords.pop("logger", ())
        self.given_loggers: list[Logger] = [*given] if isinstance(given, list | tuple) else [given]
        self.precision: Precision = precision_plugin(
            "no" if self.facts.own_precision else args.mixed_precision,
            args.device,
            self.plugins,
            flat_shards=self.facts.flat_shards,
        )
        self.callbacks: list[Callback] = []
        self.loggers: list[Logger] = []
        self.trainer: pl.Trainer | None = None
        self.module: HFModule | None = None
        self.loaders = Loaders()
        self.trains = False
        self.model_is_prepared = False
        self._placed_model: nn.Module | None = None
        self._idle_strategy = ModelStrategy()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "trainer": None, "module": None, "trains": False, "loaders": Loaders()}

    # ---- facts ----

    @property
    def plugins(self) -> list[Any]:
        """The user's plugins."""
        return given_plugins(self.keywords)

    @property
    def facts(self) -> StrategyFacts:
        """What is known of the strategy by its name."""
        return self.placement.facts

    @property
    def strategy(self) -> ModelStrategy:
        """What the strategy of the run under way, or of the last one, does with the model."""
        return self._idle_strategy if self.trainer is None else self.trainer.strategy  # type: ignore[return-value]

    @property
    def scaler(self) -> Any:
        """The gradient scaler of an fp16 run under way, None otherwise."""
        return getattr(self.precision, "scaler", None) if self.trains else None

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last optimizer step was left out, because a scaled gradient was infinite."""
        return bool(getattr(self.precision, "step_was_skipped", False)) or self.strategy.step_was_skipped

    # ---- the model ----

    def place(self, model: nn.Module, device: torch.device) -> bool:
        """Put ``model`` on its device, under autocast if the precision is mixed; return whether that is new."""
        if self._placed_model is model:
            return False
        self._placed_model = model
        if self.facts.places_model:
            move_model(model, device)
        if isinstance(self.precision, ForwardMixedPrecision):
            autocast_forward(model, self.precision.autocast_context_manager)
        return True

    def forget_runs(self) -> None:
        """Let go of the last run: of its Lightning trainer, module and strategy."""
        self.trainer = self.module = None

    def release(self) -> None:
        """Let go of the model and of the last run around it."""
        self.strategy.close()
        self.forget_runs()
        self._placed_model = None

    # ---- Lightning ----

    def build(
        self, args: TrainingArguments, model: nn.Module, *, limits: Mapping[str, int], group: CallbackGroup
    ) -> pl.Trainer:
        """Set and return ``trainer``, a fresh ``lightning.Trainer``.

        Args:
            args: The training arguments.
            model: The model, unwrapped.
            limits: ``max_epochs`` and ``max_steps``.
            group: The run's own callbacks; an empty one for evaluations alone.
        """
        # The precision is there, and the strategy has a cluster environment that says what the user's does.
        plugins = [plugin for plugin in self.plugins if not isinstance(plugin, Precision | ClusterEnvironment)]
        settings: dict[str, Any] = {
            "default_root_dir": args.output_dir,
            "enable_model_summary": False,
            # The user callbacks bring upstream's.
            "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in self.callbacks),
            "logger": self.loggers or False,
            **self.keywords,
            **device_keywords(self.placement, args, model),
            **limits,
            "callbacks": [*self.callbacks, group],
            # Says that evaluations go by update steps: callbacks with a monitor then wait for one, not for the epoch.
            "check_val_every_n_epoch": None,
            "val_check_interval": 1,
            "inference_mode": False,  # tensors cached by a model during evaluation must remain usable in training
            "num_sanity_val_steps": 0,
            "plugins": [*plugins, self.precision],
            "use_distributed_sampler": False,
        }
        self.strategy.close()
        with without_notices():
            trainer = pl.Trainer(**settings)
        leave_signals_alone(trainer)
        without_signal_broadcast(trainer)
        self.trainer = trainer
        return trainer

    def prepare_evaluation(self, args: TrainingArguments, model: nn.Module) -> nn.Module | None:
        """Build what evaluations run on unless a run has; return what the strategy puts around ``model`` for them.

        Returns:
            A wrapper to be called instead of the model; None if there is none to take.
        """
        if self.trainer is None:
            self.build(args, unwrap_model(model), limits=EVALUATION_LIMITS, group=CallbackGroup())
        return self.strategy.prepare_evaluation(model)

    def begin_fit(self, loader: Any) -> None:
        """Let backward passes go through the fit that is about to begin, over ``loader``."""
        self.trains, self.loaders.train = True, loader
        self.model_is_prepared = True

    def end_fit(self) -> None:
        """Let backward passes be plain ones again."""
        self.trains, self.loaders.train = False, None

    def fit(self, module: HFModule, windows: WindowLoader, *, start: tuple[int, int, int] | None = None) -> None:
        """Train ``module`` on ``windows`` with the trainer that was built last.

        Args:
            module: The model's module.
            windows: One pass an epoch. No ``LightningDataModule``: Lightning would ask three times a step which of
                the two moves batches, for some 30 µs.
            start: Where a resumed run goes on: whole epochs, windows of the next one, and update steps done.

        Raises:
            KeyboardInterrupt: If the user interrupts; Lightning alone would exit the process.
        """
        trainer = self.trainer
        assert trainer is not None, "built before"
        self.module = module
        if start is not None:
            epochs, windows_done, update_steps = start
            fast_forward(trainer, epochs=epochs, windows=windows_done, update_steps=update_steps)
        module.train()
        handler = signal.getsignal(signal.SIGINT)
        with without_notices():
            try:
                trainer.fit(module, train_dataloaders=windows)
            except SystemExit as stop:
                if isinstance(stop.__context__, KeyboardInterrupt):
                    signal.signal(signal.SIGINT, handler)
                    raise KeyboardInterrupt from None
                raise

    def evaluate(self, model: nn.Module, session: EvaluationPass, host: Host, *, test: bool) -> None:
        """Run ``session`` over its batches in one of Lightning's evaluation loops, so that its callbacks take part.

        Inside a fit that is the validation loop, and the fit goes on undisturbed; outside, ``Trainer.validate`` or, for
        ``test``, ``Trainer.test``. An evaluation called from within another (by ``compute_metrics``, say) runs alone.

        Args:
            model: The model.
            session: What is done with each batch.
            host: The run that the model is evaluated for, where no fit has made a module.
            test: Whether predictions are what is wanted.
        """
        trainer = self.trainer
        assert trainer is not None, "evaluations are prepared before"
        if self.module is None or self.module.model is not model:
            self.module = HFModule(model, host)
        module = self.module
        if module.session is not None:
            for batch in session.batches:
                session.step(batch)
            session.finish()
            return
        module.session = session
        try:
            with without_notices():
                if is_fitting(trainer):
                    validate_in_fit(trainer, session.batches)
                elif test:
                    trainer.test(module, dataloaders=session.batches, verbose=False)
                else:
                    trainer.validate(module, dataloaders=session.batches, verbose=False)
        finally:
            module.session = None

    # ---- the states of the user's Lightning callbacks ----

    def callback_states(self) -> dict[str, Any]:
        """Return the state of each Lightning callback by its key; empty before there is a Lightning trainer."""
        return {} if self.trainer is None else callback_states(self.trainer)

    def restore_callback_states(self, states: dict[str, Any]) -> None:
        """Give each Lightning callback its state back."""
        assert self.trainer is not None, "built before"
        restore_callback_states(self.trainer, states)


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move ``model`` to ``device``, unless it was loaded into its place.

    Raises:
        ModelError: If it is spread over several devices.
    """
    spread = set((getattr(model, "hf_device_map", None) or {}).values())
    if len(spread) > 1:
        raise ModelError(
            f"`model` is spread over {sorted(map(str, spread))} by its `device_map`; a run trains on one device. Load "
            "it without `device_map`."
        )
    if not spread and getattr(model, "quantization_method", None) is None:
        model.to(device)
