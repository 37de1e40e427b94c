"""Sizes of sequence parallelism, and configs of it that are refused."""

import importlib

import pytest

from hf_compat.arguments.parallelism import read_parallelism, read_sequence_parallelism
from hf_compat.arguments.sequence_parallelism import SequenceParallelism
from hf_compat.errors import ArgumentsError, UnsupportedArgumentsError
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
