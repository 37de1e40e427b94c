"""Sizes of sequence and context parallelism, and configs of them that are refused."""

import importlib
import re
from typing import Any

import pytest

from hf_compat import TrainingArguments
from hf_compat.arguments.parallelism import read_parallelism, read_sequence_parallelism
from hf_compat.arguments.sequence_parallelism import SequenceParallelism, rotation
from hf_compat.engine.ring_attention import context_parallel_limits
from hf_compat.errors import ArgumentsError, UnsupportedArgumentsError
from tests.scripts.sharded_common import llama
from tests.support import helpers
from tests.support.sequence_parallelism import sequence_arguments

pytest.importorskip("deepspeed")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"sp_size": 2}, SequenceParallelism(2, 1, "sdpa", None), id="a dict"),
        pytest.param(
            {"sp_size": 2, "dp_shard_size": 3, "dp_replicate_size": 2, "sp_backend": "deepspeed"},
            SequenceParallelism(2, 6, "sdpa", None),
            id="groups",
        ),
        pytest.param(
            {
                "sp_size": 4,
                "sp_handler": {
                    "sp_attn_implementation": "flash_attention_2",
                    "sp_seq_length": 8,
                    "sp_seq_length_is_variable": False,
                },
            },
            SequenceParallelism(4, 1, "flash_attention_2", 8),
            id="a handler",
        ),
        pytest.param({"sp_size": 1, "sp_backend": "deepspeed"}, None, id="nothing"),
    ],
)
def test_sizes(given, expected, tmp_path):
    """A dict of keywords says the same as accelerate's object; the sizes are not those of tensor parallelism."""
    args = sequence_arguments(tmp_path, given)
    assert read_sequence_parallelism(args) == expected
    assert read_parallelism(args) is None


def test_accelerates_object(tmp_path):
    """Accelerate's own configuration is read too."""
    accelerate = importlib.import_module("accelerate")
    given = accelerate.ParallelismConfig(sp_size=2, dp_shard_size=2)
    assert read_sequence_parallelism(sequence_arguments(tmp_path, given)) == SequenceParallelism(2, 2, "sdpa", None)


def test_sizes_of_the_launcher(tmp_path, monkeypatch):
    """Where the field says nothing, the variables of ``accelerate launch --use_parallelism_config`` count."""
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SIZE", "2")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "false")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "16")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", "flash_attention_3")
    assert read_sequence_parallelism(sequence_arguments(tmp_path, None)) == SequenceParallelism(
        2, 1, "flash_attention_3", 16
    )


FIXED = {"sp_seq_length_is_variable": False}


@pytest.mark.parametrize(
    ("sizes", "fields", "kind", "text"),
    [
        pytest.param({"sp_size": 2}, {"deepspeed": None}, ArgumentsError, "needs DeepSpeed: set", id="no DeepSpeed"),
        pytest.param(
            {"sp_size": 2},
            {"deepspeed": None, "fsdp": True},
            ArgumentsError,
            "needs DeepSpeed; `fsdp` cannot be combined",
            id="FSDP",
        ),
        pytest.param({"sp_size": 2, "tp_size": 2}, {}, UnsupportedArgumentsError, "tp_size.*sp_size=2", id="tensors"),
        pytest.param({"sp_size": 2, "cp_size": 2}, {}, UnsupportedArgumentsError, "cp_size.*sp_size=2", id="context"),
        pytest.param({"sp_size": 0}, {}, ArgumentsError, "1 or more", id="no rank"),
        pytest.param({"sp_size": 2, "sp_backend": "ring"}, {}, ArgumentsError, "must be 'deepspeed'", id="backend"),
        pytest.param(
            {"sp_size": 2, "sp_handler": {"sp_attn_implementation": "eager"}}, {}, ArgumentsError, "eager", id="eager"
        ),
        pytest.param({"sp_size": 2, "sp_handler": FIXED}, {}, ArgumentsError, "sp_seq_length", id="no length"),
        pytest.param(
            {"sp_size": 2, "sp_handler": {**FIXED, "sp_seq_length": 7}},
            {},
            ArgumentsError,
            "7.*multiple of `sp_size=2`",
            id="odd length",
        ),
        pytest.param(
            {"sp_size": 2}, {"label_smoothing_factor": 0.1}, UnsupportedArgumentsError, "0.1.*chunk", id="smoothing"
        ),
    ],
)
def test_configs_that_cannot_be_carried_out(sizes, fields, kind, text, tmp_path):
    """Each is refused by its name, before there is a Trainer."""
    with pytest.raises(kind, match=text):
        sequence_arguments(tmp_path, sizes, **fields)


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
def test_context_configs_that_cannot_be_carried_out(config, fields: dict[str, Any], kind, text, tmp_path):
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
