"""``report_to``: each tracker is run by transformers' Trainer and by ours, and what they wrote is read back.

The packages of trackers are not among those of the other tests: their presence alone changes what older releases of
transformers do. `pip install "hf-compat[comet,mlflow,wandb]" aim clearml` brings them.
"""

import importlib.util
import multiprocessing
import os
import pickle
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from lightning.pytorch.callbacks import LearningRateMonitor
from tensorboard.backend.event_processing import event_accumulator
from transformers.integrations import integration_utils

import hf_compat
from hf_compat import Trainer, TrainingArguments
from hf_compat.arguments.checks import TRACKERS
from hf_compat.engine.loggers.reporters import OWN_CALLBACKS, TRANSFORMERS_CALLBACKS
from hf_compat.engine.loggers.tensorboard import EventFiles, TensorBoardCallback
from hf_compat.errors import MissingPackageError, TrainerSetupError
from tests.support.helpers import PlainModel, vector_rows
from tests.support.processes import PATIENCE, finish, start
from tests.support.tracker_files import read_aim, read_clearml, read_comet, read_mlflow, read_tensorboard, read_wandb
from tests.support.tracker_steps import KINDS, READERS, cells
from tests.support.trainers import arguments

SCRIPT = Path(__file__).parents[1] / "scripts" / "tracker_run.py"
HAS_KUBEFLOW = hasattr(integration_utils, "KubeflowCallback")
OFFLINE = {
    "CLEARML_CACHE_DIR": "clearml", "CLEARML_CONFIG_FILE": "clearml.conf", "CLEARML_OFFLINE_MODE": "1",
    "CLEARML_LOG_MODEL": "FALSE",
    "COMET_API_KEY": "none", "COMET_START_ONLINE": "0", "COMET_OFFLINE_DIRECTORY": "comet", "HF_HUB_OFFLINE": "1",
    "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db", "OMP_NUM_THREADS": "1", "TRACKIO_DIR": "trackio",
    "WANDB_MODE": "offline",
}  # fmt: skip


DIFFERENT = ("logging_dir", "trackio_space_id")
"""Fields that differ: the first holds the second of its making, the second is None in ours also before 5.6."""


def run_tracker(which, name, folder, *part):
    """Run the script, or a part of its run, with one tracker in ``folder``."""
    folder.mkdir(exist_ok=bool(part))
    # ClearML forks this process while a thread of it starts git, which then may wait for ever.
    Path(folder, "clearml.conf").write_text("sdk.development.report_use_subprocess: false")
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), which, name, "out", *part],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_every_tracker_has_one_callback():
    """The names are those of transformers; each has a callback, ours or transformers'."""
    assert OWN_CALLBACKS.keys().isdisjoint(TRANSFORMERS_CALLBACKS)
    assert {*OWN_CALLBACKS, *TRANSFORMERS_CALLBACKS} == {*TRACKERS}
    upstream = integration_utils.INTEGRATION_TO_CALLBACK
    assert upstream.keys() <= TRACKERS.keys()
    named = {name: attribute for name, (_, attribute) in OWN_CALLBACKS.items()} | TRANSFORMERS_CALLBACKS
    assert {name: named[name] for name in upstream} == {name: kind.__name__ for name, kind in upstream.items()}


JOB = "KUBEFLOW_TRAINER_SERVER_URL"
SWITCH = "DISABLE_KUBEFLOW_INTEGRATION"
VARIABLES = {
    "job": {JOB: "https://server"},
    "switched off": {JOB: "https://server", SWITCH: "true"},
    "another word": {JOB: "https://server", SWITCH: "1"},
    "no job": {SWITCH: "FALSE"},
}


@pytest.fixture
def in_job(monkeypatch):
    """Set the variables of a Kubeflow job."""
    monkeypatch.setenv(JOB, "https://server")


@pytest.mark.parametrize("variables", VARIABLES.values(), ids=VARIABLES)
@pytest.mark.parametrize("given", ["none", ["none"], "tensorboard", ["mlflow"], "all", ["kubeflow"], None], ids=str)
def test_kubeflow_jobs_hear_of_every_run(given, variables, tmp_path, monkeypatch):
    """Whatever ``report_to`` is, upstream since 5.4 adds a job's own tracker, once; a setter of the field does not."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    fields = {} if given is None else {"report_to": given}
    theirs = transformers.TrainingArguments(str(tmp_path), **fields)
    ours = TrainingArguments(str(tmp_path), **fields)
    assert ours.report_to == theirs.report_to
    assert ours.set_logging(report_to=["tensorboard"]).report_to == ["tensorboard"]


def test_releases_without_kubeflow_do_not_report_to_jobs(in_job, tmp_path):
    """Before 5.4 a job was told nothing, and the installed release must have the callback."""
    assert TrainingArguments(str(tmp_path), report_to="none", semantics="5.3").report_to == []
    newer = TrainingArguments(str(tmp_path), report_to="none", semantics="5.4")
    assert newer.report_to == (["kubeflow"] if HAS_KUBEFLOW else [])


def test_the_tracker_of_a_job_contradicts_no_keyword(in_job, tmp_path):
    """``logger=False`` is refused beside a tracker that the user chose, not beside the one that the job adds."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    assert Trainer(PlainModel(), args, lightning={"logger": False}).args.report_to == []
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="mlflow")
    with pytest.raises(TrainerSetupError, match="contradicts `report_to="):
        Trainer(PlainModel(), args, lightning={"logger": False})


