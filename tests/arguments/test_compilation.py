"""Keywords of ``torch.compile``."""

import pytest

from hf_compat import TrainingArguments
from hf_compat.arguments.derived import compile_keywords


@pytest.mark.parametrize(
    ("fields", "keywords"),
    [
        ({}, None),
        ({"torch_compile": True}, {"backend": "inductor", "mode": None}),
        ({"torch_compile_mode": "reduce-overhead"}, {"backend": "inductor", "mode": "reduce-overhead"}),
        ({"torch_compile_backend": "eager"}, {"backend": "eager", "mode": None}),
    ],
)
def test_models_are_compiled_as_the_fields_say(fields, keywords):
    """Each of them has models compiled, by inductor unless it names another backend."""
    assert compile_keywords(TrainingArguments("out", use_cpu=True, **fields)) == keywords


def test_a_run_that_is_compiled_from_now_on():
    """The fields are read when asked: no backend may have been chosen for them yet."""
    args = TrainingArguments("out", use_cpu=True)
    args.torch_compile = True
    assert compile_keywords(args) == {"backend": "inductor", "mode": None}
