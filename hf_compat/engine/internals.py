"""Every private name of Lightning that hf_compat touches, each with the contract it relies on.

``tests/test_internals.py`` checks the contracts, so that a Lightning release that changed one fails there first.
"""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.strategies.launchers.subprocess_script import _launch_process_observer
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, Strategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.trainer.call import _call_callbacks_load_state_dict, _call_callbacks_state_dict
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

__all__ = [
    "RawModelDDPStrategy",
    "RawModelDeepSpeedStrategy",
    "RawModelStrategy",
    "StayingStrategy",
    "callback_states",
    "calling_strategy",
    "ddp_choices",
    "fast_forward",
    "is_fitting",
    "leave_signals_alone",
    "restore_callback_states",
    "start_method",
    "start_processes",
    "validate_in_fit",
    "without_notices",
    "without_signal_broadcast",
]

# Each says something that does not hold for a Trainer whose evaluations are called, not scheduled, and gathered from
# all processes before they are logged, and whose checkpoints come after the update step; the last is Lightning using a
# deprecated name of torch.
_MISLEADING = (
    r".*defined a `validation_step` but have no `val_dataloader`.*",
    r".*`train_dataloader` does not have many workers.*",
    r".*The number of training batches .* is smaller than the logging interval.*",
    r".*It is recommended to use `self\.log\(.*sync_dist=True\)`.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*Using ModelCheckpoint with manual optimization and every_n_train_steps.*",
    r".*isinstance\(treespec, LeafSpec\).*",
)


def is_fitting(trainer: pl.Trainer) -> bool:
    """Return whether ``trainer`` is inside ``fit``."""
    return trainer.state.fn is TrainerFn.FITTING and trainer.state.stage is not None


def validate_in_fit(trainer: pl.Trainer, loader: Any) -> None:
    """Run ``trainer``'s validation loop once over ``loader`` in the middle of ``fit``.

    ``Trainer.validate`` cannot be called there: it tears the strategy down. Contract: hooks and ``self.log`` use
    ``fit_loop.epoch_loop.val_loop`` while ``trainer.validating``; an evaluation loop reads its loader from
    ``_data_source.instance``; the connector's ``_first_loop_iter`` and the module's ``_current_fx_name`` are all that a
    validation leaves changed for the training hook it interrupts.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    connector = trainer._logger_connector
    previous_loop, previous_stage = epoch_loop.val_loop, trainer.state.stage
    first_iteration, hook = connector._first_loop_iter, trainer.lightning_module._current_fx_name
    loop = _EvaluationLoop(trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False)
    loop._data_source.instance = loader
    epoch_loop.val_loop = loop
    trainer.validating = True
    try:
        loop.run()
    finally:
        loop.teardown()
        epoch_loop.val_loop = previous_loop
        trainer.state.stage = previous_stage
        connector._first_loop_iter = first_iteration
        trainer.lightning_module._current_fx_name = hook


def fast_forward(trainer: pl.Trainer, *, epochs: int, windows: int, update_steps: int) -> None:
    """Set ``trainer``'s progress to a position in the run, before its fit loop starts.

    Contract: the fit loop counts epochs in ``epoch_progress``, an epoch's batches in ``epoch_loop.batch_progress``, and
    ``global_step`` is ``manual_optimization.optim_step_progress.total.completed``.
    """
    loop = trainer.fit_loop
    steps = loop.epoch_loop.manual_optimization.optim_step_progress
    for tracker, count in (
        (loop.epoch_progress.current, epochs),
        (loop.epoch_progress.total, epochs),
        (loop.epoch_loop.batch_progress.total, windows),
        (steps.current, update_steps),
        (steps.total, update_steps),
    ):
        for stage in vars(tracker):  # ready, completed and, where they are told apart, started and processed
            setattr(tracker, stage, count)
    loop.epoch_loop._batches_that_stepped = update_steps


def callback_states(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the state of each Lightning callback, by its state key; what a Lightning checkpoint keeps of them."""
    return _call_callbacks_state_dict(trainer)


