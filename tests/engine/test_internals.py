"""The contracts with Lightning's private names: a release that changed one fails here, with the name."""

import ast
import inspect
import itertools
import signal
import warnings
import weakref
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.strategies.launchers import subprocess_script
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loops import _EvaluationLoop, _TrainingEpochLoop
from lightning.pytorch.strategies import (
    DDPStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    ParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
)
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
from lightning.pytorch.trainer.states import TrainerFn
from torch import distributed, nn
from torch.distributed import _functional_collectives
from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.utils.data import DataLoader

from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.engine.internals import (
    callbacks,
    exceptions,
    loops,
    strategies,
)
from hf_compat.engine.strategies.fsdp1 import FSDP1Strategy
from tests.support.freeing import without_collector

PLAIN = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "accelerator": "cpu"}


def test_progress_counters_exist():
    """The fit loop counts epochs, batches and manual optimizer steps where ``fast_forward`` sets them."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", max_steps=9)
    loops.fast_forward(trainer, epochs=2, windows=7, update_steps=7)
    assert trainer.current_epoch == 2
    loop = trainer.fit_loop.epoch_loop
    assert loop.manual_optimization.optim_step_progress.total.completed == 7
    assert loop.total_batch_idx == 6


def test_a_fit_that_has_begun_takes_limits_windows_and_strategy():
    """In ``setup`` a fit has read neither limits nor loaders nor strategy: it trains as they are set there."""
    made, loaders = SingleDeviceStrategy("cpu"), []

    class Changing(pl.Callback):
        def setup(self, trainer, pl_module, stage):
            loaders.extend(loops.user_loader(trainer, evaluates=evaluates) for evaluates in (False, True))
            strategies.replace_strategy(trainer, made, trainer.precision_plugin)
            loops.train_on(trainer, DataLoader(torch.ones(3, 32)), max_steps=-1, max_epochs=2)

    trainer = pl.Trainer(max_epochs=9, callbacks=[Changing()], enable_progress_bar=False, **PLAIN)
    given = DataLoader(torch.ones(5, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loaders without workers
        trainer.fit(BoringModel(), given, given)
    assert (trainer.global_step, trainer.current_epoch, trainer.strategy) == (6, 2, made)
    assert [load() for load in loaders] == [given, given]


def test_settings_of_ddp_are_told_from_its_name():
    """A strategy made of a name has no settings; each setting of Lightning's ``DDPStrategy`` is seen."""
    assert strategies.has_plain_ddp(DDPStrategy())
    assert strategies.has_plain_ddp(SingleDeviceStrategy("cpu"))
    assert not strategies.has_plain_ddp(DDPStrategy(find_unused_parameters=True))
    assert not strategies.has_plain_ddp(DDPStrategy(model_averaging_period=2))


def test_an_evaluation_that_has_begun_runs_something_else():
    """In ``setup`` it has not read its loaders: it returns what ours does, which may run the loop over others."""
    made, given, seen = SingleDeviceStrategy("cpu"), DataLoader(torch.ones(5, 32)), []

    class Changing(pl.Callback):
        def setup(self, trainer, pl_module, stage):
            strategies.replace_strategy(trainer, made, trainer.precision_plugin)
            loops.renew_loops(trainer)
            seen.append((loops.is_evaluating(trainer), loops.user_data(trainer)))
            assert loops.evaluation_loader(trainer)() is given
            self.instead = loops.run_instead(trainer, lambda: self.run(trainer, pl_module))
            self.instead.__enter__()

        def run(self, trainer, module):
            loops.run_evaluation(trainer, module, DataLoader(torch.ones(2, 32)), test=False)
            return ["ours"]

        def on_validation_batch_end(self, *given):
            seen.append(torch.is_inference_mode_enabled())

        on_test_batch_end = on_predict_batch_end = on_validation_batch_end

        def teardown(self, trainer, pl_module, stage):
            self.instead.__exit__(None, None, None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loaders without workers
        trainer = pl.Trainer(callbacks=[Changing()], enable_progress_bar=False, **PLAIN)
        for call in (trainer.validate, trainer.test, trainer.predict):
            seen.clear()
            assert call(BoringModel(), given) == ["ours"]
            assert seen == [(True, given), False, False]
    assert not loops.is_evaluating(trainer)


def test_evaluation_loop_takes_its_loader_from_the_data_source():
    """An evaluation loop is made of a trainer, a function and a stage, and reads ``_data_source.instance``."""
    parameters = list(inspect.signature(_EvaluationLoop.__init__).parameters)
    assert parameters[1:] == ["trainer", "trainer_fn", "stage", "verbose", "inference_mode"]
    assert "_data_source" in inspect.getsource(_EvaluationLoop.setup_data)


def test_a_minimum_is_what_the_loops_ask_for():
    """``_can_stop_early`` compares the loops' ``min_epochs`` and ``min_steps``, which can be taken back."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", min_epochs=1, min_steps=5)
    assert not loops.may_stop(trainer)
    loops.without_minimum(trainer)
    assert loops.may_stop(trainer)
    for loop in (pl.loops.fit_loop._FitLoop, _TrainingEpochLoop):
        assert "_can_stop_early" in inspect.getsource(loop.done.fget)


def test_a_sanity_check_is_a_stage():
    """Callbacks know it by ``sanity_checking``, during which an evaluation loop takes ``num_sanity_val_steps``."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", num_sanity_val_steps=3)
    module = pl.LightningModule()
    module.one, module.other = nn.Linear(1, 1), nn.Linear(1, 1).eval()
    trainer.strategy._lightning_module = module
    trainer.state.fn, trainer.training, before = TrainerFn.FITTING, True, torch.get_rng_state()
    with loops.sanity_checking(trainer):
        assert trainer.sanity_checking
        module.eval()
        torch.rand(1)
    assert (trainer.training, module.one.training, module.other.training) == (True, True, False)
    assert torch.equal(before, torch.get_rng_state())
    assert "num_sanity_val_steps" in inspect.getsource(_EvaluationLoop.max_batches.fget)


