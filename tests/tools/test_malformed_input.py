"""No input makes a command of ``hf-compat`` end in a traceback: it is told what is wrong, and nothing is written."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch

from hf_compat import cli
from tests.support import helpers
from tests.support.checkpoints import small_checkpoint
from tests.tools.test_consolidate import written

LONG = "x" * 4000
HUGE = 10**400
DEEP = "[" * 100_000
JUNK = bytes(range(256)) * 4

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Return a folder with one valid input of each kind."""
    folder = tmp_path_factory.mktemp("originals")
    torch.manual_seed(0)
    model = helpers.gpt2()
    model.save_pretrained(folder / "model")
    written(folder / "sharded", model.state_dict())
    shutil.copy(folder / "model" / "config.json", folder / "sharded")
    small_checkpoint(folder / "run" / "checkpoint-3")
    logs = [{"step": 1, "loss": 2.0}, {"step": 3, "loss": 1.0, "eval_loss": 1.5}]
    state = {"global_step": 3, "epoch": 1.0, "best_metric": 1.5, "best_global_step": 3, "log_history": logs}
    (folder / "run" / "checkpoint-3" / "trainer_state.json").write_text(json.dumps(state))
    (folder / "fields.json").write_text('{"output_dir": "out"}')
    (folder / "script.py").write_text("from transformers import Trainer\n")
    checkpoint = {"pytorch-lightning_version": "2.5.0", "epoch": 0, "global_step": 1}
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({**checkpoint, "state_dict": weights}, folder / "run.ckpt")
    return folder


@pytest.fixture
def place(originals, tmp_path, monkeypatch):
    """Enter a copy of the inputs."""
    shutil.copytree(originals, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def end_of(words, capsys, folder):
    """Return the status of a command and what it has printed to both streams; fail if it has written a file."""
    before = sorted(folder.rglob("*"))
    try:
        status = cli.main([*map(str, words)])
    except SystemExit as ending:
        status = ending.code
    printed = capsys.readouterr()
    if status == 2:
        assert sorted(folder.rglob("*")) == before
        assert "Traceback" not in printed.err
        assert all(len(line) < 1100 for line in printed.err.splitlines())
    return status, printed


def become(file, content):
    """Replace ``file``: by bytes, a text, a folder, a link to itself, or nothing; of JSON some entries by others."""
    text = json.dumps(json.loads(file.read_text()) | content) if isinstance(content, dict) else content
    if file.exists():
        file.unlink()
    if text is LOOP:
        file.symlink_to(file)
    elif text is FOLDER:
        file.mkdir()
    elif text is not MISSING:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())


LOOP, FOLDER, MISSING = object(), object(), object()
BROKEN = {
    "empty": b"",
    "junk": JUNK,
    "a folder": FOLDER,
    "a link to itself": LOOP,
    "missing": MISSING,
    "nested": DEEP,
    "a list": "[1]",
    "null": "null",
    "cut": '{"a": [1, ',
}
"""What may be in the place of any file of JSON."""
INPUTS = {
    "explain": ("fields.json", ["explain", "fields.json"]),
    "explain a script": ("fields.json", ["explain", "script.py", "fields.json"]),
    "plot": ("run/checkpoint-3/trainer_state.json", ["plot", "run", "--output", "new.svg"]),
    "convert with a model": ("model/config.json", ["convert", "run.ckpt", "new", "--model", "model"]),
    "convert with names": ("fields.json", ["convert", "run.ckpt", "new", "--parameters", "fields.json"]),
    "convert with adapters": ("fields.json", ["convert", "run.ckpt", "new", "--adapter", "fields.json"]),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("command", INPUTS)
def test_a_file_of_json_that_is_none(command, content, place, capsys):
    """Whatever is in the place of a file of JSON, one sentence says so."""
    if (command, content) == ("convert with names", "[1]"):
        return  # a list, of which nothing is needed where there is no optimizer
    name, words = INPUTS[command]
    become(place / name, content)
    status, printed = end_of(words, capsys, place)
    assert status == 2, printed
    assert len(printed.err.splitlines()) <= 3


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("f.yaml", "a: b: c", "mapping values are not allowed here"),
        ("f.yml", "hello: [world", "cannot be read"),
        ("f.yaml", "!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("f.yaml", "a: &a [*a]\nb: {*a : 1}", "unhashable"),
        ("f.yaml", DEEP, "cannot be read"),
        ("f.yaml", "1: 2", "the name 1, which is no text"),
        ("f.yaml", "\0", "cannot be read"),
        ("f.txt", "a: 1", "unknown suffix"),
    ],
)
def test_a_file_of_fields_that_is_none(name, text, told, place, capsys):
    """Bad YAML is refused with what is wrong, and where."""
    (place / name).write_text(text)
    status, printed = end_of(["explain", name], capsys, place)
    assert status == 2
    assert told in printed.err