def restore_callback_states(trainer: pl.Trainer, states: dict[str, Any]) -> None:
    """Give each Lightning callback its state back."""
    _call_callbacks_load_state_dict(trainer, {"callbacks": states})


class _QuietSignals(_SignalConnector):
    """Takes no signal: Lightning would exit with 0 on SIGTERM, and under SLURM save inside a handler."""

    def register_signal_handlers(self) -> None:
        self.received_sigterm = False


def leave_signals_alone(trainer: pl.Trainer) -> None:
    """Keep ``trainer`` from installing signal handlers.

    Contract: a run's handlers come from ``_signal_connector.register_signal_handlers`` alone.
    """
    trainer._signal_connector = _QuietSignals(trainer)


def calling_strategy() -> Strategy | None:
    """Return the strategy whose method is calling, None if there is none.

    Contract: Lightning hands checkpoints to a ``CheckpointIO`` in ``Strategy.save_checkpoint`` and
    ``Strategy.load_checkpoint``, and never tells it for which trainer.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), Strategy):
            return caller
        frame = frame.f_back
    return None


@contextmanager
def without_notices() -> Iterator[None]:
    """Leave out Lightning's start-up notices and the warnings that do not hold here.

    Errors and all other warnings pass. Contract: notices go through the logger of Lightning's ``rank_zero`` module.
    """
    notices = [logging.getLogger(f"lightning.{part}.utilities.rank_zero") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in notices]
    for logger in notices:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _MISLEADING:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(notices, levels, strict=True):
            logger.setLevel(level)


class StayingStrategy(Strategy):
    """Mixed into a strategy whose optimizers' state stays on the device when a run ends.

    Lightning's own move it to the host, away from the parameters that the Trainer leaves where they are. Contract:
    ``teardown`` moves what is in ``optimizers``.
    """

    def teardown(self) -> None:
        """End the run without touching the optimizers."""
        kept, self.optimizers = self.optimizers, []
        super().teardown()
        self.optimizers = kept


class RawModelStrategy(StayingStrategy):
    """Mixed into a strategy for the model inside the LightningModule, in processes that run already.

    Contract: where ``self.model`` is not the module, Lightning's steps are called through it; ``_configure_launcher``
    makes what starts processes.
    """

    _device: torch.device

    def _configure_launcher(self) -> None:
        self._launcher = None

    @property
    def root_device(self) -> torch.device:
        """The device of this process, as the arguments chose it."""
        return self._device

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself: what wraps the model, or is done to it, is inside."""
        assert self.lightning_module is not None, "called during a fit"
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        assert self.lightning_module is not None, "called during an evaluation"
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        assert self.lightning_module is not None, "called during an evaluation"
        with self.precision_plugin.test_step_context():
            return self.lightning_module.test_step(*args, **kwargs)


class RawModelDDPStrategy(RawModelStrategy, DDPStrategy):
    """Lightning's DDP with the wrapper around the model inside the LightningModule, in processes that run already.

    Contract: ``setup`` calls ``model_to_device`` and ``configure_ddp`` when fitting; ``self.model`` is what hooks on
    gradients are registered on and what ``teardown`` unwraps.
    """

    def wrap(self, model: Any) -> Any:
        """Return ``model`` with its gradients averaged over all processes."""
        raise NotImplementedError

    def setup(self, trainer: pl.Trainer) -> None:
        """Set up a fit; for an evaluation alone there is nothing to wrap, and weights are left as they are."""
        if trainer.state.fn is TrainerFn.FITTING:
            super().setup(trainer)
        else:
            assert self.accelerator is not None, "a trainer has given it"
            self.accelerator.setup(trainer)
            self.setup_precision_plugin()

    def model_to_device(self) -> None:
        """Do nothing: the Trainer has put the model where it belongs."""

    def configure_ddp(self) -> None:
        """Wrap the model and hand the wrapper to the module."""
        module: Any = self.lightning_module
        self.model = self.wrap(module.model)
        self._register_ddp_hooks()
        module._take_wrapper(self.model)

    def pre_backward(self, closure_loss: Any) -> None:
        """Do nothing: the forward pass went through the wrapper, which has prepared for the backward pass."""

    def post_backward(self, closure_loss: Any) -> None:
        """Do nothing, for the same reason."""