def test_connector_keeps_what_a_validation_changes():
    """The logger connector has the two names that an evaluation inside a fit saves and restores."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    assert hasattr(trainer._logger_connector, "_first_loop_iter")
    assert hasattr(pl.LightningModule(), "_current_fx_name")


def test_callback_states_are_kept_by_state_key():
    """Callback states go through the two functions that Lightning's own checkpoints use."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", callbacks=[])
    assert isinstance(callbacks.callback_states(trainer), dict)
    assert "callback_states" in inspect.getsource(call._call_callbacks_load_state_dict)


def test_signal_handlers_come_from_the_connector():
    """Lightning installs handlers in one method of its signal connector; ours installs none."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    assert "_signal_connector.register_signal_handlers()" in inspect.getsource(pl.Trainer._run)
    loops.disable_signal_handlers(trainer)
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)}
    trainer._signal_connector.register_signal_handlers()
    assert {signum: signal.getsignal(signum) for signum in before} == before
    trainer._signal_connector.teardown()
    assert not trainer.received_sigterm


def test_strategies_call_the_checkpoint_io():
    """A strategy hands checkpoints to its ``CheckpointIO`` itself, so that it can be found among the callers."""
    for method in (Strategy.save_checkpoint, Strategy.load_checkpoint):
        assert "self.checkpoint_io." in inspect.getsource(method)
    assert strategies.calling_strategy() is None


def test_ddp_is_set_up_through_what_we_override():
    """Lightning's DDP places and wraps the model in two methods, and keeps its arguments where they are read."""
    source = inspect.getsource(DDPStrategy.setup)
    assert "self.model_to_device()" in source
    assert "self.configure_ddp()" in source
    assert "launcher" in inspect.getsource(DDPStrategy._configure_launcher)
    hooks = inspect.getsource(DDPStrategy._register_ddp_hooks)
    assert "_register_ddp_comm_hook(" in hooks
    assert all(f"{name}=self._{name}" in hooks for name in ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper"))
    assert strategies.parse_ddp_strategy(DDPStrategy(static_graph=True))[0] == {"static_graph": True}


def test_a_strategy_may_start_no_processes():
    """Lightning has a strategy set its launcher, calls that before the set-up, and does without if there is none."""
    assert "strategy._configure_launcher()" in inspect.getsource(_AcceleratorConnector)
    assert "trainer.strategy.launcher is not None" in inspect.getsource(call._call_and_handle_interrupt)

    @strategies.starts_no_processes
    class Started(SingleDeviceStrategy):
        pass

    strategy = Started(torch.device("cpu"))
    strategy._launcher = object()
    strategy._configure_launcher()
    assert strategy.launcher is None


def test_a_strategy_moves_the_optimizers_to_the_cpu():
    """``Strategy.teardown`` moves what is in ``optimizers``, which ``ModelStrategy`` takes away from it meanwhile."""
    assert '_optimizers_to_device(self.optimizers, torch.device("cpu"))' in inspect.getsource(Strategy.teardown)


def test_processes_are_started_by_the_launcher_of_scripts():
    """It starts children in one method and sets the variables we read; an observer ends all once one has failed."""
    source = inspect.getsource(_SubprocessScriptLauncher._call_children_scripts)
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"):
        assert name in source
    assert "SIGKILL" in inspect.getsource(subprocess_script._ChildProcessObserver)


def test_the_memory_cache_is_kept(monkeypatch):
    """A trainer without a path to resume from empties no cache as it starts, and still waits for the other ranks."""
    called = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: called.append("empty_cache"))
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.state.fn = TrainerFn.FITTING
    monkeypatch.setattr(trainer.strategy, "barrier", lambda name: called.append("barrier"))
    trainer._checkpoint_connector.resume_end()
    loops.keep_memory_cache(trainer)
    trainer._checkpoint_connector.resume_end()
    assert called == ["empty_cache", "barrier", "barrier"]