def test_a_field_in_place_of_a_file(place, capsys):
    """Who asks about a field by its name is told that a file is expected."""
    status, printed = end_of(["explain", "learning_rate"], capsys, place)
    assert status == 2
    assert "`learning_rate` is no file: pass a file ending in .json" in printed.err


DEEP = '{"a":' * 900 + "1" + "}" * 900


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("fields.yaml", "seed: 1\nlr_scheduler_kwargs: &a\n  b: *a\n", id="a dict that contains itself"),
        pytest.param("fields.yaml", "seed: 1\nlr_scheduler_kwargs: &a [1, *a, *a]\n", id="a list that contains itself"),
        pytest.param("fields.json", f'{{"seed": 1, "lr_scheduler_kwargs": {DEEP}}}', id="nested too deep"),
    ],
)
def test_values_without_an_end(name, content, place, capsys):
    """A value that contains itself, or nearly so, is an error that names its field."""
    become(place / name, content)
    status, printed = end_of(["explain", name], capsys, place)
    assert status == 2
    assert f"`{name}`: `lr_scheduler_kwargs` contains itself, or is nested more than 100 levels deep" in printed.err


def test_a_value_that_is_shared(place, capsys):
    """A value that is in others several times is none of these."""
    levels = "".join(f"l{i}: &l{i} [*l{i - 1}, *l{i - 1}]\n" for i in range(1, 5))
    (place / "fields.yaml").write_text(f"seed: 1\nl0: &l0 [1]\n{levels}")
    status, printed = end_of(["explain", "fields.yaml"], capsys, place)
    assert (status, printed.err) == (0, "")


def test_an_option_without_an_end(place, capsys):
    """JSON on the command line that is nested too deep is a problem of its field."""
    status, printed = end_of(["explain", "script.py", "--lr_scheduler_kwargs", DEEP], capsys, place)
    assert (status, "lr_scheduler_kwargs" in printed.out, "is not valid JSON" in printed.out) == (1, True, True)


