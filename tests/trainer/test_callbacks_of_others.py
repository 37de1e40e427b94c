"""Lightning callbacks of other packages, in one run and the next: Optuna's prunes a trial, Ray Tune's reports."""

import json
import sys

import optuna
import pytest
import torch
from optuna_integration import PyTorchLightningPruningCallback

from tests.support.processes import finish, start
from tests.support.trainers import new_trainer

RUN = {"num_train_epochs": 3, "eval_strategy": "epoch", "save_strategy": "no", "learning_rate": 0.05}


def losses(trainer):
    """Return the losses of the evaluations of the last run."""
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


def pruned_run(folder, threshold):
    """Return the losses of two runs that a trial of Optuna watches, and the trial."""
    study, found = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=threshold)), []

    def objective(trial):
        trainer = new_trainer(folder, callbacks=[PyTorchLightningPruningCallback(trial, monitor="eval_loss")], **RUN)
        for _ in range(2):
            try:
                trainer.train()
            finally:
                found.append(losses(trainer))
        return found[-1][-1]

    study.optimize(objective, n_trials=1)
    return found, study.trials[0]


@pytest.mark.filterwarnings("ignore:The reported value is ignored")
def test_optuna_is_told_each_evaluation(tmp_path):
    """A trial has the loss of each epoch; a second run of the Trainer adds nothing, as Optuna keeps the first."""
    found, trial = pruned_run(tmp_path, 100.0)
    assert trial.state == optuna.trial.TrialState.COMPLETE
    assert [len(each) for each in found] == [3, 3]
    assert trial.intermediate_values == pytest.approx(dict(enumerate(found[0])), rel=1e-6)


def test_optuna_prunes_at_the_first_evaluation(tmp_path):
    """Its exception ends the run, and is the one that it knows; a plain Trainer trains after it."""
    found, trial = pruned_run(tmp_path, 0.0)
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert list(trial.intermediate_values) == [0]
    assert len(found) == 1
    assert new_trainer(tmp_path, **RUN).train().global_step == 3


RAY = """
import json
import ray
from ray import tune
from ray.tune.integration.pytorch_lightning import TuneReportCheckpointCallback
from pathlib import Path
from tests.support.trainers import new_trainer

folder = {folder!r}


def train(config):
    folder = Path(config["folder"])
    callback = TuneReportCheckpointCallback({{"loss": "eval_loss"}}, filename="lightning.ckpt")
    trainer = new_trainer(folder / "out", callbacks=[callback], **{run!r})
    for number in range(2):
        trainer.train()
        found = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        (folder / f"losses-{{number}}.json").write_text(json.dumps(found))


ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
settings = tune.RunConfig(storage_path=folder + "/ray", verbose=0)
(result,) = tune.Tuner(train, param_space={{"folder": folder}}, run_config=settings).fit()
if result.error:
    raise result.error
print("RESULT" + json.dumps([list(result.metrics_dataframe["loss"]), result.checkpoint.path]))
"""


@pytest.mark.slow
def test_ray_is_told_each_evaluation(tmp_path):
    """Ray Tune's callback reports the loss of each epoch of both runs, each with a checkpoint that Lightning loads."""
    script = RAY.format(folder=str(tmp_path), run=RUN)
    (ended,) = finish([start([sys.executable, "-W", "ignore", "-c", script])])
    assert ended.code == 0, ended.output[-3000:]
    (result,) = (line for line in ended.output.splitlines() if line.startswith("RESULT"))
    reported, folder = json.loads(result.removeprefix("RESULT"))
    losses = [json.loads((tmp_path / f"losses-{number}.json").read_text()) for number in range(2)]
    assert reported == pytest.approx(losses[0] + losses[1], rel=1e-6)
    saved = torch.load(f"{folder}/lightning.ckpt", weights_only=True)
    assert saved["global_step"] == 3
