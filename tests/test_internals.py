"""The contracts with Lightning's private names: a release that changed one fails here, with the name."""

import inspect
import signal

import lightning.pytorch as pl
from lightning.pytorch.loops import _EvaluationLoop
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer import call

from hf_compat.engine import internals


def test_progress_counters_exist():
    """The fit loop counts epochs, batches and manual optimizer steps where ``fast_forward`` sets them."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", max_steps=9)
    internals.fast_forward(trainer, epochs=2, windows=7, update_steps=7)
    assert trainer.current_epoch == 2
    loop = trainer.fit_loop.epoch_loop
    assert loop.manual_optimization.optim_step_progress.total.completed == 7
    assert loop.total_batch_idx == 6


def test_evaluation_loop_takes_its_loader_from_the_data_source():
    """An evaluation loop is made of a trainer, a function and a stage, and reads ``_data_source.instance``."""
    parameters = list(inspect.signature(_EvaluationLoop.__init__).parameters)
    assert parameters[1:] == ["trainer", "trainer_fn", "stage", "verbose", "inference_mode"]
    assert "_data_source" in inspect.getsource(_EvaluationLoop.setup_data)


def test_connector_keeps_what_a_validation_changes():
    """The logger connector has the two names that an evaluation inside a fit saves and restores."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    assert hasattr(trainer._logger_connector, "_first_loop_iter")
    assert hasattr(pl.LightningModule(), "_current_fx_name")


def test_callback_states_are_kept_by_state_key():
    """Callback states go through the two functions that Lightning's own checkpoints use."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", callbacks=[])
    assert isinstance(internals.callback_states(trainer), dict)
    assert "callback_states" in inspect.getsource(call._call_callbacks_load_state_dict)


def test_signal_handlers_come_from_the_connector():
    """Lightning installs handlers in one method of its signal connector; ours installs none."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    assert "_signal_connector.register_signal_handlers()" in inspect.getsource(pl.Trainer._run)
    internals.leave_signals_alone(trainer)
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)}
    trainer._signal_connector.register_signal_handlers()
    assert {signum: signal.getsignal(signum) for signum in before} == before
    trainer._signal_connector.teardown()
    assert not trainer.received_sigterm


def test_strategies_call_the_checkpoint_io():
    """A strategy hands checkpoints to its ``CheckpointIO`` itself, so that it can be found among the callers."""
    for method in (Strategy.save_checkpoint, Strategy.load_checkpoint):
        assert "self.checkpoint_io." in inspect.getsource(method)
    assert internals.calling_strategy() is None