def test_fields_of_impossible_types(place, capsys):
    """A value of a type that no field has is a problem of that field: ``explain`` ends with 1, as for others."""
    (place / "fields.json").write_text(json.dumps({"output_dir": True, "report_to": {"a": 1}, "seed": -1}))
    status, printed = end_of(["explain", "fields.json"], capsys, place)
    assert status == 1
    for told in (
        "`output_dir=True`: must be the path of a folder",
        "`report_to={'a': 1}`: is not supported",
        "`seed=-1`",
    ):
        assert told in printed.out


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": HUGE},
        {"best_metric": HUGE},
        {"best_global_step": HUGE, "global_step": HUGE},
        {"global_step": float("nan"), "best_global_step": float("inf")},
        {"best_global_step": None, "best_model_checkpoint": "checkpoint-" + "9" * 5000},
        {"log_history": [{"step": HUGE, "loss": HUGE}, {"step": 2, "loss": 1.0}, {"step": float("nan"), "loss": 2}]},
        {"log_history": [{"step": 1, "loss": 5e-324}, {"step": 1, "train_loss": 1.0}, {"loss": 1, "step": 2}]},
        {"log_history": [{"step": 3, "loss": 1.0}, {"step": 3, "train_loss": HUGE}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_impossible_numbers_in_a_state(change, place, capsys):
    """Numbers that no run has are left out of the table and of the curves."""
    pytest.importorskip("matplotlib")
    become(place / "run/checkpoint-3/trainer_state.json", change)
    assert end_of(["checkpoints", "--verify", "run"], capsys, place)[0] in (0, 1)
    assert end_of(["plot", "run", "--output", "new.svg"], capsys, place)[0] == 0


@pytest.mark.parametrize("name", ["a/" * 3000, LONG, "../a", "/a", "a\0b"])
def test_a_marker_that_names_what_cannot_be(name, place, capsys):
    """A name in ``lightning.json`` that no file can have is said to be a problem of the checkpoint."""
    marker = {"format": 1, "step": 3, "run_id": None, "files": {name: 1}}
    (place / "run/checkpoint-3/lightning.json").write_text(json.dumps(marker))
    for more in ([], ["--verify"], ["--json"]):
        assert end_of(["checkpoints", *more, "run"], capsys, place)[0] in (0, 1)


ARCHITECTURES = {
    "a number": (5, "`architectures` in the model's configuration is 5"),
    "a text": ("GPT2LMHeadModel", "not a list of names"),
    "an object": ({"a": 1}, "not a list of names"),
    "numbers": ([1], "not a list of names"),
    "none in it": ([None], "not a list of names"),
}
OTHER_CLASSES = (
    ["pipeline"],
    ["AutoModel"],
    ["PreTrainedModel"],
    ["TrainingArguments"],
    ["NoSuch"],
    [""],
    [],
)


@pytest.mark.parametrize(("value", "told"), ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_architectures_that_are_no_names(value, told, place, capsys):
    """``architectures`` that are no list of names are refused."""
    become(place / "sharded/config.json", {"architectures": value})
    become(place / "model/config.json", {"architectures": value})
    for words in (
        ["consolidate", "sharded"],
        ["consolidate", "sharded", "--output", "new"],
        ["convert", "model", "new.ckpt"],
        ["convert", "run.ckpt", "new", "--model", "model"],
    ):
        status, printed = end_of(words, capsys, place)
        assert (status, told in printed.err) == (2, True), printed.err


@pytest.mark.parametrize("value", OTHER_CLASSES, ids=str)
def test_architectures_that_are_no_models(value, place, capsys):
    """What is no model class of transformers is taken for a class of the user's own: all weights are written."""
    become(place / "sharded/config.json", {"architectures": value})
    assert end_of(["consolidate", "sharded", "--output", "new"], capsys, place)[0] == 0
    assert (place / "new/model.safetensors").is_file()
    become(place / "model/config.json", {"architectures": value})
    assert end_of(["convert", "run.ckpt", "other", "--model", "model"], capsys, place)[0] == 0


@pytest.mark.parametrize(
    "change",
    [{"n_layer": "two"}, {"n_embd": -1}, {"n_head": 0}, {"vocab_size": [1]}, {"n_embd": 7}, {"activation_function": 5}],
    ids=str,
)
def test_configurations_that_transformers_cannot_use(change, place, capsys):
    """A configuration of which transformers makes no model is an error that says so."""
    become(place / "sharded/config.json", change)
    become(place / "model/config.json", change)
    for words in (["consolidate", "sharded", "--output", "new"], ["convert", "model", "new.ckpt"]):
        status, printed = end_of(words, capsys, place)
        assert status == 2
        assert printed.err.startswith("hf-compat: transformers cannot ")


def test_generation_that_transformers_cannot_use(place, capsys):
    """So is a configuration of generation that transformers would not save."""
    become(place / "model/generation_config.json", {"pad_token_id": -1})
    status, printed = end_of(["convert", "run.ckpt", "new", "--model", "model"], capsys, place)
    assert status == 2
    assert "configuration of generation" in printed.err


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("optimizer.pt", {"state": {}, "param_groups": 5}, "no optimizer's state dict"),
        ("optimizer.pt", {"state": [], "param_groups": []}, "no optimizer's state dict"),
        ("optimizer.pt", {"state": {}, "param_groups": [{"params": None}]}, "no optimizer's state dict"),
        ("optimizer.pt", [1], "no optimizer's state dict"),
        ("rng_state.pth", None, "no random states"),
        ("rng_state.pth", {"python": ()}, "no random states"),
        ("rng_state.pth", {"numpy": 5}, "no random states"),
        ("rng_state.pth", {"numpy": ("MT19937", "x")}, "no random states"),
    ],
)
def test_states_that_are_none(name, content, told, place, capsys):
    """A file of ``torch.save`` that can be read, with something else in it than its name says."""
    folder = place / "run" / "checkpoint-3"
    shutil.copytree(place / "model", folder, dirs_exist_ok=True)
    torch.save({"state": {}, "param_groups": []}, folder / "optimizer.pt")
    torch.save(content, folder / name)
    status, printed = end_of(["convert", "run/checkpoint-3", "new.ckpt"], capsys, place)
    assert status == 2, printed
    assert f"{name}` is damaged: it contains {told}" in printed.err


@pytest.mark.parametrize("content", [b"", JUNK, b"PK" + JUNK, (2**62).to_bytes(8, "little"), FOLDER, LOOP, MISSING])
def test_weights_that_are_none(content, place, capsys):
    """Weights that cannot be read are one sentence, without torch's advice to trust them."""
    for name, words in (
        ("model/model.safetensors", ["convert", "model", "new.ckpt"]),
        ("run.ckpt", ["convert", "run.ckpt", "new"]),
        ("sharded/pytorch_model_fsdp_0/__0_0.distcp", ["consolidate", "sharded", "--output", "new"]),
        ("sharded/pytorch_model_fsdp_0/.metadata", ["consolidate", "sharded", "--output", "new"]),
    ):
        become(place / name, content)
        status, printed = end_of(words, capsys, place)
        assert status == 2
        assert len(printed.err.splitlines()) == 1
        assert "weights_only" not in printed.err


PLACES = (LONG, f"{'y' * 200}/" * 30, "none", "loop", "/dev/null", "", ".", "script.py", "run.ckpt")
USABLE = {
    *(("checkpoints", ""), ("checkpoints", "."), ("explain", "script.py"), ("port", "/dev/null")),
    *(("port", "script.py"), ("run", "script.py"), ("run", "run.ckpt"), ("verify", "script.py")),
}
"""Those that are no errors, or, of ``run``, the program's own."""
COMMANDS = {
    "checkpoints": ["checkpoints", "--verify"],
    "consolidate": ["consolidate"],
    "explain": ["explain"],
    "plot": ["plot", "--output", "new.svg"],
    "port": ["port"],
    "run": ["run"],
    "run a module": ["run", "-m"],
    "run a command": ["run", "--cli"],
    "verify": ["verify"],
}


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path[:12])
@pytest.mark.parametrize("command", COMMANDS)
def test_places_that_are_none(command, path, place, monkeypatch, capsys):
    """A path of any kind that a command cannot use is an error of one line, or of argparse."""
    if (command, path) in USABLE:
        return
    monkeypatch.setattr("hf_compat.tools.run_script.install_here_and_in_children", lambda: None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # `-m script.py` looks into the module `script`
    (place / "loop").symlink_to(place / "loop")
    status, printed = end_of([*COMMANDS[command], path], capsys, place)
    assert status == 2, printed
    assert len(printed.err.splitlines()) <= 8


@pytest.mark.parametrize("path", [LONG, "loop/new", "run.ckpt/new", "/proc/new"], ids=lambda path: path[:12])
def test_targets_that_cannot_be(path, place, capsys):
    """A target that cannot be written is an error of one line."""
    (place / "loop").symlink_to(place / "loop")
    for words in (
        ["plot", "run", "--output", f"{path}.svg"],
        ["convert", "run.ckpt", path],
        ["convert", "model", path],
        ["consolidate", "sharded", "--output", path],
    ):
        status, printed = end_of(words, capsys, place)
        assert (status, len(printed.err.splitlines())) == (2, 1), printed


def test_a_fault_of_hf_compat_shows_its_traceback(place, monkeypatch):
    """Errors that no input explains are not caught."""

    def fails(*given, **more):
        raise ValueError("a fault")

    monkeypatch.setattr("hf_compat.tools.checkpoints.describe_checkpoints", fails)
    with pytest.raises(ValueError, match="a fault"):
        cli.main(["checkpoints", "run"])


def test_errors_are_shown_without_secrets(capsys):
    """An error that repeats a value of the command line does not show a secret."""
    with pytest.raises(SystemExit):
        cli.main(["explain", "none.py", "--hub_token", "s3cr3t-Value.9"])
    with pytest.raises(SystemExit):
        cli.main(["explain", "https://me:s3cr3t-Value.9@host.org/f.json"])
    with pytest.raises(SystemExit):
        cli.main(["checkpoints", "out", "--hub_token", "s3cr3t-Value.9"])
    assert "s3cr3t" not in capsys.readouterr().err
