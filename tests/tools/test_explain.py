"""``hf-compat explain``: what becomes of the arguments in use, or why they are refused."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hf_compat.cli import main
from hf_compat.tools.explain import as_markdown, explain_all, explain_command_line, explain_fields
from tests.support.paths import ROOT

FATES = {"trainer", "plan", "script", "alias", "unsupported"}


@pytest.fixture(autouse=True)
def _launched_by_nothing(monkeypatch):
    """No launcher's variables, which the arguments would heed."""
    for name in list(os.environ):
        if name.startswith("ACCELERATE_") or name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            monkeypatch.delenv(name)


@pytest.fixture
def script(tmp_path):
    """A script that must not be run."""
    path = tmp_path / "run_glue.py"
    path.write_text("raise SystemExit('it ran')\n")
    return str(path)


def explained(words, capsys, *, status=0):
    """Return what the command prints as JSON, by field."""
    assert main(["explain", "--json", *map(str, words)]) == status
    return {row["field"]: row for row in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize(
    ("page", "maker", "handlings"),
    [
        ("arguments.md", "hf-compat explain --all --markdown", FATES),
        ("migration.md", "the rows of older names of hf-compat explain", {"alias"}),
    ],
)
def test_the_tables_are_current(page, maker, handlings):
    """The tables in the documentation are those that the command makes; paste them there when a rule changes."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    made = re.search(rf"<!-- made by: {maker} -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert made is not None
    assert made.group(1) == as_markdown([row for row in explain_all() if row.handling in handlings])


def test_every_field_is_accounted_for():
    """Counted by fate, all fields of all releases are there, and each says in a sentence what it becomes."""
    rows = explain_all()
    counts = Counter(row.handling for row in rows)
    assert counts.keys() == FATES
    assert sum(counts.values()) == len({row.field for row in rows}) == 159
    assert counts["trainer"] + counts["plan"] > counts["unsupported"] + counts["script"] + counts["alias"]
    for row in rows:
        assert re.fullmatch(r"\S.{9,}\.", row.effect), row
        assert "|" not in row.effect


def test_a_command_line(script, capsys):
    """Fields are told with their place; older names, misspelt ones and the script's own are told as such."""
    line = "--output-dir out --evaluation_strategy epoch --no_dataloader_pin_memory --bf16 --use_cpu --lr 1"
    line += " --task_name mrpc --learning_rat 3 --flag --max_length=128"
    rows = explained([script, *line.split()], capsys, status=1)
    assert {name: (row["value"], row["handling"], row["where"]) for name, row in rows.items()} == {
        "output_dir": ("out", "trainer", "lightning.Trainer(default_root_dir=...)"),
        "evaluation_strategy": ("epoch", "alias", "eval_strategy=..."),
        "dataloader_pin_memory": (False, "plan", "hf_compat/arguments/derived.py"),
        "bf16": (True, "trainer", "lightning.Trainer(plugins=...)"),
        "use_cpu": (True, "trainer", "lightning.Trainer(accelerator=...)"),
        "lr": ("1", "unknown", "the script"),
        "task_name": ("mrpc", "unknown", "the script"),
        "learning_rat": ("3", "unknown", "the script"),
        "flag": ("", "unknown", "the script"),
        "max_length": ("128", "unknown", "the script"),
    }
    assert "Did you mean `learning_rate`?" in rows["learning_rat"]["effect"]
    assert "Did you mean" not in rows["flag"]["effect"]


@pytest.mark.parametrize(
    ("option", "status"), [("evaluation_stategy", 1), ("learning-rat", 1), ("label_column_name", 0), ("lora_rank", 0)]
)
def test_misspelt_fields_exit_with_1(option, status, script, capsys):
    """Only what nearly has a field's name is taken for one; options of the script's own have a hint at most."""
    row = explained([script, f"--{option}", "x"], capsys, status=status)[option]
    assert row["problems"] == []
    assert row["effect"].startswith("Not a field of TrainingArguments. Did you mean `")


def test_a_command_line_without_arguments(script, capsys):
    """In the place of a table is where to look instead."""
    assert main(["explain", str(script)]) == 0
    told = capsys.readouterr()
    assert not told.out
    assert "`hf-compat port` explains those in the script's own code" in told.err


def test_refusals_exit_with_1(script, capsys):
    """Everything that is refused is told beside its field, and the status says so."""
    line = "--seed -1 --deepspeed ds.json --fp16_opt_level O2 --learning_rate 0.1 --predict_with_generate"
    rows = explained([script, *line.split()], capsys, status=1)
    refused = {name: row["problems"] for name, row in rows.items() if row["problems"]}
    assert refused.keys() == {"seed", "deepspeed", "fp16_opt_level"}
    assert rows["fp16_opt_level"]["where"] == "not supported"
    assert main(["explain", script, *line.split()]) == 1
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:3] == ["field", "value", "where"]
    assert "  error: `seed=-1`: must be between 0 and 4294967295." in table


