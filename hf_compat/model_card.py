"""A model card: what a model is, how it was trained and what it reached, as a README for its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["evaluation_rows", "model_card"]

_HYPERPARAMETERS = (
    "learning_rate",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "seed",
    "optim",
    "lr_scheduler_type",
    "num_train_epochs",
    "max_steps",
    "mixed_precision",
)
_TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def evaluation_rows(log_history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row an evaluation: ``step``, ``epoch``, the last training loss, and the metrics without ``eval_``."""
    rows, training_loss = [], None
    for entry in log_history:
        training_loss = entry.get("loss", training_loss)
        metrics = {
            name.removeprefix("eval_"): value
            for name, value in entry.items()
            if name.startswith("eval_") and not name.endswith(_TIMES)
        }
        if metrics:
            rows.append({"step": entry["step"], "epoch": entry.get("epoch"), "training loss": training_loss, **metrics})
    return rows


def model_card(
    args: Any, log_history: Iterable[Mapping[str, Any]], *, title: str, finetuned_from: str | None, **metadata: Any
) -> str:
    """Return the text of a card: its metadata, results and hyperparameters.

    Args:
        args: The arguments of the run.
        log_history: What the run logged.
        title: The model's name.
        finetuned_from: The model it was trained from.
        **metadata: More fields of the card's metadata, such as ``language``, ``license`` and ``tags``; those that are
            None are left out.
    """
    from huggingface_hub import ModelCardData  # comes with datasets; loading it takes a while

    data = ModelCardData(
        base_model=finetuned_from, **{name: value for name, value in metadata.items() if value is not None}
    )
    origin = f", fine-tuned from {finetuned_from}" if finetuned_from else ""
    parts = [f"---\n{data.to_yaml()}\n---\n", f"# {title}\n", f"A model trained with hf_compat{origin}.\n"]
    rows = evaluation_rows(log_history)
    if rows:
        parts += ["## Evaluations\n", _table(rows)]
    chosen = "\n".join(f"- {name}: {_plain(getattr(args, name))}" for name in _HYPERPARAMETERS)
    parts += ["## Hyperparameters\n", f"{chosen}\n"]
    return "\n".join(parts)


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_plain(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(getattr(value, "value", value))
