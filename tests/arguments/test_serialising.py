"""What of the arguments is shown and written: the fields of the release that is followed, and what is set besides."""

import dataclasses
import json
import pickle
import re
from dataclasses import dataclass

import pytest
import torch

from hf_compat.arguments import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments
from hf_compat.arguments.fields import declared

transformers = pytest.importorskip("transformers")

OWN_FIELDS = {name for name, item in declared(TrainingArguments).items() if item.is_ours}
OTHER_RELEASE = "4.57" if transformers.__version__ >= "5" else "5.23"
BOTH = {
    "arguments": (transformers.TrainingArguments, TrainingArguments),
    "for generation": (transformers.Seq2SeqTrainingArguments, Seq2SeqTrainingArguments),
}


def subclass(base):
    """Return a script's dataclass on top of ``base``."""

    @dataclass
    class ScriptArguments(base):
        temperature: float = 1.0
        tp_size: int = 3

    return ScriptArguments


BOTH["of a script"] = tuple(map(subclass, BOTH["arguments"]))


def lines(text):
    """Return the name of each line of ``str(args)``."""
    return re.findall(r"^(\w+)=", text, flags=re.MULTILINE)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("theirs", "ours"), BOTH.values(), ids=BOTH)
def test_upstreams_fields_are_shown(theirs, ours):
    """Dicts, JSON, text and ``repr`` have the fields that the installed release's have, and ours."""
    left, right = theirs("out"), ours("out")
    for method in ("to_dict", "to_sanitized_dict"):
        assert getattr(right, method)().keys() == getattr(left, method)().keys() | OWN_FIELDS
    assert json.loads(right.to_json_string()).keys() == json.loads(left.to_json_string()).keys() | OWN_FIELDS
    assert lines(str(right)) == sorted({*lines(str(left)), *OWN_FIELDS})
    named = [set(re.findall(r"[(,\n] ?(\w+)=", repr(args))) for args in (left, right)]
    assert named[1] >= named[0] - {"hub_token", "push_to_hub_token"}
    assert named[1] <= named[0] | OWN_FIELDS
    assert repr(right).count("\n") == repr(left).count("\n") + (len(OWN_FIELDS) if "\n" in repr(left) else 0)


def inheriting(base, case):
    """Return a script's class of ``case`` on top of ``base``."""

    @dataclass
    class Plain(base):
        temperature: float = 1.0

    @dataclass(repr=False)
    class Silent(base):
        temperature: float = 1.0

    class Narrowed(Plain):
        pass

    @dataclass
    class Named(base):
        def __repr__(self):
            return "the script's own"

    class OfNamed(Named):
        pass

    @dataclass
    class AnewOfNamed(Named):
        temperature: float = 1.0

    return {kind.__name__: kind for kind in (Plain, Silent, Narrowed, Named, OfNamed, AnewOfNamed)}[case]


@pytest.mark.parametrize("case", ["Plain", "Silent", "Narrowed", "Named", "OfNamed", "AnewOfNamed"])
def test_a_subclass_inherits_its_repr(case):
    """A class whose ``dataclass`` makes no ``__repr__`` has its base's, as upstream."""
    theirs, ours = (repr(inheriting(base, case)("out")) for base in BOTH["arguments"])
    assert ours.count("\n") == theirs.count("\n") + (len(OWN_FIELDS) if "\n" in theirs else 0)
    assert ours.partition("(")[0] == theirs.partition("(")[0]
    assert ("temperature=1.0" in ours) == ("temperature=1.0" in theirs)


def test_arguments_of_an_unknown_release_are_shown(monkeypatch):
    """An unknown release is an error that may show its arguments: text and dict hold the installed one's fields."""
    args = TrainingArguments("out")
    wanted = args.to_dict().keys(), lines(str(args))
    monkeypatch.setenv("HF_COMPAT_SEMANTICS", "bogus")
    assert (args.to_dict().keys(), lines(repr(args))) == wanted


SET = {
    "evaluation_strategy": "epoch",
    "past_index": 2,
    "split_batches": True,
    "group_by_length": True,
    "warmup_ratio": 0.25,
    "fp16_backend": "cuda_amp",
    "train_sampling_strategy": "sequential",
    "activation_checkpointing": True,
    "use_cache": True,
    "logging_dir": "logs",
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("release", [None, OTHER_RELEASE])
@pytest.mark.parametrize("name", SET)
def test_what_is_set_is_shown_and_comes_back(name, release, tmp_path):
    """A field of another release is shown once it is set, and all ways of writing make the same arguments again."""
    args = TrainingArguments("out", semantics=release, **{name: SET[name]})
    found = args.to_dict()
    assert name in found or found["gradient_checkpointing"] is True
    assert name in lines(str(args)) or name == "activation_checkpointing"
    path = tmp_path / "args.json"
    path.write_text(args.to_json_string())
    (parsed,) = HfArgumentParser(TrainingArguments).parse_dict(found)
    (read,) = HfArgumentParser(TrainingArguments).parse_json_file(path)
    torch.save(args, tmp_path / "training_args.bin")
    loaded = torch.load(tmp_path / "training_args.bin", weights_only=False)
    hidden = {"hub_token": None, "push_to_hub_token": None}  # masked, as upstream
    for again in (TrainingArguments(**found), parsed, read, loaded, pickle.loads(pickle.dumps(args))):
        assert dataclasses.replace(again, **hidden).to_dict() == dataclasses.replace(args, **hidden).to_dict()
        assert type(again) is TrainingArguments


def test_the_release_that_is_followed_decides():
    """With the semantics of another release its fields are shown."""
    older, newer = (TrainingArguments("out", semantics=release).to_dict() for release in ("4.57", "5.23"))
    assert {"warmup_ratio", "group_by_length", "jit_mode_eval"} <= older.keys() - newer.keys()
    assert {"use_cache", "train_sampling_strategy"} <= newer.keys() - older.keys()


def test_tokens_are_never_shown():
    """Neither text nor dict holds a token, whatever the class and the name it is given by."""
    for kind in (TrainingArguments, Seq2SeqTrainingArguments):
        args = kind("out", hub_token="secret")
        assert "secret" not in f"{args} {args!r} {args.to_dict()} {args.to_json_string()}"
