"""Lightning's strategies and cluster environments: each is in a table, which says whether it works, and it does."""

import inspect
import logging

import pytest
import torch
from lightning.fabric.plugins import environments
from lightning.fabric.strategies import DDPStrategy as FabricsStrategy
from lightning.pytorch import accelerators, strategies
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import DeepSpeedPrecision, FSDPPrecision, MixedPrecision, TorchCheckpointIO
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    SingleDeviceStrategy,
    Strategy,
    StrategyRegistry,
)
from torch.distributed import fsdp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from hf_compat import Trainer, TrainingArguments
from hf_compat.distributed.launch import Launch
from hf_compat.engine.internals.strategies import DEEPSPEED_NAMES, changed_options
from hf_compat.engine.process_layout import LaunchedEnvironment
from hf_compat.engine.run_settings import effective_settings
from hf_compat.engine.strategies.base import OneDeviceStrategy
from hf_compat.engine.strategies.choice import REFUSED_OPTIONS, STRATEGY_NAMES
from hf_compat.engine.strategy_table import REFUSED_STRATEGIES
from hf_compat.errors import HFCompatError, TrainerSetupError
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.lightning_strategies_page import (
    CLASSES,
    ENVIRONMENTS,
    NAMES,
    OPTIONS,
    PAGE,
    REFUSED_ENVIRONMENTS,
    page,
)


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
    assert exported(strategies, Strategy) | registered | {"auto"} == {*CLASSES, *NAMES, *REFUSED_STRATEGIES}
    assert exported(environments, environments.ClusterEnvironment) == {*ENVIRONMENTS, *REFUSED_ENVIRONMENTS}
    assert NAMES.keys() == {*STRATEGY_NAMES}


def test_the_page_is_that_of_the_code():
    """``docs/lightning_strategies.md`` is what the tables say."""
    assert PAGE.read_text() == page(), "run: python -m tests.support.lightning_strategies_page"


def test_every_strategy_that_works_has_its_options_in_a_table():
    """A class with a row that works, but without options, fails this test."""
    assert CLASSES.keys() == OPTIONS.keys() == REFUSED_OPTIONS.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_decision(name):
    """Each argument of a constructor is translated or refused; one that is new in Lightning fails this test."""
    assert set(inspect.signature(getattr(strategies, name).__init__).parameters) - {"self"} == {
        *OPTIONS[name],
        *REFUSED_OPTIONS[name],
    }


REFUSED_VALUES = {
    "accelerator": accelerators.CPUAccelerator(),
    "checkpoint_io": TorchCheckpointIO(),
    "device_mesh": (1, 2),
    "exclude_frozen_parameters": True,
    "load_full_weights": True,
    "logging_level": logging.DEBUG,
    "mixed_precision": fsdp.MixedPrecision(),
    "parallel_devices": [torch.device("cpu")],
    "precision_plugin": {
        "DeepSpeedStrategy": DeepSpeedPrecision("bf16-mixed"),
        "FSDPStrategy": FSDPPrecision("bf16-mixed"),
    },
    "process_group_backend": "gloo",
    "remote_device": "cpu",
    "timeout": None,
}
"""Option that a strategy refuses → a value off its default, by class where they differ."""


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, options in REFUSED_OPTIONS.items() for option in options]
)
def test_refused_options(tmp_path, name, option):
    """A refused option is an error off its default, with the reason and what to use; at its default it is none."""
    if name == "DeepSpeedStrategy":
        pytest.importorskip("deepspeed")
    value, kind = REFUSED_VALUES[option], getattr(strategies, name)
    instance = kind(**{option: value[name] if option == "precision_plugin" else value})
    why = REFUSED_OPTIONS[name][option]
    with pytest.raises(TrainerSetupError) as told:
        trainer(tmp_path, instance)
    assert str(told.value) == (
        f"`lightning={{'strategy': {name}(...)}}`: `{option}` is not supported, because {why.reason}: use "
        f"{why.instead}."
    )
    assert not changed_options(kind(), REFUSED_OPTIONS[name])


