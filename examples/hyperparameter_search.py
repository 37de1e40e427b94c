"""Search learning rate, weight decay and width with Optuna; trials that do worse than most are stopped early.

``hyperparameter_search`` is transformers'; each trial is a run on Lightning. The model is plain torch; the digits come
with scikit-learn:

    pip install -e ".[optuna]" scikit-learn
    python examples/hyperparameter_search.py [output folder]
"""

import sys

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn

from hf_compat import Trainer, TrainingArguments

NUM_TRAIN, NUM_EVAL, TRIALS = 300, 500, 12
FOLDER = sys.argv[1] if len(sys.argv) > 1 else "hyperparameter_search_output"


class Reader(nn.Module):
    """Reads digits with one hidden layer."""

    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, pixels, labels):
        logits = self.layers(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def model_init(trial):
    """Return a new model; in a search, of the width that ``trial`` suggests."""
    return Reader() if trial is None else Reader(trial.suggest_categorical("width", [16, 64, 256]))


def space(trial):
    """Return values of training arguments to try."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-4, 1.0, log=True),
    }


def accuracy(prediction):
    """Return the fraction of pictures that are read correctly."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def samples():
    """Return the digits that models learn from, that trials are judged by, and that test what was found."""
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    rows = [{"pixels": image, "labels": int(label)} for image, label in zip(pixels, digits.target, strict=True)]
    return rows[:NUM_TRAIN], rows[NUM_TRAIN : NUM_TRAIN + NUM_EVAL], rows[NUM_TRAIN + NUM_EVAL :]


def trainer_of(model_init, **fields):
    """Return a Trainer with the arguments ``fields``, the others being the defaults."""
    args = TrainingArguments(
        FOLDER,
        num_train_epochs=5,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=NUM_EVAL,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        **fields,
    )
    train_split, eval_split, _ = samples()
    return Trainer(None, args, None, train_split, eval_split, model_init=model_init, compute_metrics=accuracy)


def final_accuracy(model_init, **fields):
    """Train with ``fields`` and return the accuracy on digits that played no part in the search."""
    trainer = trainer_of(model_init, **fields)
    trainer.train()
    return trainer.predict(samples()[2]).metrics["test_accuracy"]


def main():
    default = final_accuracy(model_init)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = optuna.storages.InMemoryStorage()
    best = trainer_of(model_init).hyperparameter_search(
        space,
        lambda metrics: metrics["eval_accuracy"],
        n_trials=TRIALS,
        direction="maximize",
        backend="optuna",
        study_name="digits",
        storage=trials,
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
    )
    table = optuna.load_study(study_name="digits", storage=trials).trials_dataframe(
        ("number", "params", "value", "state")
    )
    print(table.to_string(index=False))

    chosen = dict(best.hyperparameters)
    width = chosen.pop("width")
    found = final_accuracy(lambda: Reader(width), **chosen)
    print(f"\naccuracy {default:.1%} with the defaults, {found:.1%} with the best of {TRIALS} trials")


if __name__ == "__main__":
    main()
