"""``HfArgumentParser`` beside transformers' own: the same dataclasses and command lines through both."""

# ruff: noqa: RUF009, RUF036  (fields made by a function, and odd orders of unions, are what is tested)

import argparse
import dataclasses
import json
import sys
import typing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest
from packaging.version import Version

from hf_compat import HfArg, HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments
from hf_compat.arguments.parser import read_fields
from hf_compat.errors import ParserError, UnresolvedTypesError

transformers = pytest.importorskip("transformers")

PARSERS = (transformers.HfArgumentParser, HfArgumentParser)
POSTPONED = """
from __future__ import annotations
from dataclasses import dataclass, field
from hf_compat import TrainingArguments

@dataclass
class Postponed:
    '''Annotations that are text until they are asked for.'''
    numbers: list[int] | None = None
    names: list[str] = field(default_factory=lambda: ["a"])
    rate: float | None = None
    cached: bool = True

@dataclass
class ScriptArguments(TrainingArguments):
    '''A script's own arguments.'''
    temperature: float | None = field(default=2.0, metadata={"help": "Of the softmax."})
    teachers: list[str] | None = None
"""


pytestmark = pytest.mark.usefixtures("restored_environment", "without_warnings")


@pytest.fixture
def postponed(tmp_path, monkeypatch):
    """A script's module with postponed annotations."""
    (tmp_path / "postponed_script.py").write_text(POSTPONED)
    monkeypatch.syspath_prepend(tmp_path)
    import postponed_script

    yield postponed_script
    del sys.modules["postponed_script"]


