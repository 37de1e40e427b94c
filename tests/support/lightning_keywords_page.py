"""``docs/lightning_keywords.md``, from its table: ``python -m tests.support.lightning_keywords_page``."""

from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "lightning_keywords.md"
INTRODUCTION = """\
---
hide: [toc]
---

# Lightning's keywords

`Trainer(lightning={...})` takes the keywords of `lightning.Trainer`. A keyword that duplicates a field of
`TrainingArguments` sets that field in a copy of the arguments, and is refused before training if you set the field to a
different value; the error names both. With `deepspeed`, set such fields in the arguments instead.

One update step is one Lightning batch: where Lightning counts training batches, update steps are counted.

This page is generated from `tests/support/lightning_keywords_page.py`.

| keyword | what it does here | refused |
|---|---|---|
"""


class Row(NamedTuple):
    """What something of Lightning's does in a run, and which values and combinations are refused, with the reason."""

    note: str
    refuses: str = ""


_LIMIT = "batches of each {}, a number or a fraction."
_PASSED = "As in Lightning."
_WITH_BARE = "Not with `barebones`."

KEYWORDS: dict[str, Row] = {
    "accelerator": Row("The device, which the training arguments choose.", "A different device."),
    "accumulate_grad_batches": Row("`gradient_accumulation_steps`."),
    "barebones": Row(
        "No logs, loggers, progress bars, model summary or checkpoints: `logging_strategy='no'`, `save_strategy='no'`, "
        "`report_to='none'`, `disable_tqdm=True`. Evaluations remain; Lightning callbacks do not get their metrics.",
        "Anything that it switches off; `ModelCheckpoint` and `EarlyStopping`.",
    ),
    "benchmark": Row(_PASSED),
    "callbacks": Row("Refused.", "Always: use `Trainer(callbacks=[...])`, which takes Lightning callbacks too."),
    "check_val_every_n_epoch": Row(
        "Evaluates only every n-th epoch; None counts the update steps of `val_check_interval` across epochs."
    ),
    "default_root_dir": Row("Where Lightning's loggers, callbacks and profilers write. Default: `output_dir`."),
    "detect_anomaly": Row(_PASSED, _WITH_BARE),
    "deterministic": Row(_PASSED),
    "devices": Row(
        "Processes that the Trainer starts, with a `strategy`.", "A number that differs from the launcher's."
    ),
    "enable_autolog_hparams": Row("As in Lightning; the module has no hyperparameters of its own."),
    "enable_checkpointing": Row("False is `save_strategy='no'`."),
    "enable_model_summary": Row("As in Lightning, but False by default.", _WITH_BARE),
    "enable_progress_bar": Row(
        "True adds Lightning's bar to transformers'; False is `disable_tqdm=True`, and no bar of Lightning either.",
        "False with a progress bar in `callbacks`.",
    ),
    "fast_dev_run": Row(
        "Runs that many update steps of one epoch, then one evaluation of as many batches; no loggers, checkpoints or "
        "early stopping. Overrides conflicting fields and keywords.",
        _WITH_BARE,
    ),
    "gradient_clip_algorithm": Row(
        "`'value'` clips each element of the gradients, after a gradient scaler has unscaled them; `grad_norm` in the "
        "log is the norm before.",
        "`'value'` without `gradient_clip_val`, and with DeepSpeed, whose engine only clips by norm.",
    ),
    "gradient_clip_val": Row("`max_grad_norm`, unless gradients are clipped by value."),
    "inference_mode": Row(
        "True: `evaluate` and `predict` outside a fit run under `torch.inference_mode` wherever Lightning's do (not "
        "with gloo or FSDP). False by default, as in transformers; inside a fit always `torch.no_grad`."
    ),
    "limit_predict_batches": Row("First " + _LIMIT.format("`predict`") + " Default: `limit_test_batches`."),
    "limit_test_batches": Row("First " + _LIMIT.format("`predict`")),
    "limit_train_batches": Row(
        "First update steps of each epoch, a number or a fraction; taken into account by the schedule."
    ),
    "limit_val_batches": Row("First " + _LIMIT.format("evaluation"), "0 with an `eval_strategy`."),
    "log_every_n_steps": Row(
        "Update steps between logs of Lightning callbacks. Default: those of the Trainer's logs, by `logging_steps` if "
        "that is set, or the last of each epoch; otherwise, and with `logging_strategy='no'`, Lightning's 50.",
    ),
    "logger": Row(
        "Loggers that get the Trainer's logs and those of Lightning callbacks; True is Lightning's default, "
        "TensorBoard or CSV below `default_root_dir`; False is `report_to='none'`.",
        _WITH_BARE,
    ),
    "max_epochs": Row(
        "`num_train_epochs`; with `max_steps`, whichever is reached first ends the run.", "-1 without an end."
    ),
    "max_steps": Row("`max_steps`."),
    "max_time": Row("As in Lightning: a `Timer` ends the run after an update step."),
    "min_epochs": Row("Callbacks cannot end the run earlier; an empty data loader can.", "More than the run has."),
    "min_steps": Row(
        "The same in update steps; as in Lightning, with one epoch unless `min_epochs` is given.",
        "More than the run has.",
    ),
    "model_registry": Row("As in Lightning, for its callbacks."),
    "num_nodes": Row(
        "Nodes of a run whose processes the Trainer starts.", "A number that differs from the launcher's."
    ),
    "num_sanity_val_steps": Row(
        "Batches of an evaluation before the first update step, -1 for all; 0 by default, as transformers has none. "
        "Nothing is logged, no `TrainerCallback` is called, and random states are restored. Not in a resumed run.",
        "A number without an `eval_dataset`; with `barebones`.",
    ),
    "overfit_batches": Row("`train_sampling_strategy='sequential'` on the first batches, and as many for evaluation."),
    "plugins": Row("Precision, cluster environments and others; a `CheckpointIO` for Lightning's own checkpoints."),
    "precision": Row("`bf16` or `fp16`, or the whole model in a dtype, as by Lightning's plugin."),
    "profiler": Row("As in Lightning; its training step is an update step.", _WITH_BARE),
    "reload_dataloaders_every_n_epochs": Row(
        "Asks `get_train_dataloader` for a new loader at the start of each n-th epoch, and evaluation loaders with "
        "persistent workers are created again.",
        "A new loader of a different length: update steps and learning rates are planned with the first one.",
    ),
    "strategy": Row("The strategy of several processes; see [several processes](distributed.md)."),
    "sync_batchnorm": Row(_PASSED, "With `auto_find_batch_size` on several processes."),
    "use_distributed_sampler": Row(
        "False: each rank reads its own loader with its own sampler, and predictions are gathered unchanged. "
        "Otherwise batches are sharded as in transformers, whatever the sampler.",
        "False with `split_batches` or `dispatch_batches` in `accelerator_config`.",
    ),
    "val_check_interval": Row(
        "Evaluates after a fraction of an epoch, a number of update steps within it, or a time (`'00:01:30:00'`, a "
        "`timedelta`, a dict of its keywords).",
        "With `load_best_model_at_end`, unless `save_strategy='best'` or at the end of epochs; more update steps than "
        "an epoch has; a fraction of data without a length.",
    ),
}
"""Each keyword of ``lightning.Trainer`` → what becomes of it."""


def page() -> str:
    """Return the text of the page."""
    return INTRODUCTION + "".join(f"| `{name}` | {one.note} | {one.refuses} |\n" for name, one in KEYWORDS.items())


if __name__ == "__main__":
    PAGE.write_text(page())
