"""Notes and warnings about arguments with the data that a Trainer is given."""

import re

import pytest

from hf_compat.arguments import TrainingArguments, resolve_semantics
from hf_compat.arguments.checks import doubtful_values, setup_notes, setup_warnings


def notes(semantics, is_stream=False, **fields):
    """Return the notes about the arguments of a run on the CPU."""
    args = TrainingArguments("out", use_cpu=True, semantics=semantics, **fields)
    return list(setup_notes(args, resolve_semantics(semantics), is_stream=is_stream))


@pytest.mark.parametrize(
    ("fields", "phrases"),
    [
        ({"semantics": "5.2"}, []),
        ({"semantics": "5.2", "max_steps": 3}, ["max_steps is given (3), it will override"]),
        ({"semantics": "4.57", "bf16": True}, ["Using cpu_amp half precision backend"]),
        ({"semantics": "5.2", "bf16": True}, []),
        ({"semantics": "4.57", "is_stream": True}, []),
        ({"semantics": "5.2", "is_stream": True}, ["`train_sampling_strategy='random'` is ignored"]),
    ],
    ids=str,
)
def test_notes(fields, phrases):
    """Each release says what it does with fields that another one decides."""
    found = notes(**fields)
    assert len(found) == len(phrases)
    assert all(phrase in note for phrase, note in zip(phrases, found, strict=True))


@pytest.mark.parametrize(("config", "pins", "count"), [(True, True, 0), (True, False, 1), (False, False, 0)])
def test_copies_that_block(config, pins, count):
    """``non_blocking`` without pinned memory is warned of once."""
    args = TrainingArguments("out", use_cpu=True, accelerator_config={"non_blocking": config})
    args.dataloader_pin_memory = pins  # which nothing is on the CPU
    assert len(list(setup_warnings(args))) == count


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"bf16_full_eval": "False"}, "`bf16_full_eval='False'` is a text, which counts as True"),
        ({"load_best_model_at_end": "no", "eval_strategy": "steps"}, "`load_best_model_at_end='no'` is a text"),
        ({"metric_for_best_model": "f1", "greater_is_better": "false"}, "`greater_is_better='false'` is a text"),
        (
            {"gradient_checkpointing": "false"},
            "`activation_checkpointing='false'`, `gradient_checkpointing='false'` is a text, which counts as True",
        ),
        ({"disable_tqdm": "off"}, "`disable_tqdm='off'` is a text"),
        ({"bf16_full_eval": "True"}, None),
        ({}, None),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_values_that_mean_the_opposite(fields, text):
    """Transformers takes a text for True; a field with two names is told of once."""
    found = list(doubtful_values(TrainingArguments("out", use_cpu=True, **fields)))
    assert len(found) == (text is not None)
    assert text is None or re.match(text, found[0])