@pytest.mark.parametrize("name", [name for name in REFUSED_STRATEGIES if name[0].islower()])
def test_refused_names(tmp_path, name):
    """A name that is refused is so before anything is built, with the reason and what to use."""
    with pytest.raises(TrainerSetupError) as told:
        trainer(tmp_path, name)
    why = REFUSED_STRATEGIES[name]
    assert str(told.value) == f"`lightning={{'strategy': {name!r}}}` is not supported: {why.reason}. Use {why.instead}."


@pytest.mark.parametrize("name", ["XLAStrategy", "SingleDeviceXLAStrategy"])
def test_refused_instances(tmp_path, name):
    """So is an instance, made here without its constructor, which needs what few machines have."""
    kind = getattr(strategies, name)
    instance = object.__new__(kind)
    vars(instance).update(_checkpoint_io=None, _precision_plugin=None, cluster_environment=None)
    with pytest.raises(TrainerSetupError, match=f"{name}.* is not supported: {REFUSED_STRATEGIES[name].reason}. Use "):
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


def print_bucket(bucket):
    """No hook: it takes no state."""


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        pytest.param(OfTheUser(), "OfTheUser.*never call your `pre_backward`", id="a subclass of DDP"),
        pytest.param(FromScratch(), "FromScratch.*`all_gather`, `barrier`, `broadcast`", id="a strategy of one's own"),
        pytest.param(FabricsStrategy(), "DDPStrategy.*of `lightning.pytorch.strategies`", id="Fabric's"),
        pytest.param(SingleDeviceStrategy("meta"), "is for meta, but the run is on cpu", id="another device"),
        pytest.param(DDPStrategy(ddp_comm_state=[]), "`ddp_comm_state` has no effect without", id="a state alone"),
        pytest.param(
            DDPStrategy(ddp_comm_hook=default_hooks.fp16_compress_hook, model_averaging_period=2),
            "`model_averaging_period` and a `PostLocalSGDState`",
            id="an averaging without a state",
        ),
        pytest.param(DDPStrategy(bucket_size=1), "`bucket_size` is not a keyword of `Distr", id="no keyword of DDP"),
        pytest.param(DDPStrategy(device_ids=[0]), "`device_ids` is chosen by the Trainer", id="a device"),
        pytest.param(DDPStrategy(ddp_comm_hook="fp16"), "`ddp_comm_hook='fp16'` must be a function", id="no hook"),
        pytest.param(DDPStrategy(ddp_comm_hook=print_bucket), "must be a function of a state and", id="another hook"),
    ],
)
def test_instances_that_cannot_be(tmp_path, strategy, told):
    """What a run would not carry out is named before it."""
    with pytest.raises(TrainerSetupError, match=told):
        trainer(tmp_path, strategy)


def test_a_misspelt_name(tmp_path):
    """It is answered with the nearest one, then with all of them."""
    told = "^Did you mean 'ddp'\\? `lightning={'strategy': 'dpp'}` is not supported. Pass one of 'auto', 'ddp', "
    with pytest.raises(TrainerSetupError, match=told):
        trainer(tmp_path, "dpp")


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


class Marked(DDPStrategy):
    """Defines a helper, and has the marks of a library and a new docstring; it overrides nothing."""

    _annotated = "Marked"
    _annotated_type = "PUBLIC"
    colour = "blue"

    def described(self):
        return self.colour


def test_what_overrides_nothing_is_no_reason(tmp_path):
    """Names that Lightning's class does not have change nothing that a run would call."""
    assert trainer(tmp_path, Marked(static_graph=True)).lightning_backend.process_layout.settings == {
        "static_graph": True
    }


def test_a_method_replaced_on_an_instance(tmp_path):
    """A method that is assigned on the instance is an override too."""
    strategy = DDPStrategy()
    strategy.barrier = lambda *_: None
    with pytest.raises(TrainerSetupError, match="never call your `barrier`"):
        trainer(tmp_path, strategy)