def test_a_trainer_is_freed_from_its_circles():
    """Loops, connectors, callbacks and logged metrics hold Lightning's trainer, or its strategy, until they are cut."""

    class Logs(BoringModel):
        def validation_step(self, batch, batch_idx):
            self.log("value", 1.0)

    bar = pl.callbacks.TQDMProgressBar(refresh_rate=0)
    trainer = pl.Trainer(logger=False, accelerator="cpu", limit_val_batches=1, callbacks=[bar])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.validate(Logs(), verbose=False)
    gone = weakref.ref(trainer), weakref.ref(trainer.strategy), weakref.ref(trainer.lightning_module)
    metrics = dict(trainer.callback_metrics)
    loops.refer_weakly_to(trainer)
    assert dict(trainer.callback_metrics) == metrics != {}
    assert trainer.fit_loop.trainer == trainer
    with without_collector():
        del trainer
        assert [one() for one in gone] == [None, None, None]


def test_fsdp_is_set_up_through_what_we_override():
    """Lightning's FSDP wraps in ``setup``, asks for its optimizer there, and refuses only its own class."""
    source = inspect.getsource(FSDPStrategy.setup)
    assert source.index("_setup_model(") < source.index("setup_optimizers(trainer)")
    assert "type(self._strategy_flag) is FSDPStrategy" in inspect.getsource(_AcceleratorConnector)
    assert "creates_processes_externally" in inspect.getsource(FSDPStrategy._configure_launcher)
    assert FSDP1Strategy.precision_plugin is Strategy.precision_plugin


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        pytest.param({}, {"sharding": "full_shard"}, id="none"),
        pytest.param(
            {"auto_wrap_policy": {nn.Linear}, "activation_checkpointing_policy": {nn.Linear}},
            {"wrapping": "transformer", "layer_classes": ("Linear",), "activation_checkpointing": True},
            id="layers",
        ),
        pytest.param(
            {"auto_wrap_policy": partial(size_based_auto_wrap_policy, min_num_params=7)},
            {"wrapping": "size", "min_num_params": 7},
            id="size",
        ),
        pytest.param(
            {
                "sharding_strategy": ShardingStrategy._HYBRID_SHARD_ZERO2,
                "auto_wrap_policy": {nn.Linear},
                "backward_prefetch": BackwardPrefetch.BACKWARD_POST,
                "use_orig_params": False,
                "state_dict_type": "sharded",
                "cpu_offload": True,
            },
            {
                "sharding": "hybrid_shard_zero2",
                "wrapping": "transformer",
                "layer_classes": ("Linear",),
                "backward_prefetch": "backward_post",
                "use_orig_params": False,
                "state_dict_type": "sharded",
                "cpu_offload": True,
            },
            id="all others",
        ),
    ],
)
def test_choices_for_fsdp_are_read(chosen, expected):
    """What a user told ``FSDPStrategy`` is found where it keeps it."""
    assert strategies.parse_fsdp_strategy(FSDPStrategy(**chosen)) == (FsdpSettings(**expected), [])


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        pytest.param({"ignored_states": []}, "`ignored_states`", id="another keyword of torch's"),
        pytest.param({"auto_wrap_policy": lambda **_: True}, "`auto_wrap_policy`", id="a policy of one's own"),
        pytest.param(
            {"activation_checkpointing_policy": {nn.Linear}}, "`activation_checkpointing_policy`", id="layers"
        ),
    ],
)
def test_choices_for_fsdp_that_cannot_be_kept(chosen, named):
    """Each is named."""
    [problem] = strategies.parse_fsdp_strategy(FSDPStrategy(**chosen))[1]
    assert named in problem


