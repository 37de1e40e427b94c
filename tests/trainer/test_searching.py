"""``hyperparameter_search``: spaces, objective, values, refusals, stored studies; Ray in a process of its own."""

import json
import logging
import os
import subprocess
import sys

import optuna
import pytest
import torch
import transformers
from lightning.pytorch.loggers import CSVLogger
from transformers import trainer_utils

import hf_compat
from hf_compat import Trainer, default_compute_objective, default_hp_space_optuna
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.checkpoint.completeness import incomplete_reason
from hf_compat.errors import ArgumentsError, DataError, NotSupportedError, SearchError
from hf_compat.trainer.searching import apply_values
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.paths import ROOT
from tests.support.trainers import arguments, new_trainer

optuna.logging.set_verbosity(optuna.logging.ERROR)


SHORT = {"max_steps": 2, "save_strategy": "no", "per_device_train_batch_size": 4}


def searching_trainer(library, folder, model_init=lambda: PlainModel(), **fields):
    """Return a Trainer of ``library`` that makes its models."""
    return new_trainer(folder, library=library, given={"model_init": model_init}, **SHORT | fields)


def rates(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)}


@pytest.mark.parametrize(
    ("metrics", "objective"),
    [
        pytest.param({"eval_loss": 0.5, "epoch": 2.0, "eval_runtime": 3.0}, 0.5, id="loss"),
        pytest.param({"eval_loss": 0.5, "eval_f1": 0.25, "eval_acc": 0.5, "epoch": 1}, 0.75, id="sum of metrics"),
        pytest.param({"eval_f1": 1.0, "eval_samples_per_second": 9.0, "eval_b_runtime": 1.0}, 1.0, id="no speeds"),
        pytest.param({"eval_a_loss": 2.0, "epoch": 1.0}, 2.0, id="a set's own loss is a metric"),
        pytest.param({"epoch": 1.0}, None, id="nothing"),
    ],
)
def test_default_objective(metrics, objective):
    """The sum of the metrics, the loss if there are none; the metrics are left as they are."""
    before = dict(metrics)
    assert default_compute_objective(metrics) == trainer_utils.default_compute_objective(dict(metrics)) == objective
    assert metrics == before


def test_default_space_of_optuna():
    """The same names are drawn from the same distributions as upstream's."""
    drawn = []
    for space in (default_hp_space_optuna, trainer_utils.default_hp_space_optuna):
        trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
        drawn.append((space(trial), trial.distributions))
    assert drawn[0] == drawn[1]
    assert len(drawn[0][0]) == 4


def test_values_are_cast(tmp_path, caplog):
    """A value takes the type of the one that it replaces; a name without an argument is warned of and left out."""
    args = arguments(tmp_path, **SHORT)
    tried = {"seed": 7.9, "learning_rate": 1, "lr_scheduler_type": "cosine", "data_seed": 3, "leraning_rate": 1.0}
    with caplog.at_level(logging.WARNING, "hf_compat"):
        apply_values(args, tried, resolve_semantics())
    assert (args.seed, args.learning_rate, args.data_seed) == (7, 1.0, 3)
    assert [type(args.seed), type(args.learning_rate), type(args.lr_scheduler_type).__name__] == [
        int,
        float,
        "SchedulerType",
    ]
    assert "`leraning_rate=1.0` is ignored" in caplog.text
    assert "Did you mean `learning_rate`?" in caplog.text
    assert not hasattr(args, "leraning_rate")