def parameters_of(name, seen):
    """Return where what was read keeps the run's configuration, and the prefix of its names."""
    if name == "mlflow":
        return seen[0]["params"], ""
    return seen["config" if name == "wandb" else "params"], "args|" if name == "comet_ml" else ""


@pytest.mark.filterwarnings("ignore:The .*noload.* loader strategy:DeprecationWarning")  # MLflow's, in its database
@pytest.mark.parametrize(
    ("name", "package", "read"),
    [
        ("tensorboard", "tensorboard", read_tensorboard),
        ("mlflow", "mlflow", read_mlflow),
        ("wandb", "wandb", read_wandb),
        ("comet_ml", "comet_ml", read_comet),
        ("clearml", "clearml", read_clearml),
        ("aim", "aim", read_aim),
    ],
)
def test_writes_what_transformers_writes(tmp_path, name, package, read):
    """Curves with their steps, values of the run and its configuration are equal; ours has its own fields besides."""
    pytest.importorskip(package)
    theirs = read(run_tracker("upstream", name, tmp_path / "upstream"))
    ours = read(run_tracker("ours", name, tmp_path / "ours"))
    if name != "tensorboard":
        (expected, _), (found, prefix) = parameters_of(name, theirs), parameters_of(name, ours)
        added = {key.removeprefix(prefix) for key in found.keys() - expected.keys()}
        assert added <= set(TrainingArguments.__dataclass_fields__)
        for key in found.keys() - expected.keys():
            del found[key]
        for key in {prefix + name for name in DIFFERENT} & expected.keys():
            del found[key], expected[key]
    assert ours == theirs
    assert ours


PAGE = (SCRIPT.parents[2] / "docs" / "trackers.md").read_text(encoding="utf-8")
STEPS = {
    row[0]: row[2:7]
    for row in (re.split(r" +\| +", line.strip("| ")) for line in PAGE.partition("<!-- steps")[2].splitlines())
    if row[0].strip('`"') in READERS
}
"""Rows of the page: tracker → steps of logs, evaluations, prediction and end, and of logs with a resumed run."""


def compare_with_page(name, run, folder):
    """Compare a row of the page with what the parts of a run, by ``run(part)``, have left in ``folder``."""
    (expected,) = [row for key, row in STEPS.items() if key.strip('`"') == name]
    run("first")
    found = [cells(READERS[name](folder), kind) for kind in KINDS]
    run("resumed")
    assert [*found, cells(READERS[name](folder), "logs")] == expected


def test_the_page_has_a_row_for_each_tracker():
    """No tracker is missing in the table of steps: it has what files show, or says why nothing can be read."""
    table = PAGE.partition("<!-- steps")[2].partition("\n\n")[0]
    assert [name for name in (*TRACKERS, "aim", "CSVLogger") if name not in table] == []
    assert {key.strip('`"') for key in STEPS} == READERS.keys()


@pytest.mark.parametrize("name", ["tensorboard", "CSVLogger"])
def test_steps_that_need_no_package(name, tmp_path, monkeypatch):
    """Each log is at the update step that the page says, also in the run that goes on from a checkpoint."""
    monkeypatch.chdir(tmp_path)

    def run(part):
        # The default is named by the second, which two runs of one process may have in common.
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "out" / "runs" / part))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "ours", name, "out", part])
        runpy.run_path(str(SCRIPT))

    compare_with_page(name, run, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["upstream", "ours"])
@pytest.mark.parametrize("name", sorted(READERS.keys() - {"CSVLogger"}))
def test_steps_in_trackers(name, which, tmp_path):
    """Each log is where the page says, in transformers' run and in ours."""
    pytest.importorskip(name)
    compare_with_page(name, lambda part: run_tracker(which, name, tmp_path / "run", part), tmp_path / "run")