def test_model_parallel_strategy_is_set_up_through_what_we_override():
    """Lightning's strategy of DTensor models sets its mesh with the environment; one method starts processes."""
    source = inspect.getsource(ModelParallelStrategy.setup_environment)
    for statement in (
        "super().setup_environment()",
        "self._setup_distributed()",
        "self._device_mesh = ",
        "self.lightning_module._device_mesh = self._device_mesh",
    ):
        assert statement in source
    assert ModelParallelStrategy.__base__ is ParallelStrategy
    assert "self._launcher" in inspect.getsource(ModelParallelStrategy._configure_launcher)
    setup = inspect.getsource(ModelParallelStrategy.setup)
    for call_made in ("accelerator.setup(trainer)", "setup_optimizers(trainer)", "setup_precision_plugin()"):
        assert f"self.{call_made}" in setup


def test_steps_call_the_module_where_it_is_the_model():
    """A strategy's steps go through ``self.model`` if that is not the LightningModule, as a sharded model is not."""
    for name in ("training_step", "validation_step", "test_step"):
        source = inspect.getsource(getattr(Strategy, name))
        assert "if self.model != self.lightning_module" in source
        assert "_step_context()" in source


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # of Lightning, with newer releases of torch
def test_ctrl_c_leaves_lightnings_trainer():
    """Lightning makes it a SystemExit and ignores SIGINT from then on; here both are undone, and no trace is left."""

    class Pressed(BoringModel):
        def validation_step(self, *_):
            raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGINT)
    trainer = pl.Trainer(enable_progress_bar=False, **PLAIN)
    for _ in range(2):
        exceptions.raise_keyboard_interrupt(trainer)
        with pytest.raises(KeyboardInterrupt):
            trainer.validate(Pressed(), verbose=False)
        assert signal.getsignal(signal.SIGINT) is handler
        assert "_teardown" not in vars(trainer)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:  # an earlier one, which is handled while a call without errors ends
        undo = exceptions.raise_keyboard_interrupt(trainer)
        trainer.validate(BoringModel(), verbose=False)
    undo()
    assert "_teardown" not in vars(trainer)
    assert "signal.signal(signal.SIGINT, signal.SIG_IGN)" in inspect.getsource(call._call_and_handle_interrupt)


TRAINS = ("transformers", "accelerate", "torch/distributed/tensor", "torch/distributed/fsdp", "torch/distributed/nn")
"""What communicates during training, by its place among the installed packages."""


def imported_collectives(path):
    """Return the names that a module imports from where torch has its collectives."""
    places = {f"torch.distributed{part}" for part in ("", ".distributed_c10d", "._functional_collectives")}
    text = path.read_text()
    tree = ast.parse(text if "torch.distributed" in text else "")
    return {
        each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in places
        for each in node.names
    }


def test_collectives_that_are_imported_by_name():
    """Modules that import collectives by name are those in which they begin with a vote, too."""
    packages = Path(torch.__file__).parents[1]
    found = set()
    for path in itertools.chain.from_iterable((packages / part).rglob("*.py") for part in TRAINS):
        if imported_collectives(path) & {*strategies._COLLECTIVES}:
            found.add(".".join(path.relative_to(packages).with_suffix("").parts))
    assert found <= {*strategies._MODULES}


def test_gradients_of_collectives_begin_with_a_vote(monkeypatch):
    """Functional collectives and their gradients look torch's operators up at each call, and afterwards find them."""
    votes = []
    monkeypatch.setattr(strategies, "vote", lambda: votes.append(1))
    operators = torch.ops._c10d_functional
    before = operators.all_to_all_single
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with strategies.voted_collectives():
            assert operators.all_to_all_single.default is before.default
            value = torch.ones(2, requires_grad=True)
            _functional_collectives.all_to_all_single_autograd(
                value, [2], [2], distributed.group.WORLD
            ).sum().backward()
    finally:
        distributed.destroy_process_group()
    assert (len(votes), value.grad.tolist()) == (2, [1.0, 1.0])
    assert operators.all_to_all_single is before


@pytest.mark.parametrize(("most", "then"), [(0, 1), (3, 3), (-1, -1)], ids=["reached", "not reached", "no limit"])
def test_the_limit_of_steps_is_what_the_loops_ask_for(most, then):
    """The loops compare the steps made, here none, with ``epoch_loop.max_steps``, which can be raised by one."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", max_epochs=1, max_steps=most)
    loops.allow_next_step(trainer)
    assert trainer.max_steps == trainer.fit_loop.max_steps == then
    for read in (pl.loops.fit_loop._FitLoop.done, _TrainingEpochLoop._is_training_done):
        assert "_is_max_limit_reached(self" in inspect.getsource(read.fget)
