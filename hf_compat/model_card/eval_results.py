"""Results of a run in a model card: a row per evaluation, the final results, the hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.releases.semantics import Semantics

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["evaluation_rows", "final_results", "hyperparameters", "rounded", "table"]

_NOT_RESULTS = (
    "epoch",
    "eval_jit_compilation_time",
    "eval_runtime",
    "eval_samples_per_second",
    "eval_steps_per_second",
    "step",
    "total_flos",
)
NO_LOSS_YET = "No log"


def _title(metric: str) -> str:
    return " ".join(word.capitalize() for word in metric.removeprefix("eval_").split("_"))


def _is_evaluation(entry: Mapping[str, Any]) -> bool:
    return any(name.startswith("eval_") for name in entry)


def _metrics(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {_title(name): value for name, value in entry.items() if name not in _NOT_RESULTS}


def evaluation_rows(log_history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each evaluation during training: last training loss, epoch, update step, metrics."""
    rows: list[dict[str, Any]] = []
    training_loss: Any = NO_LOSS_YET
    for entry in log_history:
        if "train_runtime" in entry:
            return rows
        training_loss = entry.get("loss", training_loss)
        if _is_evaluation(entry):
            metrics = _metrics(entry)
            row = {"Training Loss": training_loss, "Epoch": entry.get("epoch"), "Step": entry.get("step")}
            if "Loss" in metrics:
                row["Validation Loss"] = metrics.pop("Loss")
            rows.append({**row, **metrics})
    return []  # the run did not finish


def final_results(log_history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the metrics of the last evaluation, or None."""
    last = next((entry for entry in reversed(log_history) if _is_evaluation(entry)), None)
    return None if last is None else _metrics(last)


def rounded(value: object) -> str:
    """Return ``value`` as text with at most four decimals; an empty string for None."""
    if value is None:
        return ""
    text = str(value)
    return f"{value:.4f}" if isinstance(value, float) and len(text.partition(".")[2]) > 4 else text


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return ``rows`` as a Markdown table with a column for each name in any row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([rounded(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "|".join(f":{'-' * width}:" for width in widths) + "|", *lines[1:]])


def _optimizer(args: TrainingArguments) -> str:
    name = getattr(args.optim, "value", args.optim)
    extra = args.optim_args or "No additional optimizer arguments"
    if "adam" not in name.lower():
        return f"Use {name} and the args are:\n{extra}"
    betas = f"betas=({args.adam_beta1},{args.adam_beta2})"
    return f"Use {name} with {betas} and epsilon={args.adam_epsilon} and optimizer_args={extra}"


def hyperparameters(args: TrainingArguments, semantics: Semantics, data_parallel_size: int) -> dict[str, Any]:
    """Return the hyperparameters of the run, by their names in model cards, without those that are off.

    Args:
        args: The training arguments.
        semantics: The transformers release to follow.
        data_parallel_size: Data-parallel world size.
    """
    args = for_run(args)
    devices, accumulated = args.world_size, args.gradient_accumulation_steps
    train, evaluated = args.train_batch_size, args.eval_batch_size
    total = train * data_parallel_size * accumulated
    ratio = 0.0 if semantics.warmup_ratio_replaces_steps else args.warmup_ratio
    rows: tuple[tuple[str, Any, bool], ...] = (
        ("learning_rate", args.learning_rate, True),
        ("train_batch_size", train, True),
        ("eval_batch_size", evaluated, True),
        ("seed", args.seed, True),
        ("distributed_type", "multi-GPU", devices > 1),
        ("num_devices", devices, devices > 1),
        ("gradient_accumulation_steps", accumulated, accumulated > 1),
        ("total_train_batch_size", total, total != train),
        ("total_eval_batch_size", evaluated * data_parallel_size, devices > 1),
        ("optimizer", _optimizer(args), bool(args.optim)),
        ("lr_scheduler_type", getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type), True),
        ("lr_scheduler_warmup_ratio", ratio, bool(ratio)),
        ("lr_scheduler_warmup_steps", args.warmup_steps, bool(args.warmup_steps)),
        ("training_steps", args.max_steps, args.max_steps != -1),
        ("num_epochs", args.num_train_epochs, args.max_steps == -1),
        ("mixed_precision_training", "Native AMP", bool(args.fp16)),
        ("label_smoothing_factor", args.label_smoothing_factor, args.label_smoothing_factor != 0),
    )
    return {name: value for name, value, is_shown in rows if is_shown}