class Color(Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"
    SEVEN = 7


@dataclass
class Model:
    """What scripts declare."""

    name_or_path: str
    depth: int
    width: int = 3
    rate: float = 0.5
    note: str | None = None
    ratio: float | None = field(default=None, metadata={"help": "A share."})
    steps: None | int = 4


@dataclass
class Switches:
    """Every way to declare a bool."""

    bare: bool
    off: bool = False
    on_by_default: bool = field(default=True, metadata={"help": "On."})
    open_: bool | None = None
    open_on: bool | None = True
    open_off: typing.Optional[bool] = False  # noqa: UP045  (the spelling under test)


@dataclass
class Choices:
    """Every way to declare a choice."""

    color: Color
    word: Literal["one", "two", 3] = "one"
    other: Color = Color.BLUE
    maybe: Literal["a", "b"] | None = None
    text: Color = "red"
    small: int = field(default=1, metadata={"choices": [1, 2, 3]})


@dataclass
class Lists:
    """Every way to declare several values."""

    numbers: list[int]
    words: list[str] = field(default_factory=lambda: ["a", "b"])
    rates: typing.List[float] | None = None  # noqa: UP006  (the spelling under test)
    first: list[str] | str | None = None


@dataclass
class Unions:
    """Types of which only one can be read."""

    number_or_text: int | str = 3
    text_or_number: str | int = "x"
    text_or_dict: dict | str | None = None
    none_first: None | str | list[str] = None
    path: str | Path | None = None


@dataclass
class Aliases:
    """Further names, and help with braces."""

    label: str = HfArg(aliases="-l", metadata={"metavar": "NAME"})
    batch_size: int = HfArg(default=8, aliases=["--bs", "-b"], help="Samples {per} batch.")
    tags: list[str] = HfArg(default_factory=list, aliases="--tag")


@dataclass
class Grouped:
    """A group of its own in ``--help``."""

    _argument_group_name = "grouped things"
    inside: int = 1
    hidden: int = field(default=5, init=False)


LINES = {
    "required": (Model, "--name_or_path gpt2 --depth 2"),
    "dashes": (Model, "--name-or-path gpt2 --depth 2 --rate 1e-3 --note x"),
    "equals": (Model, "--name_or_path=gpt2 --depth=2 --ratio=0.25 --steps=9"),
    "abbreviated": (Model, "--name gpt2 --dep 2"),
    "required one missing": (Model, "--name_or_path gpt2"),
    "no int": (Model, "--name_or_path gpt2 --depth two"),
    "left over": (Model, "--name_or_path gpt2 --depth 2 --heigth 3"),
    "a word left over": (Model, "--name_or_path gpt2 --depth 2 stray"),
    "no switch": (Switches, ""),
    "switches on": (Switches, "--off --on_by_default --bare --open_on --open_off --open_ true"),
    "switches by word": (Switches, "--off yes --on_by_default f --bare 1 --open_ N --open_on no --open_off T"),
    "switches negated": (Switches, "--no_on_by_default --no-open_on"),
    "switches negated by dashes": (Switches, "--no-on-by-default --no-open-on"),
    "a switch after its negation": (Switches, "--no_on_by_default --on_by_default"),
    "no bool": (Switches, "--off maybe"),
    "an open switch without word": (Switches, "--open_"),
    "choices": (Choices, "--color red"),
    "other choices": (Choices, "--color 7 --word 3 --other red --maybe b --text blue --small 2"),
    "no choice": (Choices, "--color green"),
    "no number's choice": (Choices, "--color red --small 4"),
    "choice missing": (Choices, ""),
    "lists": (Lists, "--numbers 1 2 3 --words x --rates 1 0.5 --first a b"),
    "list of one": (Lists, "--numbers 1"),
    "list missing": (Lists, ""),
    "empty list": (Lists, "--numbers"),
    "unions": (Unions, ""),
    "unions given": (Unions, '--number_or_text 4 --text_or_number 5 --text_or_dict {"a":1} --none_first x --path a/b'),
    "no number of a union": (Unions, "--number_or_text four"),
    "aliases": (Aliases, "--bs 4 -l cat --tag a b"),
    "short": (Aliases, "-b 4 --label cat"),
    "two dataclasses": ((Grouped, Aliases), "--inside 4 --label cat -b 2"),
    "a list of dataclasses": ([Aliases, Grouped], "--label cat"),
    "what init does not take": (Grouped, "--hidden 4"),
    "help": (Model, "--help"),
    "none": (None, ""),
}


def attempt(parser_class, kinds, words, **how):
    """Return what parsing gives, or which error it ends in."""
    try:
        found = parser_class(kinds, prog="script").parse_args_into_dataclasses(words, look_for_args_file=False, **how)
    except SystemExit as error:
        return "exit", error.code
    except ValueError:
        return "ValueError"
    return found


@pytest.mark.parametrize(("kinds", "line"), LINES.values(), ids=LINES)
def test_command_lines(kinds, line, capsys):
    """A command line gives the same instances, types included, or ends in the same error."""
    theirs, ours = (attempt(parser, kinds, line.split()) for parser in PARSERS)
    assert repr(ours) == repr(theirs)
    theirs, ours = (attempt(parser, kinds, line.split(), return_remaining_strings=True) for parser in PARSERS)
    assert repr(ours) == repr(theirs)


def surface(parser):
    """Return every option with all that ``--help`` and parsing take from it."""
    return {
        tuple(action.option_strings): (
            action.dest,
            action.nargs,
            action.const,
            action.required,
            action.metavar,
            tuple(action.choices) if action.choices else None,
            repr(action.default),
            type(action).__name__,
            action.help,
        )
        for action in parser._actions
    }


KINDS = {kind.__name__: kind for kind in (Model, Switches, Choices, Lists, Unions, Aliases, Grouped)}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_options_and_help(kind):
    """The options are the same in every respect, and ``--help`` prints the same text."""
    theirs, ours = (parser(kind, prog="script") for parser in PARSERS)
    assert surface(ours) == surface(theirs)
    assert ours.format_help() == theirs.format_help()


ARGUMENT_CLASSES = {
    "theirs": transformers.TrainingArguments,
    "theirs, seq2seq": transformers.Seq2SeqTrainingArguments,
    "ours": TrainingArguments,
    "ours, seq2seq": Seq2SeqTrainingArguments,
}
NEEDS_A_VALUE_BEFORE_5 = {"--fsdp"}
"""Options that ours lets stand alone, as transformers does since 5.0."""


@pytest.mark.parametrize("kind", ARGUMENT_CLASSES.values(), ids=ARGUMENT_CLASSES)
def test_training_arguments_of_either_library(kind):
    """Each parser makes the same options of the training arguments of each library."""
    theirs, ours = (surface(parser(kind)) for parser in PARSERS)
    assert ours == theirs


@pytest.mark.parametrize("name", ["TrainingArguments", "Seq2SeqTrainingArguments"])
def test_command_line_of_the_installed_release(name):
    """Ours has every option that transformers' has, taking as many values of the same choices."""
    theirs = surface(HfArgumentParser(getattr(transformers, name)))
    ours = {option: row for names, row in surface(HfArgumentParser(globals()[name])).items() for option in names}
    shapes = {option: row[:3] for names, row in theirs.items() for option in names}
    assert shapes.keys() <= ours.keys()
    other = {option for option, shape in shapes.items() if ours[option][:3] != shape}
    assert other <= (NEEDS_A_VALUE_BEFORE_5 if transformers.__version__ < "5" else set())
    words = {
        option: {str(getattr(choice, "value", choice)) for choice in row[5]}
        for names, row in theirs.items()
        for option in names
        if row[5]
    }
    missing = {option: sorted(known - set(map(str, ours[option][5] or known))) for option, known in words.items()}
    assert {option: found for option, found in missing.items() if found} == {}


LINE = (
    "--output_dir out --use_cpu --eval_strategy steps --eval-steps 0.5 --report_to none --no_dataloader_pin_memory "
    "--learning_rate 1e-3 --include_for_metrics inputs loss --optim sgd "
    "--label_names a b --fp16_full_eval False --disable_tqdm True --log_level info --gradient_checkpointing --fsdp= "
)


@pytest.mark.parametrize("kind", ARGUMENT_CLASSES.values(), ids=ARGUMENT_CLASSES)
def test_training_arguments_are_made_of_a_line(kind):
    """Both parsers make the same training arguments of a line, ours and transformers' alike."""
    (theirs,), (ours,) = (attempt(parser, kind, LINE.split()) for parser in PARSERS)
    assert type(ours) is kind
    left, right = theirs.to_dict(), ours.to_dict()
    for found in (left, right):
        found.pop("logging_dir", None)  # it holds the second of construction
    assert left == right
    assert right["learning_rate"] == 1e-3


@pytest.mark.parametrize("kind", ARGUMENT_CLASSES.values(), ids=ARGUMENT_CLASSES)
def test_settings_are_read_as_json(kind):
    """Our parser reads a field of settings as JSON, in the arguments of both libraries."""
    line = ["--output_dir", "out", "--lr_scheduler_kwargs", '{"num_cycles": 2}']
    (args,) = attempt(HfArgumentParser, kind, line)
    assert args.lr_scheduler_kwargs == {"num_cycles": 2}


def test_a_scripts_own_subclass(postponed):
    """A script's dataclass on top of ours parses, with postponed annotations and a second dataclass of defaults."""
    line = ["--output_dir", "out", "--temperature", "0.5", "--teachers", "a", "b", "--numbers", "1", "2", "--no_cached"]
    for parser in PARSERS:
        args, other = attempt(parser, (postponed.ScriptArguments, postponed.Postponed), line)
        assert (args.output_dir, args.temperature, args.teachers) == ("out", 0.5, ["a", "b"])
        assert other == postponed.Postponed(numbers=[1, 2], cached=False)


@dataclass
class OlderNames:
    """What scripts declare that 5.24 no longer knows."""

    group_by_length: bool = True
    logging_dir: str = "here"
    cuda: bool = True
    warmup: float = field(default=0.5, metadata={"aliases": "--warmup-ratio"})


@dataclass
class NewerNames:
    """What scripts declare that 4.57 does not know yet, or no release."""

    use_cache: bool = True
    train_sampling_strategy: str = "mine"
    dataloader_in_order: bool = False
    semantics: str = "of words"


OTHERS = {
    "dropped": (OlderNames, "--no_group_by_length --logging_dir there --no_cuda --warmup-ratio 0.1", "5.15"),
    "not there yet": (NewerNames, "--no-use-cache --train_sampling_strategy yours --dataloader_in_order", "4.57"),
}


def gives_way_here(release):
    """Return whether the installed release lacks the fields: from ``release`` on, or for 4.57 in 4.57."""
    installed = Version(transformers.__version__)
    return installed >= Version(release) if release != "4.57" else installed < Version("5.0")


@pytest.mark.parametrize("order", [1, -1], ids=["other first", "ours first"])
@pytest.mark.parametrize("parser", PARSERS, ids=["transformers' parser", "our parser"])
@pytest.mark.parametrize(
    ("other", "line"),
    [pytest.param(*row[:2], id=name) for name, row in OTHERS.items() if gives_way_here(row[2])],
)
def test_a_field_gives_way(parser, order, other, line):
    """A dataclass may use names that the release lacks, whichever comes first; as beside transformers' arguments."""
    shared = line.split()

    def parsed(kind):
        kinds = (other, kind)[::order]
        of_line = attempt(parser, kinds, ["--output_dir", "out", *shared])[::order]
        made = parser(kinds).parse_dict({"output_dir": "out", **dataclasses.asdict(other())})[::order]
        return [of_line[0], made[0]], [of_line[1], made[1]]

    (theirs, their_args), (ours, our_args) = parsed(transformers.TrainingArguments), parsed(TrainingArguments)
    assert ours == theirs
    assert ours[0] != other()
    plain = TrainingArguments("out")
    for args in our_args:
        assert type(args) is TrainingArguments
        differing = {
            item.name for item in dataclasses.fields(args) if getattr(args, item.name) != getattr(plain, item.name)
        }
        assert differing <= {"logging_dir"}  # under 4.57 it holds the second of construction
    assert [args.output_dir for args in their_args] == [args.output_dir for args in our_args]


@pytest.mark.parametrize("order", [1, -1], ids=["other first", "ours first"])
@pytest.mark.parametrize("parser", PARSERS, ids=["transformers' parser", "our parser"])
def test_a_field_stays_where_nobody_takes_its_name(parser, order):
    """Beside other dataclasses, and in a subclass, older and newer names still work on a command line."""

    @dataclass
    class ScriptArguments(TrainingArguments):
        temperature: float = 1.0

    line = (
        "--output_dir out --evaluation_strategy epoch --warmup_ratio 0.1 --semantics 5.23 --use_cache --name_or_path a"
    )
    for kind in (TrainingArguments, ScriptArguments):
        args, _ = attempt(parser, (kind, Model)[::order], [*line.split(), "--depth", "1"])[::order]
        assert (args.eval_strategy, args.warmup_ratio, args.use_cache) == ("epoch", 0.1, True)


@pytest.mark.parametrize("parser", PARSERS, ids=["transformers' parser", "our parser"])
def test_a_field_of_the_release_does_not_give_way(parser):
    """Two dataclasses with a field that the release has are an error, as beside transformers' own arguments."""

    @dataclass
    class Other:
        learning_rate: float = 1.0

    for kind in ARGUMENT_CLASSES.values():
        with pytest.raises(argparse.ArgumentError, match="conflicting option string"):
            parser((Other, kind))


def test_dataclasses_are_left_as_they_are():
    """Parsing changes nothing in the dataclass that it reads."""
    before = {item.name: item.type for item in dataclasses.fields(Unions)}
    HfArgumentParser(Unions)
    assert {item.name: item.type for item in dataclasses.fields(Unions)} == before


def test_a_dict_is_a_json_object(capsys):
    """A field that is a dict takes a JSON object, which transformers' parser cannot read at all."""

    @dataclass
    class Config:
        kernels: dict[str, bool] | None = None
        sizes: dict = field(default_factory=dict)

    line = ["--kernels", '{"rope": false}', "--sizes", '{"a": 1}']
    assert attempt(HfArgumentParser, Config, line) == (Config({"rope": False}, {"a": 1}),)
    assert attempt(transformers.HfArgumentParser, Config, line) == ("exit", 2)
    assert attempt(HfArgumentParser, Config, []) == (Config(None, {}),)
    for wrong in ("{a}", "[1]"):
        assert attempt(HfArgumentParser, Config, ["--sizes", wrong]) == ("exit", 2)
    assert "is not a JSON object" in capsys.readouterr().err


def test_a_text_or_a_list():
    """A field that is a text, a list or None takes several values; transformers' parser breaks off at its type."""

    @dataclass
    class Either:
        modules: str | list[str] | None = None

    assert attempt(HfArgumentParser, Either, ["--modules", "a", "b"]) == (Either(["a", "b"]),)
    assert attempt(HfArgumentParser, Either, []) == (Either(None),)


def test_types_that_cannot_be_read():
    """A union of several types and a name that cannot be found are refused by both, when the parser is made."""

    @dataclass
    class Both:
        size: int | float = 1

    @dataclass
    class Lost:
        size: "NoSuchType" = 1  # noqa: F821  (the mistake under test)

    for kind, known, error in ((Both, ValueError, ParserError), (Lost, RuntimeError, UnresolvedTypesError)):
        with pytest.raises(known):
            transformers.HfArgumentParser(kind)
        with pytest.raises(error, match="size" if kind is Both else "Lost.*NoSuchType") as caught:
            HfArgumentParser(kind)
        assert isinstance(caught.value, known)


def test_options_of_the_scripts_own():
    """Options added later come back in a namespace behind the instances."""
    found = []
    for parser_class in PARSERS:
        parser = parser_class(Grouped)
        parser.add_argument("--config_file", default="x")
        found.append(parser.parse_args_into_dataclasses(["--inside", "2"], look_for_args_file=False))
    assert repr(found[0]) == repr(found[1]) == "(Grouped(inside=2, hidden=5), Namespace(config_file='x'))"


def test_files_of_arguments(tmp_path, monkeypatch):
    """Words come from the script's ``.args`` file, from a named file, from those of a flag; later ones win."""
    script, named, flagged = tmp_path / "train.py", tmp_path / "named.txt", tmp_path / "flagged.txt"
    script.with_suffix(".args").write_text("--batch_size 1\n--label script")
    named.write_text("--batch_size 2 --label named")
    flagged.write_text("--batch_size 3")
    monkeypatch.setattr(sys, "argv", [str(script), "--label", "line", "--config", str(flagged)])
    ways = [
        ({"args": []}, (1, "script")),
        ({"args": ["--label", "x"], "args_filename": named}, (2, "x")),
        ({"args": [], "args_filename": tmp_path / "none", "return_remaining_strings": True}, "exit"),
        ({"args_file_flag": "--config"}, (3, "line")),
        ({"args": ["--config", str(named), "--config", str(flagged)], "args_file_flag": "--config"}, (3, "named")),
        ({"args": ["--label", "y"], "look_for_args_file": False}, (8, "y")),
    ]
    for how, expected in ways:
        for parser in PARSERS:
            try:
                found = parser(Aliases).parse_args_into_dataclasses(**how)
            except SystemExit:
                assert expected == "exit"
            else:
                assert (found[0].batch_size, found[0].label) == expected


VALUES = {"batch_size": 2, "label": "x", "inside": 7}


@pytest.mark.parametrize("extra", [{}, {"batch_sise": 3}], ids=["fields", "extra keys"])
@pytest.mark.parametrize("way", ["parse_dict", "parse_json_file", "parse_yaml_file"])
def test_dicts_and_files(way, extra, tmp_path):
    """A dict, a JSON and a YAML file fill the dataclasses; other keys are refused unless allowed."""
    given = {**VALUES, **extra}
    if way != "parse_dict":
        path = tmp_path / "args"
        path.write_text(json.dumps(given))  # JSON is YAML
        given = path
    for parser in PARSERS:
        parse = getattr(parser([Aliases, Grouped]), way)
        assert parse(given, allow_extra_keys=True) == (Aliases("x", 2, []), Grouped(7))
        if not extra:
            assert parse(given) == (Aliases("x", 2, []), Grouped(7))
        else:
            with pytest.raises(ValueError, match="batch_sise"):
                parse(given)


def test_errors_name_the_nearest(tmp_path):
    """What no option or field takes is told with the nearest name; a file without fields is refused."""
    with pytest.raises(ParserError, match="`batch_size` for `batch_sise`"):
        HfArgumentParser(Aliases).parse_dict({"batch_sise": 1, "label": "x"})
    with pytest.raises(ParserError, match="`--batch_size` for `--batch_sise`"):
        HfArgumentParser(Aliases).parse_args_into_dataclasses(["--label", "x", "--batch_sise", "1"])
    path = tmp_path / "list.yaml"
    path.write_text("- a\n")
    with pytest.raises(ParserError, match=r"list.yaml` contains a list"):
        HfArgumentParser(Aliases).parse_yaml_file(path)
    with pytest.raises(ParserError, match=r"ending in \.json"):
        read_fields(tmp_path / "args.toml")
    with pytest.raises(ParserError, match="cannot be read"):
        read_fields(tmp_path / "none.json")


def test_field_helper():
    """``HfArg`` declares what ``dataclasses.field`` with metadata declares, and leaves the metadata given alone."""
    metadata = {"metavar": "N"}
    made = HfArg(aliases="-n", help="A number.", default=3, metadata=metadata, repr=False)
    theirs = transformers.hf_argparser.HfArg(aliases="-n", help="A number.", default=3, metadata=metadata.copy())
    assert dict(made.metadata) == dict(theirs.metadata)
    assert (made.default, made.repr, metadata) == (3, False, {"metavar": "N"})
