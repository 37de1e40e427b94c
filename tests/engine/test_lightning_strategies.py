"""Lightning's strategies and cluster environments: each is in a table, which says whether it works, and it does."""

import inspect

import pytest
import torch
from lightning.fabric.plugins import environments
from lightning.fabric.strategies import DDPStrategy as FabricsStrategy
from lightning.pytorch import accelerators, strategies
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision, TorchCheckpointIO
from lightning.pytorch.strategies import (
    DDPStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
    StrategyRegistry,
)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from hf_compat import Trainer, TrainingArguments
from hf_compat.distributed.launch import Launch
from hf_compat.engine.environments import LaunchedEnvironment
from hf_compat.engine.strategies.one_device import OneDeviceStrategy
from hf_compat.engine.strategy_table import CLASSES, ENVIRONMENTS, NAMES
from hf_compat.errors import TrainerSetupError
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.lightning_strategies_page import PAGE, page


def trainer(folder, strategy, *, callbacks=None, keywords=None, **fields):
    defaults = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "max_steps": 2}
    return Trainer(
        PlainModel(),
        TrainingArguments(str(folder), **{**defaults, **fields}),
        train_dataset=ListDataset(vector_rows(8)),
        lightning={"strategy": strategy, **(keywords or {})},
        callbacks=callbacks,
    )


def exported(module, base):
    """Return the names of the classes of ``base`` that ``module`` exports."""
    return {name for name, one in vars(module).items() if isinstance(one, type) and issubclass(one, base)}


def test_everything_that_lightning_exports_is_in_a_table():
    """A strategy, a name or a cluster environment that is new in Lightning has no row, and fails this test."""
    registered = {name for name, row in StrategyRegistry.items() if row["strategy"].__module__.startswith("lightning")}
    assert exported(strategies, Strategy) == CLASSES.keys()
    assert registered | {"auto"} == NAMES.keys()
    assert exported(environments, environments.ClusterEnvironment) == ENVIRONMENTS.keys()


def test_the_page_is_that_of_the_code():
    """``docs/lightning_strategies.md`` is what the tables say."""
    assert PAGE.read_text() == page(), "run: python -m tests.support.lightning_strategies_page"


PLUGINS = {"cluster_environment", "checkpoint_io", "precision_plugin"}
ELSEWHERE = {"accelerator", "parallel_devices", "process_group_backend", "timeout"}
ARGUMENTS = {
    DDPStrategy: {
        *("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period", "start_method", "kwargs"),
        *(PLUGINS | ELSEWHERE),
    },
    FSDPStrategy: {
        *("cpu_offload", "mixed_precision", "auto_wrap_policy", "activation_checkpointing", "device_mesh", "kwargs"),
        *("activation_checkpointing_policy", "sharding_strategy", "state_dict_type"),
        *(PLUGINS | ELSEWHERE),
    },
    ModelParallelStrategy: {
        *("data_parallel_size", "tensor_parallel_size", "save_distributed_checkpoint"),
        *("process_group_backend", "timeout"),
    },
    SingleDeviceStrategy: {"device", "accelerator", "checkpoint_io", "precision_plugin"},
}
"""Strategy that works → its arguments, each of which has an effect or is refused."""


@pytest.mark.parametrize("kind", ARGUMENTS, ids=lambda kind: kind.__name__)
def test_every_argument_is_accounted_for(kind):
    """An argument that is new in Lightning fails this test."""
    assert set(inspect.signature(kind).parameters) == ARGUMENTS[kind]
    assert CLASSES[kind.__name__].works


@pytest.mark.parametrize("name", [name for name, one in NAMES.items() if not one.works])
def test_refused_names(tmp_path, name):
    """A name that is refused is so before anything is built, with the reason and what to use."""
    with pytest.raises(TrainerSetupError) as told:
        trainer(tmp_path, name)
    assert str(told.value) == (
        f"`lightning={{'strategy': {name!r}}}` is not supported: {NAMES[name].note}. Use {NAMES[name].instead}."
    )


@pytest.mark.parametrize("name", ["DeepSpeedStrategy", "XLAStrategy", "SingleDeviceXLAStrategy"])
def test_refused_instances(tmp_path, name):
    """So is an instance, made here without its constructor, which needs what few machines have."""
    kind = getattr(strategies, name)
    instance = object.__new__(kind)
    vars(instance).update(_checkpoint_io=None, _precision_plugin=None, cluster_environment=None)
    with pytest.raises(TrainerSetupError, match=f"{name}.* is not supported: {CLASSES[name].note}. Use "):
        trainer(tmp_path, instance)


class OfTheUser(DDPStrategy):
    """Does something of its own in each backward pass."""

    def pre_backward(self, closure_loss):
        super().pre_backward(closure_loss)


