"""A run from a YAML file, by Lightning's command line tool."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import yaml

from hf_compat import Trainer, TrainingArguments, set_seed
from hf_compat.errors import ArgumentsError, MissingPackageError, NotSupportedError, TrainerSetupError
from tests.lightning.test_pieces import ended
from tests.scripts.cli_script import hits
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.paths import ROOT, SCRIPTS

pytest.importorskip("jsonargparse")
from hf_compat.lightning.cli import HFLightningCLI

pytestmark = pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
"""Lightning uses jsonargparse in a way that it warns of."""

FIELDS = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_steps": 3,
}
PIECES = {
    "model": {"class_path": "tests.scripts.cli_script.Plain", "init_args": {"scale": 0.5}},
    "data": {"class_path": "tests.scripts.cli_script.Rows", "init_args": {"train": 26}},
    "trainer": {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"},
}
TIMES = ("runtime", "per_second", "model_preparation_time")


class Halving(Trainer):
    """What the module of the file does."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (0.5 * loss, outputs) if return_outputs else 0.5 * loss


def trainer_of_the_file(folder, **fields):
    """The Trainer that the file stands for."""
    args = TrainingArguments(str(folder), **{**FIELDS, **fields})
    set_seed(args.seed)
    sets = [ListDataset(vector_rows(count, seed=seed)) for seed, count in enumerate((26, 9))]
    return Halving(PlainModel(), args, train_dataset=sets[0], eval_dataset=sets[1], compute_metrics=hits)


def written(folder, **changed):
    """A YAML file in ``folder``."""
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({"args": {"output_dir": "out", **FIELDS}, **PIECES, **changed}))
    return file


def ran(folder, *command):
    """What the script returns of a command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = [sys.executable, "-W", "ignore", SCRIPTS / "cli_script.py", *command]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "result.pt", weights_only=False)["output"]


def timeless(metrics):
    """Metrics without times."""
    return {name: value for name, value in dict(metrics).items() if not name.endswith(TIMES)}


@pytest.mark.slow
def test_a_script_fits_a_file(tmp_path):
    """Run as a command, a file has the loss, the weights and the folders of ``Trainer.train``, to the last bit."""
    trainer = trainer_of_the_file(tmp_path / "trainer")
    output = trainer.train()
    found = ran(tmp_path, "fit", "--config", written(tmp_path).name)
    assert found[:2] == output[:2]
    names = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("trainer", "out")]
    assert names[1] == sorted([*names[0], "config.yaml"])
    last = f"checkpoint-{trainer.state.global_step}/model.safetensors"
    assert (tmp_path / "out" / last).read_bytes() == (tmp_path / "trainer" / last).read_bytes()


def command(folder, *words, monkeypatch, **changed):
    """The tool in this process, after a command."""
    file = written(folder, **changed)
    monkeypatch.chdir(folder)
    return HFLightningCLI(args=[words[0], "--config", str(file), *words[1:]])


def test_its_commands(tmp_path, monkeypatch):
    """``fit``, ``validate`` and ``predict`` do what the Trainer does; options overrule the file; a run resumes."""
    monkeypatch.setattr(sys, "argv", ["script.py"])
    before = timeless(trainer_of_the_file(tmp_path / "before").evaluate())
    assert timeless(command(tmp_path, "validate", monkeypatch=monkeypatch).output) == before
    assert not (tmp_path / "out" / "config.yaml").exists()
    expected = trainer_of_the_file(tmp_path / "trainer", max_steps=4, save_steps=2)
    expected.train()
    options = ["--args.max_steps=4", "--args.save_steps=2"]
    fitted = command(tmp_path, "fit", *options, monkeypatch=monkeypatch)
    assert fitted.training_args.max_steps == 4
    assert ended(fitted.trainer.callbacks[-1].hf_trainer) == ended(expected)
    options.append("--args.resume_from_checkpoint=out/checkpoint-2")
    resumed = command(tmp_path, "fit", *options, monkeypatch=monkeypatch)
    assert ended(resumed.trainer.callbacks[-1].hf_trainer)[1:] == ended(expected)[1:]
    saved = command(tmp_path, "predict", "--ckpt_path=out/checkpoint-4", monkeypatch=monkeypatch).output
    assert saved.predictions.tolist() == expected.predict(expected.eval_dataset).predictions.tolist()


class Optimizing(HFLightningCLI):
    """Adds an optimizer as Lightning's documentation has it."""

    def add_arguments_to_parser(self, parser):
        parser.add_optimizer_args(torch.optim.SGD)
        parser.set_defaults({"optimizer.lr": 0.1})


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch, capsys):
    """Before training, with the key that is wrong and what to do."""
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(ArgumentsError, match="learning_rate"):
        command(tmp_path, "fit", "--args.learning_rate=fast", monkeypatch=monkeypatch)
    with pytest.raises(TypeError, match="learning_rat"):
        command(tmp_path, "fit", "--args.learning_rat=1", monkeypatch=monkeypatch)
    with pytest.raises(TrainerSetupError, match=r"Set `args.resume_from_checkpoint`"):
        command(tmp_path, "fit", "--ckpt_path=out/checkpoint-2", monkeypatch=monkeypatch)
    with pytest.raises(TrainerSetupError, match=r"'max_steps': 3.* contradicts `max_steps=4`"):
        command(tmp_path, "fit", "--args.max_steps=4", "--trainer.max_steps=3", monkeypatch=monkeypatch)
    with pytest.raises(NotSupportedError, match=r"`auto_configure_optimizers=True`.*`optim`"):
        HFLightningCLI(auto_configure_optimizers=True)
    with pytest.raises(NotSupportedError, match="`optimizer`: optimizer and schedule are those of the training arg"):
        Optimizing(args=["fit", "--config", str(written(tmp_path))])
    with pytest.raises(SystemExit):
        command(tmp_path, "fit", "--optimizer=SGD", monkeypatch=monkeypatch)
    assert "optimizer" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "docstring_parser", None)
    with pytest.raises(MissingPackageError, match=r'pip install "hf-compat\[cli\]"'):
        HFLightningCLI()
