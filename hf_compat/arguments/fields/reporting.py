"""Fields of ``TrainingArguments`` for logging, evaluation and saving: the second part, in upstream's order."""

# ruff: noqa: RUF009  (option and listing return dataclass fields, which the rule cannot see)

from dataclasses import dataclass
from typing import Literal

from hf_compat.arguments.enums import HubStrategy, IntervalStrategy, SaveStrategy
from hf_compat.arguments.fields.options import Listed, listing, option
from hf_compat.arguments.fields.training import TrainingFields

__all__ = ["LOG_LEVELS", "ReportingFields"]

LOG_LEVELS: dict[str, int] = {
    "detail": 10,
    "debug": 10,
    "info": 20,
    "warning": 30,
    "error": 40,
    "critical": 50,
    "passive": -1,
}
"""Name to level of ``logging``; -1 does not change the level."""


@dataclass
class ReportingFields(TrainingFields):
    """Fields for logging, evaluation and saving."""

    logging_strategy: IntervalStrategy | str = option("steps", "When to log.")
    logging_steps: float = option(500, "Update steps between logs; below 1 a fraction of all update steps.")
    logging_first_step: bool = option(False, "Log the first update step too.")
    log_on_each_node: bool = option(True, "Log on local rank 0 of every node instead of rank 0 only.")
    logging_nan_inf_filter: bool = option(True, "Exclude NaN and infinite losses from the logged mean.")
    include_num_input_tokens_seen: str | bool = option("no", "Count input tokens: 'all', 'non_padding' or 'no'.")
    log_level: str = option("passive", "Log level of the main process.", choices=list(LOG_LEVELS))
    log_level_replica: str = option("warning", "Log level of the other processes.", choices=list(LOG_LEVELS))
    disable_tqdm: bool | None = option(
        None, "Print logs instead of progress bars. Default: if the log level is above warning."
    )
    report_to: Listed = option(None, "Trackers to report to: 'tensorboard', 'all' or 'none'.")
    run_name: str | None = option(None, "Name of the run in trackers.")
    project: str = option("huggingface", "Project of the run in Trackio.")
    trackio_space_id: str | None = option(None, "Trackio Space to deploy to.")
    trackio_bucket_id: str | None = option(None, "Trackio bucket to store in.")
    trackio_static_space_id: str | None | Literal[False] = option(  # noqa: RUF036  (parsers take the first type)
        None, "Static Trackio Space to export to."
    )

    eval_strategy: IntervalStrategy | str = option("no", "When to evaluate.")
    eval_steps: float | None = option(None, "Update steps between evaluations, or a fraction. Default: logging_steps.")
    eval_delay: float = option(0, "Epochs or update steps before the first evaluation.")
    per_device_eval_batch_size: int = option(8, "Samples per device in an evaluation batch.")
    prediction_loss_only: bool = option(False, "Keep only the loss in evaluation.")
    eval_on_start: bool = option(False, "Evaluate before the first update step.")
    eval_do_concat_batches: bool = option(True, "Concatenate predictions over batches.")
    eval_use_gather_object: bool = option(False, "Gather predictions as objects instead of tensors.")
    eval_accumulation_steps: int | None = option(None, "Evaluation batches after which predictions move to the CPU.")
    include_for_metrics: list[str] = listing("Additional inputs of compute_metrics: 'inputs', 'loss'.")
    batch_eval_metrics: bool = option(False, "Call compute_metrics on each batch.")

    save_only_model: bool = option(False, "Save only the model; training resumes with a new optimizer state.")
    save_strategy: SaveStrategy | str = option("steps", "When to save a checkpoint.")
    save_steps: float = option(500, "Update steps between checkpoints; below 1 a fraction of all update steps.")
    save_on_each_node: bool = option(False, "Save on every node, for nodes without a shared file system.")
    save_total_limit: int | None = option(None, "Maximum number of checkpoints to keep; the best one is never deleted.")
    enable_jit_checkpoint: bool = option(False, "Save a checkpoint on SIGTERM.")
    push_to_hub: bool = option(False, "Push the model to the Hub at each save.")
    hub_token: str | None = option(None, "Token for the Hub.", shown=False)
    hub_private_repo: bool | None = option(None, "Whether the repository is private.")
    hub_model_id: str | None = option(None, "Repository to push to.")
    hub_strategy: HubStrategy | str = option("every_save", "What is pushed, and when.")
    hub_always_push: bool = option(False, "Push even if the previous push is not done.")
    hub_revision: str | None = option(None, "Branch to push to.")
    load_best_model_at_end: bool = option(False, "Load the best checkpoint when training ends.")
    metric_for_best_model: str | None = option(None, "Metric that determines the best checkpoint. Default: the loss.")
    greater_is_better: bool | None = option(
        None, "Whether a larger metric is better. Default: False for a loss, else True."
    )
    ignore_data_skip: bool = option(False, "Resume at the first batch of the epoch instead of where it stopped.")
    restore_callback_states_from_checkpoint: bool = option(False, "Restore the callbacks' states from the checkpoint.")