class FromScratch(Strategy):
    """A strategy of which nothing is Lightning's."""

    root_device = torch.device("cpu")
    is_global_zero = True

    def reduce(self, tensor, *args, **kwargs):
        return tensor

    def barrier(self, name=None):
        pass

    def broadcast(self, obj, src=0):
        return obj

    def all_gather(self, tensor, group=None, sync_grads=False):
        return tensor

    def model_to_device(self):
        pass


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        pytest.param(OfTheUser(), "OfTheUser.*never call your `pre_backward`", id="a subclass of DDP"),
        pytest.param(FromScratch(), "FromScratch.*`all_gather`, `barrier`, `broadcast`", id="a strategy of one's own"),
        pytest.param(FabricsStrategy(), "DDPStrategy.*of `lightning.pytorch.strategies`", id="Fabric's"),
        pytest.param(SingleDeviceStrategy("meta"), "is for meta, but the run is on cpu", id="another device"),
        pytest.param(DDPStrategy(accelerator=accelerators.CPUAccelerator()), "`accelerator` is not", id="accelerator"),
        pytest.param(
            FSDPStrategy(accelerator=accelerators.CPUAccelerator()), "`accelerator` is not", id="FSDP's accelerator"
        ),
        pytest.param(DDPStrategy(parallel_devices=[torch.device("cpu")]), "`parallel_devices` is not", id="devices"),
        pytest.param(DDPStrategy(ddp_comm_state=[]), "`ddp_comm_state` has no effect without", id="a state alone"),
        pytest.param(
            DDPStrategy(ddp_comm_hook=default_hooks.fp16_compress_hook, model_averaging_period=2),
            "`model_averaging_period` and a `PostLocalSGDState`",
            id="an averaging without a state",
        ),
        pytest.param(ModelParallelStrategy(timeout=None), "ddp_timeout", id="a timeout for grids"),
    ],
)
def test_instances_that_cannot_be(tmp_path, strategy, told):
    """What a run would not carry out is named before it."""
    with pytest.raises(TrainerSetupError, match=told):
        trainer(tmp_path, strategy)


def test_single_device_for_several_processes(tmp_path):
    """One device and several processes exclude each other."""
    for strategy in ("single_device", SingleDeviceStrategy()):
        with pytest.raises(TrainerSetupError, match="is for one process, but `lightning` requests 2 devices"):
            trainer(tmp_path, strategy, keywords={"devices": 2})


@pytest.mark.parametrize(
    "strategy", ["single_device", "SINGLE_DEVICE", pytest.param(SingleDeviceStrategy("cpu"), id="an instance")]
)
def test_single_device(tmp_path, strategy):
    """A single device trains the model as it is."""
    made = trainer(tmp_path, strategy)
    made.train()
    assert made.state.global_step == 2
    assert isinstance(made.lightning_trainer.strategy, OneDeviceStrategy)
    assert made.model_wrapped is made.model


class Averaged(DDPStrategy):
    """Has a constructor of its own and nothing else."""

    def __init__(self):
        super().__init__(find_unused_parameters=True)


@pytest.fixture
def registered():
    """Register a strategy as users do; it is gone afterwards."""
    StrategyRegistry.register("ddp_of_mine", DDPStrategy, static_graph=True)
    yield "ddp_of_mine"
    StrategyRegistry.remove("ddp_of_mine")


def test_what_stands_for_an_instance(tmp_path, registered):
    """A subclass that only has a constructor, and a registered name, are Lightning's class with their arguments."""
    placements = [trainer(tmp_path, one)._lightning_runtime.placement for one in (Averaged(), registered)]
    assert [placement.settings for placement in placements] == [
        {"find_unused_parameters": True},
        {"static_graph": True},
    ]


class CountsSaves(TorchCheckpointIO):
    """Counts the checkpoints that Lightning saves."""

    saves = 0

    def save_checkpoint(self, *args, **kwargs):
        self.saves += 1
        super().save_checkpoint(*args, **kwargs)


@pytest.mark.parametrize("kind", [DDPStrategy, SingleDeviceStrategy])
def test_plugins_of_a_strategy(tmp_path, kind):
    """Precision and ``CheckpointIO`` that a strategy was handed do their work."""
    precision, files = MixedPrecision("bf16-mixed", "cpu"), CountsSaves()
    callbacks = [ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)]
    made = trainer(tmp_path, kind(precision_plugin=precision, checkpoint_io=files), callbacks=callbacks)
    seen = []
    made.model.body.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    made.train()
    assert made.lightning_trainer.precision_plugin is made._lightning_runtime.precision
    assert seen == [True, True]
    assert files.saves == 2


def test_cluster_environment_of_a_strategy(tmp_path):
    """So does a cluster environment; two of a kind are refused."""
    ended = []

    class Told(LaunchedEnvironment):
        def teardown(self):
            ended.append(self)

    told = Told(Launch())
    strategy = DDPStrategy(cluster_environment=told)
    assert trainer(tmp_path, strategy)._lightning_runtime.placement.environment is told
    with pytest.raises(TrainerSetupError, match=r"cluster_environment=.*\[Told\].*both set the cluster environment"):
        trainer(tmp_path, strategy, keywords={"plugins": told})
