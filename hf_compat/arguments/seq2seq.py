"""``Seq2SeqTrainingArguments``: the fields for generation."""

# ruff: noqa: RUF009  (option and listing return dataclass fields, which the rule cannot see)

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_compat.arguments.fields.options import option
from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["Seq2SeqTrainingArguments"]


@dataclass
class Seq2SeqTrainingArguments(TrainingArguments):
    """``TrainingArguments`` with five fields for generation in evaluation and prediction."""

    sortish_sampler: bool = option(False, "Without effect in every release.")
    predict_with_generate: bool = option(False, "Generate in evaluation and prediction.")
    generation_max_length: int | None = option(None, "Maximum length of generated sequences, in tokens.")
    generation_num_beams: int | None = option(None, "Number of beams; 1 is greedy search.")
    generation_config: str | Path | Any | None = option(None, "Generation config: a name, a path or an instance.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-serializable values."""
        given = super().to_dict()
        return {name: value.to_dict() if hasattr(value, "to_dict") else value for name, value in given.items()}
