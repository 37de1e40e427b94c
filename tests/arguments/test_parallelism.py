"""Sizes of parallelism, and configs of it that are refused."""

import dataclasses

import pytest
import torch

from hf_compat import Trainer, TrainingArguments
from hf_compat.arguments.parallelism import _OTHERS, _SIZES, ParallelSizes, read_parallelism
from hf_compat.arguments.sequence_parallelism import HANDLERS
from hf_compat.errors import ArgumentsError, HFCompatWarning, UnsupportedArgumentsError
from tests.support.helpers import PlainModel

CONFIGS = [
    pytest.param({"tp_size": 2}, ParallelSizes(tp=2), id="a dict"),
    pytest.param(
        {"tp_size": 4, "dp_shard_size": 2, "cp_size": 1}, ParallelSizes(dp_shard=2, tp=4), id="two dimensions"
    ),
    pytest.param(
        {"tp_size": 2, "dp_shard_size": 3, "dp_replicate_size": 5},
        ParallelSizes(dp_replicate=5, dp_shard=3, tp=2),
        id="three dimensions",
    ),
    pytest.param({"dp_replicate_size": 2}, ParallelSizes(dp_replicate=2), id="replicas alone"),
    pytest.param({"cp_size": 2, "dp_shard_size": 3}, ParallelSizes(dp_shard=3, cp=2), id="shared sequences"),
    pytest.param({"cp_size": 2, "tp_size": 3}, ParallelSizes(cp=2, tp=3), id="shared sequences and matrices"),
    pytest.param({"tp_size": 1}, None, id="nothing"),
]


@pytest.mark.parametrize(("given", "sizes"), CONFIGS)
def test_sizes(given, sizes, tmp_path):
    """A dict of keywords says the same as accelerate's object, and the arguments can be written down with it."""
    args = TrainingArguments(str(tmp_path), parallelism_config=given, fsdp="cp_size" in given and sizes.cp > 1)
    assert read_parallelism(args) == sizes
    assert args.to_dict()["parallelism_config"] == given


def test_sizes_of_the_launcher(tmp_path, monkeypatch):
    """Where the field says nothing, the variables of ``accelerate launch --use_parallelism_config`` count."""
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_SIZE", "2")
    assert read_parallelism(TrainingArguments(str(tmp_path))) is None
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    assert read_parallelism(TrainingArguments(str(tmp_path))) == ParallelSizes(tp=2)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        pytest.param({"cp_size": 2}, ArgumentsError, "cp_size.*context parallelism needs FSDP: set", id="context"),
        pytest.param({"tp_size": 2, "sp_size": 2}, ArgumentsError, "sp_size", id="sequences"),
        pytest.param({"ep_size": 2}, UnsupportedArgumentsError, "ep_size", id="experts"),
        pytest.param({"pp_size": 2}, UnsupportedArgumentsError, "'pp_size': 2.*pipelines for inference", id="stages"),
        pytest.param({"sp_size": 2, "pp_size": 2}, ArgumentsError, "'pp_size': 2.*inference", id="stages of sequences"),
        pytest.param({"cp_backend": "ring"}, ArgumentsError, "'cp_backend': 'ring'.*must be 'torch'", id="backend"),
        pytest.param({"sp_backend": "ring"}, ArgumentsError, "'sp_backend': 'ring'.*'deepspeed'", id="another backend"),
        pytest.param(
            {"tp_size": 2, "tp_handler": {"enable_async_tp": True}},
            UnsupportedArgumentsError,
            "'enable_async_tp': True.*accelerate ignores it",
            id="asynchronous",
        ),
        pytest.param(
            {"cp_handler": {"strategy": "allgather"}},
            ArgumentsError,
            "'strategy' is not a keyword of `TorchContextParallelConfig`; use cp_comm_strategy",
            id="keyword of a handler",
        ),
        pytest.param(
            {"sp_handler": "sdpa"},
            ArgumentsError,
            "'sp_handler': 'sdpa'.*`DeepSpeedSequenceParallelConfig` or a dict of its keywords: sp_seq_length",
            id="no handler",
        ),
        pytest.param(
            {"dp_replicate_size": 2, "tp_size": 2},
            UnsupportedArgumentsError,
            "replicas of a model that is split over `tp_size=2` ranks need a `dp_shard_size` above 1",
            id="replicas of splits",
        ),
        pytest.param({"dp_shard_size": 2}, UnsupportedArgumentsError, "fsdp=True", id="only sharded"),
        pytest.param({"tp_size": 0}, ArgumentsError, "1 or more", id="no process"),
        pytest.param({"tensor": 2}, ArgumentsError, "is not a keyword", id="another keyword"),
        pytest.param(2, ArgumentsError, "ParallelismConfig", id="no config"),
    ],
)
def test_configs_that_cannot_be_carried_out(given, kind, text, tmp_path):
    """Each is refused by its name, before there is a Trainer."""
    with pytest.raises(kind, match=text):
        TrainingArguments(str(tmp_path), parallelism_config=given)


def test_every_keyword_of_accelerate_is_known():
    """Each field of ``ParallelismConfig`` is a size, a handler or a backend, each of a handler a keyword of its."""
    accelerate = pytest.importorskip("accelerate")
    utils = pytest.importorskip("accelerate.utils")
    known = {*_SIZES, *_OTHERS}
    assert {field.name for field in dataclasses.fields(accelerate.ParallelismConfig)} <= known
    for handler in HANDLERS.values():
        assert {field.name for field in dataclasses.fields(getattr(utils, handler.class_name))} == set(handler.keywords)


def test_backend_of_the_launcher(tmp_path, monkeypatch):
    """The variable of ``accelerate launch`` is looked at like the keyword."""
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_BACKEND", "ring")
    TrainingArguments(str(tmp_path))
    with pytest.raises(ArgumentsError, match=r"'sp_backend': 'ring'.*must be 'deepspeed'"):
        TrainingArguments(str(tmp_path), parallelism_config={"tp_size": 2})


class Mesh:
    """Stands for a device mesh of two ranks, which none can be made of in one process."""

    def __init__(self, ranks):
        self.mesh = torch.tensor(ranks)


def test_a_mesh_of_its_own(tmp_path):
    """Ranks are divided in their order: a config with another order is refused, one with that is not."""
    accelerate = pytest.importorskip("accelerate")
    config = accelerate.ParallelismConfig(tp_size=2)
    config.device_mesh = Mesh([0, 1])
    assert read_parallelism(TrainingArguments(str(tmp_path), parallelism_config=config)) == ParallelSizes(tp=2)
    config.device_mesh = Mesh([1, 0])
    with pytest.raises(UnsupportedArgumentsError, match=r"device_mesh.*ranks \[1, 0\] is not supported"):
        TrainingArguments(str(tmp_path), parallelism_config=config)


def test_a_handler_without_effect(tmp_path):
    """As accelerate does, the Trainer warns of a handler whose size is 1."""
    config = {"cp_handler": {"cp_comm_strategy": "alltoall"}}
    with pytest.warns(HFCompatWarning, match="`cp_handler` is set, but `cp_size` is 1. This handler will be ignored"):
        Trainer(PlainModel(), TrainingArguments(str(tmp_path), use_cpu=True, parallelism_config=config))