class RawModelDeepSpeedStrategy(RawModelDDPStrategy, DeepSpeedStrategy):
    """Lightning's DeepSpeed with the engine around the model inside the LightningModule, on any device.

    Contract: Lightning's own changes ``config`` in ``_init_config_if_needed`` alone, which its ``setup`` calls; what
    else differs from DDP while a model trains is in the methods here.
    """

    def setup_environment(self) -> None:
        """Take the device; the processes know each other already."""
        assert self.accelerator is not None, "a trainer has given it"
        self.accelerator.setup_device(self.root_device)
        self.set_world_ranks()

    def setup(self, trainer: pl.Trainer) -> None:
        """Have the module build the optimizer, with the engine around the model, if this is a fit."""
        assert self.accelerator is not None, "a trainer has given it"
        self.accelerator.setup(trainer)
        if trainer.state.fn is TrainerFn.FITTING:
            Strategy.setup_optimizers(self, trainer)
        self.setup_precision_plugin()

    @property
    def handles_gradient_accumulation(self) -> bool:
        """False: a window's batches are counted by the module."""
        return False


def ddp_choices(strategy: DDPStrategy) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return what a user chose for ``strategy``: keywords for torch, keywords for Lightning, and what cannot be kept.

    Contract: Lightning's ``DDPStrategy`` keeps its arguments under their names with an underscore.
    """
    hooks = ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period")
    plain = DDPStrategy()
    instead = {
        "process_group_backend": "set `TrainingArguments(ddp_backend=...)` instead of its `process_group_backend`",
        "timeout": "set `TrainingArguments(ddp_timeout=...)` instead of its `timeout`",
        "parallel_devices": "leave its `parallel_devices` out",
        "checkpoint_io": "leave its `checkpoint_io` out",
    }
    problems = [text for name, text in instead.items() if getattr(strategy, f"_{name}") != getattr(plain, f"_{name}")]
    if strategy.cluster_environment is not None:
        problems.append("leave its `cluster_environment` out, the launcher's variables decide")
    return dict(strategy._ddp_kwargs), {name: getattr(strategy, f"_{name}") for name in hooks}, problems


def start_method(strategy: DDPStrategy) -> str:
    """Return how ``strategy`` would start processes: ``"popen"``, the script anew, or a method of multiprocessing.

    Contract: Lightning's ``DDPStrategy`` keeps it as ``_start_method``, None where nothing was chosen.
    """
    return strategy._start_method or "popen"


def start_processes(count: int, num_nodes: int, *, mark: str) -> None:
    """Start this script ``count - 1`` times more and make this the main process of them; end all if one fails.

    Contract: the launcher of Lightning's DDP starts ``sys.argv`` anew with LOCAL_RANK, NODE_RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT set, and sets them here too; its observer kills all processes once one has failed.

    Args:
        count: Processes on this node.
        num_nodes: Nodes, on each of which the user starts the script.
        mark: An environment variable that tells the processes who started them.
    """
    environment = LightningEnvironment()
    launcher = _SubprocessScriptLauncher(environment, count, num_nodes)
    os.environ.update({mark: "1", "LOCAL_WORLD_SIZE": str(count)})
    launcher._call_children_scripts()
    if launcher.procs:
        _launch_process_observer(launcher.procs)


def without_signal_broadcast(trainer: pl.Trainer) -> None:
    """Keep ``trainer`` from asking process 0 before every window whether it was told to stop.

    That waits for the device each time. A launcher sends SIGTERM to every process itself. Contract: the epoch loop
    asks in ``_broadcast_sigterm_tensor``.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