def test_values_that_no_run_could_use_are_refused(tmp_path):
    """What the constructor would refuse, a trial cannot set either; all of it is told."""
    args = arguments(tmp_path, **SHORT)
    with pytest.raises(ArgumentsError, match=r"(?s)2 problems.*`optim='no_such'`: a trial cannot set it") as caught:
        apply_values(args, {"per_device_train_batch_size": 0, "optim": "no_such"}, resolve_semantics())
    assert "`per_device_train_batch_size=0`" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"backend": "wandb"}, NotSupportedError, "`backend='wandb'` is not supported: use 'optuna' or 'ray'"),
        ({"backend": "sigopt"}, (NotSupportedError, ValueError), "'sigopt'.* is not "),
        ({"backend": "hyperopt"}, ValueError, "'hyperopt' is not a valid HPSearchBackend; choose one of 'optuna'"),
        ({"n_jobs": 2}, SearchError, "`n_jobs=2`.*the same `storage`"),
        ({"backend": "ray", "direction": ["minimize", "maximize"]}, SearchError, "Ray Tune supports one objective"),
        ({"directions": ["minimize"]}, ValueError, "direction"),
        ({"direction": "max"}, (SearchError, ValueError), "`direction='max'`: pass 'minimize' or 'maximize'"),
        (
            {"hp_space": {"seed": [1, 2]}},
            (SearchError, TypeError),
            "`hp_space`: .* of type dict cannot be called",
        ),
        (
            {"compute_objective": "eval_loss"},
            (SearchError, TypeError),
            "`compute_objective`: .* of the metrics",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_refusals(tmp_path, given, error, text):
    """What a search cannot do is said before a trial begins, and the Trainer trains as before."""
    trainer = searching_trainer(hf_compat, tmp_path)
    with pytest.raises(error, match=text):
        trainer.hyperparameter_search(**{"hp_space": rates, "n_trials": 1, **given})
    assert trainer.hp_search_backend is None
    assert trainer.train().global_step == 2


def test_ray_in_one_of_several_processes(tmp_path, monkeypatch):
    """Ray starts the processes of the trials, so that it is refused where there are some already."""
    trainer = searching_trainer(hf_compat, tmp_path)
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    with pytest.raises(SearchError, match="`backend='ray'` is not supported with world size 2"):
        trainer.hyperparameter_search(rates, n_trials=1, backend="ray")


def test_a_search_without_data_to_evaluate_on(tmp_path):
    """It is refused before the first trial, not after it; one that evaluates in its own way is not."""

    class Own(Trainer):
        def evaluate(self, *given, **named):
            return {"eval_loss": 0.5}

    given = {"model_init": lambda: PlainModel(), "train_dataset": ListDataset(vector_rows(4))}
    with pytest.raises(DataError, match="`eval_dataset=None`: a search compares trials"):
        Trainer(args=arguments(tmp_path, **SHORT), **given).hyperparameter_search(rates, n_trials=1)
    assert Own(args=arguments(tmp_path, **SHORT), **given).hyperparameter_search(rates, n_trials=1).objective == 0.5


def test_an_objective_of_another_name(tmp_path):
    """A metric that is not there is a KeyError, as in transformers, with the names of those that are."""
    trainer = searching_trainer(hf_compat, tmp_path)
    with pytest.raises(KeyError, match="accuracy") as caught:
        trainer.hyperparameter_search(rates, lambda metrics: metrics["accuracy"], n_trials=1)
    assert caught.value.__notes__[0].startswith("`compute_objective`: the metrics are eval_loss, ")


class CountedRuns(hf_compat.TrainerCallback):
    """A tracker that counts the runs that it is asked to prepare."""

    def __init__(self, folder):
        self.folder, self.trials = folder, []

    def prepare_run(self, args, state):
        """Return a logger of the trial's run."""
        self.trials.append(state.trial_name)
        return CSVLogger(self.folder)


def test_a_trial_is_one_run_of_a_tracker(tmp_path):
    """The evaluations of a trial go to the run that was prepared as it began: they prepare none."""
    trainer = searching_trainer(hf_compat, tmp_path, eval_strategy="steps", eval_steps=1)
    callback = CountedRuns(tmp_path)
    trainer.add_callback(callback)
    trainer.hyperparameter_search(hp_space=rates, hp_name=lambda trial: f"trial {trial.number}", n_trials=2)
    assert callback.trials == ["trial 0", "trial 1"]


def test_a_search_needs_model_init(tmp_path):
    """Without a function that makes models it is upstream's RuntimeError."""
    trainer = Trainer(PlainModel(), arguments(tmp_path, **SHORT), train_dataset=ListDataset(vector_rows(4)))
    with pytest.raises(RuntimeError, match="`model_init=None`"):
        trainer.hyperparameter_search(backend="optuna")


def test_a_stored_study_goes_on(tmp_path):
    """A study in SQLite keeps trials, their reports and failures; a later search adds to it."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/study.db")
    kept = {"storage": storage, "study_name": "one", "load_if_exists": True, "gc_after_trial": True, "timeout": 600}
    kept |= {"sampler": optuna.samplers.GridSampler({"learning_rate": [0.02, 0.05, 0.1]}, seed=0)}
    trainer = searching_trainer(hf_compat, tmp_path / "out", eval_strategy="steps", eval_steps=1, save_strategy="epoch")
    scored = []

    def objective(metrics):
        scored.append(metrics["eval_loss"])
        if len(scored) == 3:  # the second trial's first evaluation
            raise FloatingPointError("no score")
        return metrics["eval_loss"]

    try:
        given = {"compute_objective": objective, "catch": (FloatingPointError,), **kept}
        trainer.hyperparameter_search(rates, n_trials=2, **given)
        best = trainer.hyperparameter_search(rates, n_trials=1, **given)
        trials = optuna.load_study(study_name="one", storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert trials[0].intermediate_values == {1: scored[0], 2: scored[1]}
    assert trials[2].value == scored[4]
    assert best == (str(min((0, 2), key=lambda n: trials[n].value)), min(scored[1], scored[4]), best[2], None)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run-0", "run-2"]


def test_the_pruner_ends_trials(tmp_path):
    """A trial that the pruner gives up ends at the evaluation, after ``on_train_end``; upstream's does the same."""

    def outcome(library, folder):
        events = []

        class Notes(library.TrainerCallback):
            def on_train_end(self, args, state, control, **kwargs):
                events.append(state.global_step)

        trainer = searching_trainer(library, folder, eval_strategy="steps", eval_steps=1, max_steps=3)
        trainer.add_callback(Notes())
        study = {"sampler": optuna.samplers.RandomSampler(seed=0), "pruner": optuna.pruners.ThresholdPruner(upper=1.0)}
        scores = iter([0.5, 0.6, 0.7, 2.0, 0.1, 0.9, 0.3])
        best = trainer.hyperparameter_search(rates, lambda _: next(scores), n_trials=3, backend="optuna", **study)
        return best, events

    ours = outcome(hf_compat, tmp_path / "ours")
    assert ours == outcome(transformers, tmp_path / "theirs")
    assert (ours[0].run_id, ours[0].objective, ours[1]) == ("2", 0.3, [3, 1, 3])


@pytest.mark.parametrize("library", [transformers, hf_compat])
def test_what_a_search_leaves(library, tmp_path):
    """No model and no optimizer, whether the last trial was pruned or not; upstream's leaves more."""
    left = []
    for upper in (1.0, 0.0):
        trainer = searching_trainer(library, tmp_path, eval_strategy="steps", eval_steps=1)
        pruner = optuna.pruners.ThresholdPruner(upper=upper)
        scores = iter([0.0, 0.0, 0.5, 0.5])
        trainer.hyperparameter_search(
            rates, lambda _, scores=scores: next(scores), n_trials=2, backend="optuna", pruner=pruner
        )
        left += [trainer.model is not None, trainer.optimizer is not None, trainer.lr_scheduler is not None]
    theirs = library is transformers
    assert left == [False, theirs, theirs, theirs, theirs, theirs]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_search_that_an_error_ends(tmp_path, error):
    """The Trainer keeps the model of the trial, its state and its log, in both libraries, and can be evaluated."""

    def outcome(library, folder):
        class Stops(library.TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == 1:
                    raise error("enough")

        trainer = searching_trainer(library, folder, logging_steps=1)
        trainer.add_callback(Stops())
        with pytest.raises(error, match="enough"):
            trainer.hyperparameter_search(
                rates, n_trials=2, backend="optuna", sampler=optuna.samplers.RandomSampler(seed=0)
            )
        weights = {name: value.tolist() for name, value in trainer.model.state_dict().items()}
        return weights, trainer.state.global_step, trainer.evaluate()["eval_loss"]

    assert outcome(hf_compat, tmp_path / "ours") == outcome(transformers, tmp_path / "theirs")


@pytest.mark.parametrize(("release", "seeds"), [("5.2", [5, 6, 7]), ("5.3", [42, 5, 6]), ("corrected", [5, 6, 7])])
def test_seed_of_the_weights(tmp_path, release, seeds):
    """Since 5.3 a trial's model has the seed of the trial before; before, and corrected, its own."""
    seen = []

    def model_init(trial):
        if trial is not None:
            seen.append(torch.initial_seed())
        return PlainModel()

    trainer = searching_trainer(hf_compat, tmp_path, model_init, semantics=release)
    trainer.hyperparameter_search(lambda trial: {"seed": 5 + trial.number}, n_trials=3, backend="optuna")
    assert seen == seeds


def test_checkpoint_for_ray(tmp_path):
    """What a trial leaves for Ray to go on from holds upstream's files, and a run goes on from it."""
    names = {}
    for library in (hf_compat, transformers):
        trainer = searching_trainer(library, tmp_path / library.__name__)
        trainer.train()
        folder = tmp_path / f"ray-{library.__name__}"
        trainer._tune_save_checkpoint(checkpoint_dir=str(folder))
        names[library] = {path.name for path in (folder / "checkpoint-2").iterdir()}
    assert names[hf_compat] == names[transformers] | {"lightning.json"}
    saved = str(tmp_path / "ray-hf_compat" / "checkpoint-2")
    assert incomplete_reason(saved) is None
    longer = searching_trainer(hf_compat, tmp_path / "longer", max_steps=4)
    assert longer.train(resume_from_checkpoint=saved).global_step == 4


RAY = """
import json, os
import ray
from ray import tune
import hf_compat
from hf_compat import Trainer, TrainerCallback, TrainingArguments, default_hp_space_ray
from ray.tune.schedulers import ASHAScheduler
from transformers.trainer_utils import default_hp_space_ray as upstream_space
from tests.support import helpers

folder = {folder!r}


class FailsOnce(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if args.learning_rate == 0.1 and state.global_step == 3 and not os.path.exists(folder + "/failed"):
            open(folder + "/failed", "w").close()
            raise ValueError("once")


def trainer_of(rate, name, callbacks=(), **given):
    args = TrainingArguments(
        folder + "/" + name, use_cpu=True, report_to="none", disable_tqdm=True, learning_rate=rate, num_train_epochs=2,
        per_device_train_batch_size=4, **given
    )
    rows = helpers.ListDataset(helpers.vector_rows(8))
    model = lambda: helpers.PlainModel()
    return Trainer(None, args, train_dataset=rows, eval_dataset=rows, model_init=model, callbacks=callbacks)


same_space = [item.__class__.__name__ for item in default_hp_space_ray(None).values()] == [
    item.__class__.__name__ for item in upstream_space(None).values()
]
plain = []
for given in ({{"eval_strategy": "epoch"}}, {{}}):  # evaluations draw from the generator that dropout draws from
    for rate in (0.001, 0.1):
        alone = trainer_of(rate, "alone", **given)
        alone.train()
        plain.append(alone.evaluate()["eval_loss"])
refused = []
try:
    trainer_of(0.1, "refused").hyperparameter_search(backend="ray", scheduler=ASHAScheduler())
except RuntimeError as error:
    refused.append(str(error))

ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
space = lambda _: {{"learning_rate": tune.grid_search([0.001, 0.1])}}
given = {{"hp_space": space, "n_trials": 1, "backend": "ray", "storage_path": folder + "/ray", "verbose": 0}}
during = trainer_of(1.0, "during", [FailsOnce()], eval_strategy="epoch", save_strategy="epoch")
best = during.hyperparameter_search(max_failures=1, **given)
after = trainer_of(1.0, "after", ray_scope="all").hyperparameter_search(hp_name=lambda trial: "named", **given)
reports = {{trial.config["learning_rate"]: trial.last_result["objective"] for trial in best.run_summary.trials}}
print("RESULT" + json.dumps({{
    "same_space": same_space,
    "plain": plain,
    "reports": [reports[0.001], reports[0.1]],
    "best": [best.objective, best.hyperparameters, best.run_id in {{t.trial_id for t in best.run_summary.trials}}],
    "after": [after.objective, after.hyperparameters],
    "refused": refused,
    "failed": os.path.exists(folder + "/failed"),
    "folders": sorted(os.listdir(folder + "/during")),
    "ids": sorted("run-" + trial.trial_id for trial in best.run_summary.trials),
}}))
"""


@pytest.mark.slow
def test_ray(tmp_path):
    """Trials in Ray's processes end where plain runs end, one that failed goes on from its checkpoint."""
    script = RAY.format(folder=str(tmp_path))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # for Ray's processes too
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.rpartition("RESULT")[2])
    assert result["same_space"]
    assert result["failed"]
    assert result["reports"][0] == result["plain"][0]  # the other one's dropout is another since it failed
    assert result["best"] == [min(result["reports"]), {"learning_rate": 0.1}, True]
    assert result["after"] == [min(result["plain"][2:]), {"learning_rate": 0.1}]
    assert result["folders"] == result["ids"]
    assert "`scheduler=AsyncHyperBandScheduler(...)` needs metrics during training" in result["refused"][0]