ZERO = {
    **{"stage": 2, "contiguous_gradients": True, "overlap_comm": True, "allgather_partitions": True},
    **{"reduce_scatter": True, "allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000},
    "sub_group_size": 1_000_000_000_000,
}
ON_CPU = {"device": "cpu", "nvme_path": "/local_nvme", "pin_memory": False}
CONFIGS = {
    "deepspeed": {},
    "deepspeed_stage_1": {"stage": 1},
    "deepspeed_stage_2": {},
    "deepspeed_stage_2_offload": {"offload_optimizer": {**ON_CPU, "buffer_count": 4}},
    "deepspeed_stage_3": {"stage": 3},
    "deepspeed_stage_3_offload": {
        "stage": 3,
        "offload_optimizer": {**ON_CPU, "buffer_count": 4},
        "offload_param": {**ON_CPU, "buffer_count": 5, "buffer_size": 100_000_000, "max_in_cpu": 1_000_000_000},
    },
    "deepspeed_stage_3_offload_nvme": {
        "stage": 3,
        "offload_optimizer": {**ON_CPU, "device": "nvme", "buffer_count": 4},
        "offload_param": {
            **{**ON_CPU, "device": "nvme", "buffer_count": 5, "buffer_size": 100_000_000},
            "max_in_cpu": 1_000_000_000,
        },
    },
}
"""Lightning's name of DeepSpeed → what ``zero_optimization`` has besides Lightning's defaults."""


def deepspeed_fields(folder, strategy, keywords=None, **fields):
    """Return the training arguments of a run whose keyword ``strategy`` is DeepSpeed's."""
    pytest.importorskip("deepspeed")
    args = TrainingArguments(str(folder), use_cpu=True, report_to="none", **fields)
    settings = effective_settings(args, {"strategy": strategy, **(keywords or {})})
    assert not settings.problems, settings.problems
    return settings.args


def test_every_name_of_deepspeed_is_tested():
    """A name that is new in Lightning fails this test."""
    assert CONFIGS.keys() == set(DEEPSPEED_NAMES)


@pytest.mark.parametrize("name", CONFIGS)
def test_names_of_deepspeed(tmp_path, name):
    """A name is the field ``deepspeed``: Lightning's config, with ``"auto"`` for what the arguments say."""
    args = deepspeed_fields(tmp_path, name)
    assert args.deepspeed["zero_optimization"] == ZERO | CONFIGS[name]
    for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"):
        assert args.deepspeed[key] == "auto"
    assert args.deepspeed_plugin.zero_stage == CONFIGS[name].get("stage", 2)


def test_deepspeed_follows_the_other_keywords(tmp_path):
    """What other keywords say is in the config, as if the fields had been set."""
    keywords = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.25, "precision": "bf16-mixed"}
    args = deepspeed_fields(tmp_path, "DeepSpeed_Stage_1", keywords, per_device_train_batch_size=5)
    found = args.hf_deepspeed_config.config
    assert found["gradient_accumulation_steps"] == 3
    assert found["gradient_clipping"] == 0.25
    assert found["bf16"] == {"enabled": True}
    assert found["train_micro_batch_size_per_gpu"] == 5


SCALING = {"loss_scale": 8, "initial_scale_power": 4, "loss_scale_window": 7, "hysteresis": 3, "min_loss_scale": 2}
ACTIVATIONS = (
    *("partition_activations", "cpu_checkpointing"),
    *("contiguous_memory_optimization", "synchronize_checkpoint_boundary"),
)
AIO = {"block_size": 2, "queue_depth": 3, "single_submit": True, "overlap_events": False, "thread_count": 4}
FOR_ZERO = {
    **{"stage": 3, "sub_group_size": 5, "contiguous_gradients": False, "overlap_comm": False},
    **{"allgather_partitions": False, "reduce_scatter": False, "allgather_bucket_size": 6, "reduce_bucket_size": 7},
}
OF_OPTIMIZER = {"offload_optimizer": True, "offload_optimizer_device": "nvme", "optimizer_buffer_count": 8}
OF_PARAMETERS = {
    **{"offload_parameters": True, "offload_params_device": "nvme", "params_buffer_count": 9},
    **{"params_buffer_size": 10, "max_in_cpu": 11},
}
TRANSLATED = {
    "zero": (FOR_ZERO, {"zero_optimization": FOR_ZERO}),
    "no zero": ({"zero_optimization": False}, {"zero_optimization": {"stage": 0}}),
    "loss scale": (SCALING, {"fp16": {"enabled": "auto", **SCALING}}),
    "activations": (dict.fromkeys(ACTIVATIONS, True), {"activation_checkpointing": dict.fromkeys(ACTIVATIONS, True)}),
    "disks": (AIO, {"aio": AIO}),
    "offloading": (
        {**OF_OPTIMIZER, **OF_PARAMETERS, "nvme_path": "/disk", "pin_memory": True},
        {
            "zero_optimization": ZERO
            | {
                "offload_optimizer": {"device": "nvme", "nvme_path": "/disk", "pin_memory": True, "buffer_count": 8},
                "offload_param": {
                    **{"device": "nvme", "nvme_path": "/disk", "pin_memory": True, "buffer_count": 9},
                    **{"buffer_size": 10, "max_in_cpu": 11},
                },
            }
        },
    ),
    "batch size": ({"logging_batch_size_per_gpu": 4}, {"train_micro_batch_size_per_gpu": 4}),
    "untested optimizer": ({"zero_allow_untested_optimizer": False}, {"zero_allow_untested_optimizer": False}),
    "config": (
        {"config": {"zero_optimization": {"stage": 1}, "fp16": {"enabled": False}, "gradient_clipping": 0.5}},
        {"zero_optimization": {"stage": 1}, "fp16": {"enabled": False}, "gradient_clipping": 0.5},
    ),
    "environment": ({"cluster_environment": LaunchedEnvironment(Launch())}, {}),
}
"""Options of ``DeepSpeedStrategy``, and the sections of the DeepSpeed config that they are."""


