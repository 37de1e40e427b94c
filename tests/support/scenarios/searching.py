"""Searches over arguments, and runs that look for the batch size that memory suffices for."""

from __future__ import annotations

from typing import Any

from hf_compat.checkpoint.finding import list_checkpoints
from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, language_model, plain


def search(kit: Kit, build: Any, model: Any, fields: Any, **given: Any) -> Any:
    """Search with optuna and keep the best trial, or trials, and where the Trainer was left."""
    trainer = build(kit, fields=fields, model_init=lambda: kit.model(model))
    best = trainer.hyperparameter_search(backend="optuna", **given)
    kit.keep("best", best)
    state = trainer.state
    kit.keep("last trial", [state.trial_name, state.trial_params, state.is_hyper_param_search, state.log_history])
    names = ("learning_rate", "num_train_epochs", "seed", "per_device_train_batch_size", "weight_decay")
    kit.keep("arguments", {name: getattr(trainer.args, name) for name in names})
    return trainer


def _space(trial: Any) -> dict[str, Any]:
    """Return values of types other than the arguments', which they are cast to, and one without an argument."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
        "seed": trial.suggest_float("seed", 1, 40),
        "weight_decay": trial.suggest_int("weight_decay", 0, 1),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [2, 4]),
        "no_argument": 1,
    }


@scenario()
def search_with_pruning(kit: Kit) -> None:
    """Pruned trials end at an evaluation; each trial saves into a folder of its own."""
    import optuna

    search(
        kit,
        plain,
        helpers.PlainModel,
        {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        hp_space=_space,
        hp_name=lambda trial: f"trial-{trial.number}-{trial.params['seed']:.0f}",
        n_trials=4,
        sampler=optuna.samplers.TPESampler(seed=3),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
    )


@scenario()
def search_the_default_space(kit: Kit) -> None:
    """Nothing is evaluated while a trial trains, so it is scored afterwards, by the sum of its metrics."""
    import optuna

    given = {"n_trials": 3, "direction": "maximize", "sampler": optuna.samplers.RandomSampler(seed=0)}
    fields = {"save_strategy": "epoch"}
    search(kit, classifier, helpers.bert_classifier, fields, **given)


@scenario()
def search_with_two_objectives(kit: Kit) -> None:
    import optuna

    search(
        kit,
        classifier,
        helpers.bert_classifier,
        {"eval_strategy": "epoch"},
        hp_space=_space,
        compute_objective=lambda metrics: (metrics["eval_loss"], metrics["eval_accuracy"]),
        n_trials=3,
        direction=["minimize", "maximize"],
        sampler=optuna.samplers.RandomSampler(seed=1),
    )


def _memory_for(kit: Kit, most: int, at_step: int = 1) -> Any:
    """Return a callback that runs out of memory at update step ``at_step`` with more than ``most`` samples a batch."""

    class Memory(kit.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.train_batch_size > most and state.global_step == at_step:
                raise RuntimeError("CUDA out of memory.")

    return Memory()


@scenario()
def find_batch_size(kit: Kit) -> None:
    """A run that starts again goes on with the weights, the optimizer and the random state that it had."""
    fields = {"auto_find_batch_size": True, "per_device_train_batch_size": 6, "num_train_epochs": 2}
    trainer = language_model(kit, fields={**fields, "eval_strategy": "epoch"}, callbacks=[_memory_for(kit, 4)])
    kit.train(trainer)
    kit.keep("batch size", [trainer._train_batch_size, trainer.args.train_batch_size])
    kit.train(trainer)


@scenario()
def find_batch_size_while_accumulating(kit: Kit) -> None:
    """Checkpoints of a size that did not do are replaced by those of the one that does."""
    fields = {"auto_find_batch_size": True, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1}
    kit.train(plain(kit, fields=fields, callbacks=[_memory_for(kit, 2, at_step=2)]))


def _found(kit: Kit) -> Any:
    fields = {"auto_find_batch_size": True, "num_train_epochs": 2, "save_strategy": "epoch"}
    return plain(kit, fields=fields, callbacks=[_memory_for(kit, 3)])


@scenario(resumes_exactly=True)
def resume_with_the_batch_size_found(kit: Kit) -> None:
    folder = kit.stage(lambda first: first.train(_found(first)))
    trainer = _found(kit)
    kit.train(trainer, resume_from_checkpoint=str(list_checkpoints(folder)[0].path))  # of the first epoch
    kit.keep("batch size", trainer._train_batch_size)
