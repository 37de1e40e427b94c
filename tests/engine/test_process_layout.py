"""Placement: where a run takes place, under which strategy."""

import socket

import pytest
from lightning.pytorch.strategies import DDPStrategy

from hf_compat.arguments.process_facts import choose_device
from hf_compat.distributed.launch import Launch
from hf_compat.engine.process_layout import ProcessLayout, ProcessStart, place_run, presume_layout
from hf_compat.engine.strategies.base import STRATEGIES
from hf_compat.engine.strategies.ddp import ddp_settings
from hf_compat.errors import TrainerSetupError
from tests.support.helpers import PlainModel, gpt2
from tests.support.trainers import arguments


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("model", "fields", "given", "expected"),
    [
        pytest.param(PlainModel, {}, {}, {"find_unused_parameters": True}, id="a plain module"),
        pytest.param(gpt2, {}, {}, {"find_unused_parameters": True}, id="a pretrained model"),
        pytest.param(
            gpt2, {"gradient_checkpointing": True}, {}, {"find_unused_parameters": False}, id="with checkpointing"
        ),
        pytest.param(
            PlainModel, {"gradient_checkpointing": True}, {}, {"find_unused_parameters": True}, id="plain, the same"
        ),
        pytest.param(
            gpt2,
            {
                "ddp_find_unused_parameters": False,
                "ddp_bucket_cap_mb": 3,
                "ddp_broadcast_buffers": False,
                "ddp_static_graph": True,
            },
            {},
            {"find_unused_parameters": False, "bucket_cap_mb": 3, "broadcast_buffers": False, "static_graph": True},
            id="every field",
        ),
        pytest.param(
            gpt2,
            {"ddp_bucket_cap_mb": 25, "ddp_broadcast_buffers": True, "ddp_static_graph": False},
            {},
            {"find_unused_parameters": True},
            id="torch's defaults, which are not passed",
        ),
        pytest.param(
            gpt2,
            {"ddp_bucket_cap_mb": 3},
            {"bucket_cap_mb": 5, "gradient_as_bucket_view": True},
            {"find_unused_parameters": True, "bucket_cap_mb": 5, "gradient_as_bucket_view": True},
            id="what the user passed to Lightning's strategy",
        ),
    ],
)
def test_settings_of_ddp(model, fields, given, expected):
    """The fields ``ddp_*`` become keywords of torch's wrapper; unused parameters are looked for by upstream's rule."""
    assert ddp_settings(arguments(**fields), model(), given) == expected


def test_one_process_is_placed_on_one_device():
    """Without a launcher and without a wish a run takes place in this process."""
    process_layout = place_run(arguments(), {})
    assert (process_layout.launch, process_layout.strategy) == (Launch(), "one device")
    assert process_layout.strategy in STRATEGIES


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("ddp_find_unused_parameters_true", {"find_unused_parameters": True}),
        (DDPStrategy(gradient_as_bucket_view=True), {"gradient_as_bucket_view": True}),
    ],
    ids=["by name", "an instance"],
)
def test_strategy_of_the_user(strategy, settings):
    """What a user chose of Lightning's DDP is kept for ours."""
    assert place_run(arguments(), {"strategy": strategy}).settings == settings


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("ddp_spawn", ProcessLayout(Launch(), "one device", start=ProcessStart("spawn", 2))),
        ("ddp_notebook", ProcessLayout(Launch(), "one device", start=ProcessStart("fork", 2))),
        (
            "ddp_fork_find_unused_parameters_false",
            ProcessLayout(
                Launch(), "one device", settings={"find_unused_parameters": False}, start=ProcessStart("fork", 2)
            ),
        ),
    ],
)
def test_processes_that_train_starts(strategy, expected):
    """Lightning's names for starting by multiprocessing; until then, and afterwards, there is one process."""
    assert place_run(arguments(), {"strategy": strategy, "devices": 2}) == expected


