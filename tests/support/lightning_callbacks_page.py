"""``docs/lightning_callbacks.md``, made by ``python -m tests.support.lightning_callbacks_page``."""

from pathlib import Path

from hf_compat.engine.lightning_callbacks import NEVER_CALLED, OF_SANITY_CHECK, REFUSED_CALLBACKS
from tests.support.lightning_keywords_page import Row

PAGE = Path(__file__).parents[2] / "docs" / "lightning_callbacks.md"
INTRODUCTION = """\
# Lightning's callbacks

`Trainer(callbacks=[...])` takes callbacks of transformers and of Lightning, mixed; `add_callback`, `pop_callback` and
`remove_callback` take both too. Each callback of `lightning.pytorch.callbacks` either works or is
refused before training, with the reason and what to use instead. The same holds for subclasses.

One update step is one Lightning batch: hooks, `global_step` and `every_n_train_steps` count update steps. Evaluations
inside the fit reach callbacks as validations, and their metrics as `eval_*` in `callback_metrics`. An evaluation at the
end of an epoch comes after `on_train_epoch_end` of callbacks, where plain Lightning's comes before: it measures what
they have changed there, such as averaged or pruned weights.

What a callback logs is at the update step that is under way, counted from 1 as in the Trainer's logs, where plain
Lightning counts from 0. In a run that resumes within an epoch `batch_idx`, `trainer.is_last_batch` and all counters go
on as in plain Lightning, which does not call `on_train_epoch_start` there either; a `TrainerCallback` gets
`on_epoch_begin`, as in transformers.

The states of callbacks, and what they add to checkpoints in `on_save_checkpoint`, are in a checkpoint's `lightning.pt`;
weights that they put into its `state_dict` become the checkpoint's weights.

This page is generated from `tests/support/lightning_callbacks_page.py` and `hf_compat/engine/lightning_callbacks.py`.

## Several runs of one Trainer

Each run begins with its Lightning callbacks as they were given: a second `train()`, the trials of a search, a restart
of `auto_find_batch_size`. One that resumes restores the checkpoint's states into them. You pass a callback once and
read it after each run (`best_model_path`, a list of losses); what you have read stays as it is, and what you assign
between two runs counts as given.

Only what a callback has for itself is put back: numbers, strings, tensors, metrics, and lists, dicts and objects of
these. What you hold too, such as a list that you passed to the callback to write to, a model or a logger, goes on
through all runs. Files of an earlier run stay, so that `ModelCheckpoint` appends `-v1` to a name that exists.
"""

_WITHOUT_EVALUATION = "a `monitor` that starts with `eval_` under `eval_strategy='no'`: no evaluation computes it"
_SHARDED = "a model that the strategy shards: it needs the whole model on each rank"

_LOGS = (
    "Logs to every Lightning logger, also those of `report_to`, every `logging_steps`, beside the loss of the same "
    "update step"
)