def test_lightning_callbacks_write_to_the_same_run(tmp_path):
    """What a Lightning callback logs is in the same event files, and no other file is beside them."""
    args = TrainingArguments(
        str(tmp_path / "out"), max_steps=3, per_device_train_batch_size=2, logging_steps=1, save_strategy="no",
        report_to="tensorboard", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    monitor = LearningRateMonitor(logging_interval="step")
    keywords = {"log_every_n_steps": 1}
    Trainer(PlainModel(), args, train_dataset=vector_rows(8), callbacks=[monitor], lightning=keywords).train()
    seen = read_tensorboard(tmp_path)
    assert len(seen["curves"]["lr-AdamW/pg1"]) == len(seen["curves"]["train/loss"]) == 3
    assert seen["other files"] == []


@pytest.mark.parametrize("calls", ["predict", "predict train", "evaluate", "evaluate evaluate train"])
def test_event_files_of_calls_outside_of_training(tmp_path, monkeypatch, calls):
    """There are as many as with transformers: a prediction makes neither a file nor a folder, evaluations make a file.

    That is in the folder of trainings; of transformers since 5.2 it is below the working directory.
    """
    files = {}
    for package in (transformers, hf_compat):
        place = tmp_path / package.__name__
        out = place / "out"
        place.mkdir()
        monkeypatch.chdir(place)
        args = package.TrainingArguments(
            str(out), max_steps=1, save_strategy="no", report_to="tensorboard", use_cpu=True, disable_tqdm=True
        )
        trainer = package.Trainer(PlainModel(), args, train_dataset=vector_rows(8), eval_dataset=vector_rows(4))
        for call in calls.split():
            getattr(trainer, call)(*[vector_rows(4)] * (call == "predict"))
        files[package.__name__] = [*place.rglob("events.*")]
        assert calls != "predict" or not out.exists() or not [*out.iterdir()]
    assert len(files["hf_compat"]) == len(files["transformers"]) == (calls != "predict")
    assert all(file.is_relative_to(out) for file in files["hf_compat"])


def test_each_trial_has_a_folder(tmp_path):
    """A search writes the event files of each trial to a folder named after it."""
    pytest.importorskip("optuna")
    args = TrainingArguments(
        str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, logging_steps=1, save_strategy="no",
        eval_strategy="steps", eval_steps=1, report_to="tensorboard", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        args=args, model_init=lambda: PlainModel(), train_dataset=vector_rows(8), eval_dataset=vector_rows(2)
    )
    trainer.hyperparameter_search(n_trials=2, direction="minimize", hp_name=lambda trial: f"trial {trial.number}")
    (runs,) = Path(tmp_path, "out/runs").iterdir()
    assert sorted(path.name for path in runs.iterdir()) == ["trial 0", "trial 1"]


def test_a_writer_of_ones_own(tmp_path):
    """A ``SummaryWriter`` given to the callback is the one that is written to."""
    writer_module = pytest.importorskip("torch.utils.tensorboard")
    args = arguments(tmp_path / "out", max_steps=1, logging_steps=1, save_strategy="no")
    callback = TensorBoardCallback(writer_module.SummaryWriter(str(tmp_path / "mine")))
    Trainer(PlainModel(), args, train_dataset=vector_rows(8), callbacks=[callback]).train()
    assert list(Path(tmp_path, "mine").glob("events*"))
    assert not Path(tmp_path, "out/runs").exists()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [pytest.param("wandb", r"hf-compat\[wandb\]", id="ours"), pytest.param("swanlab", "swanlab", id="transformers'")],
)
def test_missing_package(tmp_path, name, remedy):
    """A tracker without its package is an error that says what to install, before anything is trained."""
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    args = TrainingArguments(str(tmp_path), report_to=name, use_cpu=True)
    with pytest.raises(MissingPackageError, match=f"report_to='{name}'.*{remedy}"):
        Trainer(PlainModel(), args, train_dataset=vector_rows(8))


def test_loggers_are_pickled_without_their_package_objects():
    """A Trainer with trackers can be sent to the processes that it starts."""
    restored = pickle.loads(pickle.dumps(TensorBoardCallback()))
    assert restored.logger.folder is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_has_an_event_file_of_its_own(tmp_path):
    """The thread that writes a file is the parent's alone, which goes on with it; the child waited for it for ever."""
    files = EventFiles()
    files.open_folder(str(tmp_path))

    def write(step):
        files.experiment.add_scalar("loss", 1.0, step)
        files.save()

    write(1)
    child = multiprocessing.get_context("fork").Process(target=write, args=(2,))
    child.start()
    child.join(PATIENCE)
    child.kill()
    write(3)
    files.close()
    assert child.exitcode == 0
    assert len(list(tmp_path.iterdir())) == 2
    events = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert sorted(event.step for event in events.Scalars("loss")) == [1, 2, 3]


FORKING = """
import sys

from hf_compat import Trainer, TrainingArguments
from tests.support.helpers import PlainModel, vector_rows

args = TrainingArguments("out", use_cpu=True, report_to=sys.argv[1], disable_tqdm=True)
rows, lightning = vector_rows(8), {"strategy": "ddp_fork", "devices": 2}
trainer = Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows, lightning=lightning)
trainer.evaluate()
trainer.train()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize(("package", "tracker"), [("mlflow", "MLflow"), ("dvclive", "DVCLive")])
def test_no_process_is_forked_from_one_with_an_open_run(tmp_path, package, tracker):
    """It would wait for ever for the database or the threads of the one that it was forked from."""
    pytest.importorskip(package)
    (tmp_path / "script.py").write_text(FORKING)
    (ended,) = finish([start([sys.executable, "script.py", package], tmp_path, **OFFLINE)])
    assert ended.code == 1
    assert f"would fork processes, but this one has opened a run of {tracker}" in ended.output
    assert "Exception ignored" not in ended.output
