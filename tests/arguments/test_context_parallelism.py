"""``cp_size`` of ``parallelism_config``: its settings, what it cannot be combined with, and models it is not for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hf_compat import TrainingArguments
from hf_compat.arguments.sequence_parallelism import rotation
from hf_compat.engine.ring_attention import context_parallel_limits
from hf_compat.errors import ArgumentsError, UnsupportedArgumentsError
from tests.scripts.sharded_common import llama
from tests.support import helpers


def test_how_keys_and_values_are_exchanged(monkeypatch):
    """The handler says it, as accelerate's object or a dict, else the variable of ``accelerate launch``."""
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    handlers = pytest.importorskip("accelerate.utils")
    assert rotation({"cp_size": 2}) == "allgather"
    assert rotation({"cp_size": 2, "cp_handler": {"cp_comm_strategy": "alltoall"}}) == "alltoall"
    handler = handlers.TorchContextParallelConfig(cp_comm_strategy="alltoall")
    assert rotation(parallelism.ParallelismConfig(cp_size=2, cp_handler=handler)) == "alltoall"
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "alltoall")
    assert rotation(None) == "alltoall"


@pytest.mark.parametrize(
    ("config", "fields", "kind", "text"),
    [
        pytest.param({}, {"fsdp": None, "fsdp_config": None}, ArgumentsError, "needs FSDP", id="no FSDP"),
        pytest.param(
            {"dp_replicate_size": 2},
            {},
            UnsupportedArgumentsError,
            "replicas of FSDP need a `dp_shard_size` above 1",
            id="replicas of no shards",
        ),
        pytest.param({"cp_backend": "ring"}, {}, ArgumentsError, "cp_backend.*must be 'torch'", id="backend"),
        pytest.param(
            {"cp_handler": {"cp_comm_strategy": "ring"}},
            {},
            ArgumentsError,
            "'cp_comm_strategy': 'ring'.*'allgather' or 'alltoall'",
            id="rotation",
        ),
    ],
)
def test_configs_that_cannot_be_carried_out(config, fields: dict[str, Any], kind, text, tmp_path):
    """Each is refused by its name, before there is a Trainer."""
    given = {"fsdp": True, "fsdp_config": {"version": 2}, **fields}
    with pytest.raises(kind, match=text):
        TrainingArguments(str(tmp_path), parallelism_config={"cp_size": 2, **config}, **given)


def sliding() -> Any:
    """Return a Llama whose tokens attend to the last four alone."""
    model = llama()
    model.config.sliding_window = 4
    return model


def mixed() -> Any:
    """Return a Llama one of whose layers is of another type."""
    model = llama()
    model.config.layer_types = ["full_attention", "chunked_attention"]
    return model


@pytest.mark.parametrize(
    ("build", "texts"),
    [
        pytest.param(llama, [], id="a Llama"),
        pytest.param(helpers.PlainModel, [], id="no model of transformers"),
        pytest.param(lambda: llama(attn_implementation="eager"), ["'eager'.*only with SDPA attention"], id="eager"),
        pytest.param(sliding, ["layers of type sliding_attention.*`cp_size=2`"], id="sliding windows"),
        pytest.param(mixed, ["layers of type chunked_attention"], id="layers of several types"),
    ],
)
def test_models(build, texts):
    """Attention has to be torch's own and over all tokens, as accelerate requires."""
    found = [*context_parallel_limits(2, build())]
    assert len(found) == len(texts)
    for message, text in zip(found, texts, strict=True):
        assert re.search(text, message), message


def test_replicas_of_no_shards_under_accelerate():
    """Neither does accelerate have replicas of sequences, or of matrices, that no shards are of."""
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    for size in ("cp_size", "tp_size"):
        with pytest.raises(ValueError, match="cannot be used with pure data parallelism"):
            parallelism.ParallelismConfig(dp_replicate_size=2, **{size: 2})