SUPPORT: dict[str, Row] = {
    "BackboneFinetuning": Row(
        "Freezes the model's `backbone` and adds it to the optimizer at its epoch. The schedule continues for the "
        "other parameters; the backbone keeps the rate that the callback gives it. Resumes with its parameter groups.",
    ),
    "BaseFinetuning": Row(
        "The same for what a subclass freezes and adds; the module has the model's attributes, such as "
        "`pl_module.backbone`.",
    ),
    "Callback": Row(
        "Subclasses receive all hooks except those listed below. A batch of a training hook is a window: the batches "
        "of one update step, in `batch.batches`.",
    ),
    "Checkpoint": Row("The base class of checkpoint callbacks: called after all others."),
    "DeviceStatsMonitor": Row(f"{_LOGS}; also every so many batches of an evaluation. Needs one, and psutil."),
    "EarlyStopping": Row(
        "Monitors metrics of evaluations (`eval_loss`) and logged ones (`loss`, `grad_norm`, `learning_rate`), after "
        "each evaluation; under `eval_strategy='no'` after each epoch. A resumed run has the `patience` that it was "
        "given.",
        refuses=_WITHOUT_EVALUATION,
    ),
    "EMAWeightAveraging": Row(
        "As `WeightAveraging`. Until `update_starting_at_step` evaluations and checkpoints have the weights of the "
        "beginning, and `update_starting_at_epoch` alone delays nothing, as in Lightning, with a warning.",
        refuses=_SHARDED,
    ),
    "LambdaCallback": Row("Calls its functions, in all hooks except those listed below."),
    "LearningRateMonitor": Row(
        f"{_LOGS}: the rate of that step. With `logging_interval='epoch'` at the first update step of each epoch. "
        "Needs a logger.",
    ),
    "ModelCheckpoint": Row(
        "Saves Lightning checkpoints (`.ckpt`) beside the run's own folders, with `save_last`, `every_n_train_steps` "
        "(update steps), `every_n_epochs`, `monitor` and `save_on_exception`: after each evaluation; under "
        "`eval_strategy='no'` after each epoch. The files, `{epoch}` in their names (from 0), `last.ckpt` and the best "
        "are those of a plain Lightning run, also in a resumed run; only `every_n_train_steps` with a `monitor` saves "
        "before the evaluation of the same update step and judges by the previous one, as Lightning does under manual "
        "optimization, with a warning. A run resumes from its own folders, not from these files.",
        refuses=f"`train_time_interval`, which Lightning ignores under manual optimization: use "
        f"`every_n_train_steps`; {_WITHOUT_EVALUATION}",
    ),
    "ModelPruning": Row(
        "Prunes at the end of epochs. Checkpoints contain the pruned weights without masks, as Lightning's do: a "
        "resumed run warns, trains what was pruned, and prunes anew at the end of its next epoch.",
        refuses=f"`make_pruning_permanent=False` when checkpoints are saved, which could not be loaded; {_SHARDED}",
    ),
    "ModelSummary": Row("Prints its table at the start of the fit; use `max_depth=2` or more to see the layers."),
    "OnExceptionCheckpoint": Row(
        "Saves a Lightning checkpoint (`.ckpt`) when the run ends with an error; runs do not resume from it."
    ),
    "ProgressBar": Row("The base class of progress bars: they count update steps."),
    "RichModelSummary": Row("As `ModelSummary`. Needs rich."),
    "RichProgressBar": Row(
        "Counts update steps, in place of transformers' bar; logs are printed above it. Needs rich."
    ),
    "SpikeDetection": Row("Ends the run with an error on a spike of the loss of an update step."),
    "ThroughputMonitor": Row(
        "Measures update steps and evaluations. `batch_size_fn` and `length_fn` get the Trainer's batches, and count "
        "all of an update step. `flops_per_batch` is read from the model. Logs every `logging_steps`.",
    ),
    "Timer": Row("Measures time, and stops the run after its `duration`. Resumes with the elapsed time."),
    "TQDMProgressBar": Row("Counts update steps, beside transformers' bar unless `disable_tqdm=True`."),
    "WeightAveraging": Row(
        "Averages the weights: evaluations, checkpoints and the model after the run have the average. A resumed run "
        "continues with both weights and average. Files of a `ModelCheckpoint` with `save_weights_only=True` have the "
        "weights alone, as in Lightning, with a warning.",
        refuses=_SHARDED,
    ),
}
"""Each callback that ``lightning.pytorch.callbacks`` exports and that works → what becomes of it."""

OF_OTHERS: dict[str, Row] = {
    "FinetuningScheduler": Row(
        "Of the package finetuning-scheduler: thaws the model phase by phase, by epoch or by its `FTSEarlyStopping`, "
        "and adds the parameters to the optimizer of the run, whose schedule continues for them too.",
        refuses="`restore_best=True`, which loads a Lightning checkpoint in the middle of the run: pass False; no "
        "`FTSCheckpoint`, or `FTSEarlyStopping` without `epoch_transitions_only=True`, with a monitor such as "
        "`eval_loss`: it would add its own, which monitor `val_loss`; resuming from a checkpoint",
    ),
}
"""Callbacks of other packages that a run has to know → what becomes of them."""


def page() -> str:
    """Return the text of the page."""
    works = [
        f"| `{name}` | {one.note} | {one.refuses} |"
        for name, one in sorted({**SUPPORT, **OF_OTHERS}.items(), key=lambda item: item[0].lower())
    ]
    refused = [f"| `{name}` | {one.reason} | {one.instead} |" for name, one in sorted(REFUSED_CALLBACKS.items())]
    never = ", ".join(f"`{hook}`" for hook in NEVER_CALLED)
    checked = " and ".join(f"`{hook}`" for hook in OF_SANITY_CHECK)
    return "\n".join(
        [
            INTRODUCTION,
            "## Supported\n\n| callback | what it does here | refused with |\n|---|---|---|",
            *works,
            "\n## Refused\n\n| callback | reason | instead |\n|---|---|---|",
            *refused,
            f"\n## Hooks that no run calls\n\n{never}. A callback that defines no other hook is refused.",
            f"\n{checked} are only called with `lightning={{'num_sanity_val_steps': n}}`.\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
