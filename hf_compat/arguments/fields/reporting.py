"""Fields of ``TrainingArguments``: logs, evaluation, checkpoints. The second part of transformers 5.23.0's order."""

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
"""Name to level of ``logging``; -1 leaves the level as it is."""


@dataclass
class ReportingFields(TrainingFields):
    """What is logged, evaluated and saved, and on which update steps."""

    logging_strategy: IntervalStrategy | str = option("steps", "When to log.")
    logging_steps: float = option(500, "Update steps between logs; below 1 a share of all update steps.")
    logging_first_step: bool = option(False, "Log the first update step too.")
    log_on_each_node: bool = option(True, "Whether the first process of every node logs, or of the first alone.")
    logging_nan_inf_filter: bool = option(True, "Leave NaN and infinite losses out of the logged mean.")
    include_num_input_tokens_seen: str | bool = option("no", "Count input tokens: 'all', 'non_padding' or 'no'.")
    log_level: str = option("passive", "Log level of the main process.", choices=list(LOG_LEVELS))
    log_level_replica: str = option("warning", "Log level of the other processes.", choices=list(LOG_LEVELS))
    disable_tqdm: bool | None = option(None, "Print instead of progress bars. Default: if logs are above warnings.")
    report_to: Listed = option(None, "Trackers to write to: 'tensorboard', 'all' or 'none'.")
    run_name: str | None = option(None, "Name of the run in trackers.")
    project: str = option("huggingface", "Project of the run in Trackio.")
    trackio_space_id: str | None = option(None, "Space that Trackio deploys to.")
    trackio_bucket_id: str | None = option(None, "Bucket that Trackio stores to.")
    trackio_static_space_id: str | None | Literal[False] = option(  # noqa: RUF036  (parsers take the first type)
        None, "Static Space that Trackio exports to."
    )

    eval_strategy: IntervalStrategy | str = option("no", "When to evaluate.")
    eval_steps: float | None = option(None, "Update steps between evaluations, or a share. Default: logging_steps.")
    eval_delay: float = option(0, "Epochs or update steps before the first evaluation.")
    per_device_eval_batch_size: int = option(8, "Samples per device in an evaluation batch.")
    prediction_loss_only: bool = option(False, "Keep the loss alone of an evaluation.")
    eval_on_start: bool = option(False, "Evaluate before the first update step.")
    eval_do_concat_batches: bool = option(True, "Join the batches of predictions.")
    eval_use_gather_object: bool = option(False, "Gather predictions as objects, not as tensors.")
    eval_accumulation_steps: int | None = option(None, "Batches between moves of predictions to the CPU.")
    include_for_metrics: list[str] = listing("What compute_metrics is given besides: 'inputs', 'loss'.")
    batch_eval_metrics: bool = option(False, "Call compute_metrics on each batch.")

    save_only_model: bool = option(False, "Save the weights alone: such a checkpoint resumes with a fresh optimizer.")
    save_strategy: SaveStrategy | str = option("steps", "When to save a checkpoint.")
    save_steps: float = option(500, "Update steps between checkpoints; below 1 a share of all update steps.")
    save_on_each_node: bool = option(False, "Whether every node saves, for nodes without a common disk.")
    save_total_limit: int | None = option(None, "Checkpoints to keep, the best one aside.")
    enable_jit_checkpoint: bool = option(False, "Save a checkpoint on SIGTERM.")
    push_to_hub: bool = option(False, "Push the model to the Hub at each save.")
    hub_token: str | None = option(None, "Token for the Hub.", shown=False)
    hub_private_repo: bool | None = option(None, "Whether the repository is private.")
    hub_model_id: str | None = option(None, "Repository to push to.")
    hub_strategy: HubStrategy | str = option("every_save", "What is pushed, and when.")
    hub_always_push: bool = option(False, "Push even if the push before is not done.")
    hub_revision: str | None = option(None, "Branch to push to.")
    load_best_model_at_end: bool = option(False, "Load the best checkpoint when training ends.")
    metric_for_best_model: str | None = option(None, "Metric that tells the best checkpoint. Default: the loss.")
    greater_is_better: bool | None = option(None, "Whether a larger metric is better. Default: unless it is a loss.")
    ignore_data_skip: bool = option(False, "Start the epoch anew on resuming, rather than where it stopped.")
    restore_callback_states_from_checkpoint: bool = option(False, "Give callbacks the states saved with a checkpoint.")