def test_every_reader_is_told(script, capsys):
    """JSON lists all modules that read a field; the table names the main one, and the others below it."""
    line = "--data_seed 1 --use_cpu --seed 1 --eval_on_start --run_name x --task_name mrpc"
    rows = explained([script, *line.split()], capsys)
    assert {name: row["read_in"] for name, row in rows.items()} == {
        "data_seed": ["hf_compat/trainer/construction.py"],
        "use_cpu": ["hf_compat/engine/process_layout.py", "hf_compat/engine/run_settings.py"],
        "seed": ["hf_compat/lightning/cli.py", "hf_compat/seeding.py", "hf_compat/trainer/searching.py"],
        "eval_on_start": ["hf_compat/trainer/loop.py"],
        "run_name": [
            "hf_compat/engine/loggers/comet.py",
            "hf_compat/engine/loggers/mlflow.py",
            "hf_compat/engine/loggers/wandb.py",
        ],
        "task_name": [],
    }
    main(["explain", script, "--data_seed", "1", "--use_cpu", "--eval_on_start"])
    _, *table = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in table] == ["data_seed", "also", "use_cpu", "read", "eval_on_start"]
    assert table[1] == "  also read in: hf_compat/trainer/construction.py"
    assert table[3] == "  read in: hf_compat/engine/process_layout.py, hf_compat/engine/run_settings.py"


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize("behind_script", [False, True], ids=["file", "script and file"])
def test_files(suffix, behind_script, script, tmp_path, capsys):
    """A file is explained by itself or behind the script that would read it; JSON is YAML."""
    path = tmp_path / f"args.{suffix}"
    path.write_text(json.dumps({"optim": "sgd", "fsdp": "", "model_name_or_path": "x", "warmup_ratio": 0.1}))
    rows = explained([script, path] if behind_script else [path], capsys)
    assert {name: row["handling"] for name, row in rows.items()} == {
        "optim": "plan", "fsdp": "plan", "model_name_or_path": "unknown", "warmup_ratio": "alias",
    }  # fmt: skip


def test_the_scripts_args_file_counts(script, capsys):
    """Options in a file named as the script come first; the command line wins."""
    Path(script).with_suffix(".args").write_text("--seed 1 --max_steps 5")
    rows = explained([script, "--seed", "2"], capsys)
    assert {name: row["value"] for name, row in rows.items()} == {"seed": 2, "max_steps": 5}


def test_what_the_environment_asks_for_is_told(monkeypatch):
    """A problem with a field that was not given has a row of its own."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    rows = {row.field: row for row in explain_fields({"seed": 1})}
    assert list(rows) == ["seed", "bf16"]
    assert "fp8" in rows["bf16"].problems[0]


def test_tokens_are_hidden(capsys):
    """A token appears nowhere."""
    rows = explain_fields({"hub_token": "hf_secret", "push_to_hub_token": "hf_secret", "seed": -1})
    assert "hf_secret" not in repr(rows)
    words = ["--wandb_key", "hf_secret", "--hub_tok", "hf_secret", "--run_name", "hf_AbCdEfGhIj0123"]
    assert not {"hf_secret", "hf_AbCdEfGhIj0123"} & {str(row.value) for row in explain_command_line([__file__, *words])}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "pass a script"),
        (["--all", "args.json"], "pass a script"),
        (["--output_dir", "x"], "unrecognized arguments: --output_dir; pass the script first, then its options"),
        (["none.py"], "`none.py` does not exist"),
        (["none.json"], "`none.json` cannot be read: No such file or directory\n"),
        (["args.toml"], "pass a file ending in"),
        (["SCRIPT", "--learning_rate", "fast"], "learning_rate"),
        (["SCRIPT", "--optim", "adam"], "invalid choice"),
    ],
)
def test_wrong_usage(words, message, script, capsys):
    """What cannot be explained ends with 2 and says why."""
    with pytest.raises(SystemExit) as caught:
        main(["explain", *(script if word == "SCRIPT" else word for word in words)])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_nothing_heavy_is_loaded(script):
    """A command line is explained without loading torch, lightning or transformers."""
    program = (
        "import sys; from hf_compat.cli import main; status = main(sys.argv[1:]);"
        "print([name for name in ('torch', 'lightning', 'transformers') if name in sys.modules], status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "explain", script, "--seed", "1"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.splitlines()[-1] == "[] 0"