def test_start_method_of_an_instance():
    """``DDPStrategy(start_method=...)`` says it too; a single process needs no start."""
    strategy = DDPStrategy(start_method="forkserver")
    assert place_run(arguments(), {"strategy": strategy, "devices": 3}).start == ProcessStart("forkserver", 3)
    assert place_run(arguments(), {"strategy": strategy, "devices": 1}).start is None


@pytest.mark.parametrize(
    ("variables", "keywords", "told"),
    [
        pytest.param(
            {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}, {}, "torchrun has started 2", id="in a process of many"
        ),
        pytest.param({}, {"num_nodes": 2}, "not on 2: start the script with `torchrun`", id="on several nodes"),
    ],
)
def test_start_that_cannot_be(variables, keywords, told, monkeypatch):
    """Starting processes in each of several would train copies apart, and other nodes are out of reach."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    args = arguments()
    args._setup_devices = choose_device(args)  # the other process will never come
    with pytest.raises(TrainerSetupError, match=told):
        place_run(args, {"strategy": "ddp_spawn", "devices": 2, **keywords})


@pytest.mark.parametrize(
    ("fields", "strategy", "named"),
    [
        pytest.param({"fsdp": "full_shard"}, "ddp_spawn", "`fsdp`", id="start of a sharded run"),
        pytest.param({"fsdp": "full_shard"}, DDPStrategy(), "`fsdp`", id="an instance of DDP beside fsdp"),
        pytest.param({"parallelism_config": {"tp_size": 2}}, "ddp", "`parallelism_config`", id="ddp beside a grid"),
        pytest.param({"parallelism_config": {"tp_size": 2}}, "fsdp", "`parallelism_config`", id="fsdp beside a grid"),
    ],
)
def test_strategy_contradicts_a_field(fields, strategy, named):
    """The keyword ``strategy`` and the arguments name two ways to use several processes."""
    with pytest.raises(TrainerSetupError, match=f"'strategy': .* contradicts {named}: set only one of them"):
        place_run(arguments(**fields), {"strategy": strategy, "devices": 2})


def test_strategy_that_contradicts_the_arguments():
    """Two answers to one question are refused."""
    with pytest.raises(TrainerSetupError, match=r"ddp_find_unused_parameters=False.*contradicts"):
        place_run(arguments(ddp_find_unused_parameters=False), {"strategy": "ddp_find_unused_parameters_true"})


@pytest.mark.parametrize("wish", [{"devices": 3}, {"num_nodes": 2}], ids=str)
def test_devices_that_the_launcher_did_not_start(wish, monkeypatch):
    """Other numbers than the launcher's would train copies apart; both are named."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    args = arguments()
    args._setup_devices = choose_device(args)  # the other process will never come
    with pytest.raises(TrainerSetupError, match=r"torchrun started 2 processes on each of 1.*LOCAL_WORLD_SIZE"):
        place_run(args, wish)


def test_processes_that_never_come(monkeypatch):
    """``ddp_timeout`` limits the wait for the others; the error says where they were expected."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainerSetupError, match=rf"Rank 1 of 2 \(torchrun\).*127.0.0.1:{port}.*gloo"):
        _ = arguments(ddp_timeout=1).device


def test_what_is_wrong_beside_the_keywords_is_told_too(monkeypatch):
    """Without processes the same strategy is found as with them, and all that ``place_run`` refuses is told."""
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    keywords = {"accelerator": "tpu", "strategy": "no_such"}
    process_layout, problems = presume_layout(arguments(), keywords)
    assert process_layout.strategy == "one device"
    assert [told in problem for told, problem in zip(("no_such", "MEGATRON", "'tpu'"), problems, strict=True)] == [
        True
    ] * 3
    with pytest.raises(TrainerSetupError, match=r"(?s)MEGATRON.*'accelerator': 'tpu'"):
        place_run(arguments(), {"accelerator": "tpu"})
    monkeypatch.delenv("ACCELERATE_USE_MEGATRON_LM")
    assert presume_layout(arguments(fsdp="full_shard"), {})[0].strategy.startswith("fsdp")
    with pytest.raises(TrainerSetupError, match=r"`fsdp` shards .* the world size is only 1"):
        place_run(arguments(fsdp="full_shard"), {})
