"""The Hub's tags of tasks and metrics, and the task of each transformers model class."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from hf_compat.arguments.releases.semantics import Semantics

__all__ = ["METRICS", "TASKS", "Task", "metric_tags", "task_of", "task_titles"]


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the Hub.

    Attributes:
        tag: Its name in the metadata of a card.
        title: Its name to display; None if results are not listed under it.
        mappings: Mappings of transformers' ``modeling_auto`` that list its model classes.
        text_to_text: Whether it is a text-to-text task.
    """

    tag: str
    title: str | None
    mappings: tuple[str, ...] = ()
    text_to_text: bool = False


TASKS: tuple[Task, ...] = (
    Task("text-generation", "Causal Language Modeling", ("CAUSAL_LM",)),
    Task("image-classification", "Image Classification", ("IMAGE_CLASSIFICATION",)),
    Task("image-segmentation", "Image Segmentation", ("IMAGE_SEGMENTATION",)),
    Task("fill-mask", "Masked Language Modeling", ("MASKED_LM",)),
    Task("object-detection", "Object Detection", ("OBJECT_DETECTION",)),
    Task("question-answering", "Question Answering", ("QUESTION_ANSWERING",)),
    Task("text2text-generation", "Sequence-to-sequence Language Modeling", ("SEQ_TO_SEQ_CAUSAL_LM",), True),
    Task("text-classification", "Text Classification", ("SEQUENCE_CLASSIFICATION",)),
    Task("table-question-answering", "Table Question Answering", ("TABLE_QUESTION_ANSWERING",)),
    Task("token-classification", "Token Classification", ("TOKEN_CLASSIFICATION",)),
    Task("audio-classification", "Audio Classification", ("AUDIO_CLASSIFICATION",)),
    Task("automatic-speech-recognition", "Automatic Speech Recognition", ("CTC", "SPEECH_SEQ_2_SEQ")),
    Task("zero-shot-image-classification", None, ("ZERO_SHOT_IMAGE_CLASSIFICATION",)),
    Task("image-text-to-text", None, ("IMAGE_TEXT_TO_TEXT",)),
    Task("multiple-choice", "Multiple Choice"),
    Task("summarization", "Summarization", text_to_text=True),
    Task("translation", "Translation", text_to_text=True),
    Task("zero-shot-classification", "Zero Shot Classification"),
)

METRICS = (
    "accuracy",
    "bleu",
    "f1",
    "matthews_correlation",
    "pearsonr",
    "precision",
    "recall",
    "rouge",
    "sacrebleu",
    "spearmanr",
    "wer",
)
"""The metrics allowed in the metadata of a card."""


def task_titles(semantics: Semantics) -> dict[str, str]:
    """Return tag to title of the tasks that results are listed under."""
    dropped = semantics.drops_text_to_text_results
    return {task.tag: task.title for task in TASKS if task.title and not (dropped and task.text_to_text)}


def _classes(mapping: str) -> set[str]:
    auto: Any = sys.modules["transformers.models.auto.modeling_auto"]
    listed = getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES", {}).values()
    return {name for names in listed for name in ((names,) if isinstance(names, str) else names)}


def task_of(model: object) -> str | None:
    """Return the tag of the task of ``model``'s class, of several the last in ``TASKS``; None if unknown."""
    if "transformers.models.auto.modeling_auto" not in sys.modules:
        return None
    name = type(model).__name__
    found = [task.tag for task in TASKS if any(name in _classes(mapping) for mapping in task.mappings)]
    return found[-1] if found else None


def metric_tags(results: dict[str, Any] | None) -> dict[str, str]:
    """Return metric tag to result name, for each result with a tag."""
    tags = {}
    for name in results or ():
        plain = name.lower().replace(" ", "_")
        if plain in METRICS:
            tags[plain] = name
        elif plain == "rouge1":
            tags["rouge"] = name
    return tags