@pytest.mark.parametrize(("options", "sections"), TRANSLATED.values(), ids=TRANSLATED)
def test_options_of_deepspeed(tmp_path, options, sections):
    """An instance is the field ``deepspeed``, with all its options."""
    pytest.importorskip("deepspeed")
    args = deepspeed_fields(tmp_path, DeepSpeedStrategy(**options))
    assert {name: args.deepspeed[name] for name in sections} == sections


def test_every_option_of_deepspeed_is_tested():
    """An option is in a test of what it becomes, or of how it is refused."""
    tested = {option for options, _ in TRANSLATED.values() for option in options}
    assert tested == OPTIONS["DeepSpeedStrategy"].keys()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        pytest.param({"deepspeed": {"zero_optimization": {"stage": 2}}}, " contradicts `deepspeed=", id="deepspeed"),
        pytest.param({"fsdp": "full_shard"}, ": cannot be combined with `fsdp`", id="fsdp"),
    ],
)
def test_a_strategy_named_twice(tmp_path, fields, told):
    """A strategy and a field that name two are one error, which shows the strategy."""
    with pytest.raises(HFCompatError) as error:
        trainer(tmp_path, "deepspeed_stage_3", **fields)
    assert f"`lightning={{'strategy': 'deepspeed_stage_3'}}`{told}" in str(error.value)
    assert str(error.value).count("deepspeed_stage_3") == 1


def test_a_strategy_beside_the_launchers(tmp_path, monkeypatch):
    """So are a strategy and what ``accelerate launch`` requests."""
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(TrainerSetupError, match=r"'deepspeed'.* contradicts ACCELERATE_USE_DEEPSPEED"):
        trainer(tmp_path, "deepspeed")


def test_clipping_by_value_beside_deepspeed(tmp_path):
    """DeepSpeed's engine clips by norm alone, whichever way it is named."""
    pytest.importorskip("deepspeed")
    keywords = {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}
    with pytest.raises(TrainerSetupError, match="is not supported with `deepspeed`, whose engine only clips by norm"):
        trainer(tmp_path, "deepspeed", keywords=keywords)


@pytest.fixture
def registered():
    """Register a strategy as users do; it is gone afterwards."""
    StrategyRegistry.register("ddp_of_mine", DDPStrategy, static_graph=True)
    yield "ddp_of_mine"
    StrategyRegistry.remove("ddp_of_mine")


def test_what_stands_for_an_instance(tmp_path, registered):
    """A subclass that only has a constructor, and a registered name, are Lightning's class with their arguments."""
    placements = [trainer(tmp_path, one).lightning_backend.process_layout for one in (Averaged(), registered)]
    assert [process_layout.settings for process_layout in placements] == [
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
    assert made.lightning_trainer.precision_plugin is made.lightning_backend.precision
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
    assert trainer(tmp_path, strategy).lightning_backend.process_layout.environment is told
    with pytest.raises(TrainerSetupError, match=r"cluster_environment=.*\[Told\].*both set the cluster environment"):
        trainer(tmp_path, strategy, keywords={"plugins": told})
