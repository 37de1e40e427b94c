"""All that a card tells, and its text."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.model_card.eval_results import evaluation_rows, final_results, hyperparameters, rounded, table
from hf_compat.model_card.tasks import metric_tags, task_of, task_titles

__all__ = ["TrainingSummary", "as_list"]

_GENERATED = "generated_from_trainer"
_FILE_FORMATS = ("csv", "json", "pandas", "parquet", "text")
_FRAMEWORKS = (
    ("Transformers", "transformers"),
    ("Pytorch", "torch"),
    ("Datasets", "datasets"),
    ("Tokenizers", "tokenizers"),
    ("Lightning", "lightning"),
    ("hf_compat", "hf_compat"),
)
_NOTE = """
<!-- Written by hf_compat from what the Trainer knew of the run. Read it, complete it, then delete this comment. -->
"""


def as_list(value: Any) -> list[Any]:
    """Return ``value`` as a list: one string as its only item, None as none."""
    return [value] if isinstance(value, str) else list(value or ())


@dataclass(slots=True)
class TrainingSummary:
    """What a model card says of a model and of the run that trained it.

    Attributes:
        model_name: The card's title.
        language: Languages of the model.
        license: Its licence. Default: that of ``finetuned_from`` on the Hub, if that can be asked.
        tags: Tags of its metadata.
        finetuned_from: The model it was trained from.
        tasks: Tags of what it does.
        dataset: Names of the data sets, for people.
        dataset_tags: Their identifiers on the Hub.
        dataset_args: Their configurations, one for each identifier.
        dataset_metadata: More of their metadata, one dict for each identifier.
        task_titles: Titles of the tasks that results are listed under, by their tags.
        library_name: The library that loads the model.
        eval_results: The last evaluation's metrics.
        eval_lines: One row for each evaluation during training.
        hyperparameters: What the run was set to.
    """

    model_name: str
    language: str | list[str] | None = None
    license: str | None = None
    tags: str | list[str] | None = None
    finetuned_from: str | None = None
    tasks: str | list[str] | None = None
    dataset: str | list[str] | None = None
    dataset_tags: str | list[str] | None = None
    dataset_args: str | list[str] | None = None
    dataset_metadata: list[dict[str, Any]] | None = None
    task_titles: dict[str, str] = field(default_factory=lambda: task_titles(resolve_semantics()))
    library_name: str | None = "transformers"
    eval_results: dict[str, Any] | None = None
    eval_lines: list[dict[str, Any]] | None = None
    hyperparameters: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.license is None and self.finetuned_from:
            self.license = _license_of(self.finetuned_from)

    @classmethod
    def from_trainer(cls, trainer: Any, **known: Any) -> TrainingSummary:
        """Return the summary of ``trainer``'s run.

        Args:
            trainer: A Trainer, trained or not.
            **known: Attributes of the summary; those that are missing or None are found out as far as possible.
        """
        known = {**_data_set_facts(trainer), **{name: value for name, value in known.items() if value is not None}}
        known.setdefault("dataset", known.get("dataset_tags"))
        config = getattr(trainer.model, "config", None)
        origin = getattr(config, "_name_or_path", None)
        if origin and not os.path.isdir(origin):
            known.setdefault("finetuned_from", origin)
        known.setdefault("tasks", task_of(trainer.model))
        name = known.pop("model_name", None)
        name = Path(trainer.args.output_dir).name if name is None else name
        tags = as_list(known.pop("tags", None))
        history = trainer.state.log_history
        has_trained = any("train_runtime" in entry for entry in history)
        return cls(
            model_name=name or known.get("finetuned_from") or "",
            tags=tags if _GENERATED in tags else [*tags, _GENERATED],
            task_titles=task_titles(trainer.semantics),
            library_name=None if config is None else "transformers",
            eval_results=final_results(history),
            eval_lines=evaluation_rows(history) if has_trained else None,
            hyperparameters=hyperparameters(trainer.args, trainer.semantics, trainer.accelerator.data_parallel_size),
            **known,
        )

    def create_metadata(self) -> dict[str, Any]:
        """Return the card's metadata, by the Hub's names."""
        metrics = metric_tags(self.eval_results)
        listed = {
            "language": self.language,
            "tags": self.tags,
            "datasets": self.dataset_tags,
            "metrics": list(metrics),
        }
        lists = {name: [item for item in as_list(value) if item is not None] for name, value in listed.items()}
        rows = {
            "library_name": self.library_name,
            "language": lists["language"],
            "license": self.license,
            "base_model": self.finetuned_from,
            "tags": lists["tags"],
            "datasets": lists["datasets"],
            "metrics": lists["metrics"],
        }
        index = {"name": self.model_name, "results": self._results(metrics)}
        return {**{name: value for name, value in rows.items() if value}, "model-index": [index]}

    def _results(self, metrics: dict[str, str]) -> list[dict[str, Any]]:
        """Return the results for each task and data set; the Hub refuses those that lack any of the three."""
        tags = as_list(self.dataset_tags)
        arguments = [*as_list(self.dataset_args), *[None] * len(tags)]
        described = [*(self.dataset_metadata or ()), *[{}] * len(tags)]
        data_sets = {
            tag: {"name": name, "type": tag, **more, **({} if argument is None else {"args": argument})}
            for tag, name, argument, more in zip(tags, as_list(self.dataset), arguments, described, strict=False)
            if tag is not None
        }
        tasks = [task for task in as_list(self.tasks) if task in self.task_titles]
        if self.eval_results is None or not metrics:
            return []
        reached = self.eval_results
        values = [{"name": name, "type": tag, "value": reached[name]} for tag, name in metrics.items()]
        return [
            {"task": {"name": self.task_titles[task], "type": task}, "dataset": data_set, "metrics": values}
            for task, data_set in product(tasks, data_sets.values())
        ]

    def to_model_card(self) -> str:
        """Return the text of the card: metadata, results, hyperparameters, versions."""
        from huggingface_hub import CardData  # comes with datasets; loading it takes a while

        parts = [f"---\n{CardData(**self.create_metadata()).to_yaml()}\n---\n{_NOTE}", f"# {self.model_name}\n"]
        parts.append(self._introduction())
        for section in ("Model description", "Intended uses & limitations", "Training and evaluation data"):
            parts.append(f"## {section}\n\nMore information needed\n")
        parts.append("## Training procedure\n")
        chosen = "\n".join(f"- {name}: {value}" for name, value in (self.hyperparameters or {}).items())
        parts.append(f"### Training hyperparameters\n\n{chosen or 'More information needed'}\n")
        if self.eval_lines is not None:
            parts.append(f"### Training results\n\n{table(self.eval_lines) if self.eval_lines else ''}\n")
        parts.append(f"### Framework versions\n\n{_versions()}\n")
        return "\n".join(parts)

    def _introduction(self) -> str:
        origin = self.finetuned_from
        how = f"Fine-tuned from [{origin}](https://huggingface.co/{origin})" if origin else "Trained from scratch"
        names = [str(name) for name in as_list(self.dataset)]
        lines = [f"{how} on {', '.join(names) if names else 'a data set that is not named'}.\n"]
        if self.eval_results is not None:
            lines.append("Results on the evaluation set:\n")
            lines += [f"- {name}: {rounded(value)}" for name, value in self.eval_results.items()]
            lines.append("")
        return "\n".join(lines)


def _data_set_facts(trainer: Any) -> dict[str, Any]:
    """Return what a data set of ``datasets`` tells of where it comes from; one read from plain files tells nothing."""
    data = trainer.eval_dataset if trainer.eval_dataset is not None else trainer.train_dataset
    datasets: Any = sys.modules.get("datasets")
    if datasets is None or not isinstance(data, datasets.Dataset | datasets.IterableDataset):
        return {}
    tag = data.builder_name
    if tag is None or tag in _FILE_FORMATS:
        return {}
    described = [{"config": data.config_name, "split": str(data.split)}]
    return {"dataset_tags": [tag], "dataset_args": [data.config_name], "dataset_metadata": described}


def _license_of(model: str) -> str | None:
    """Return the licence that the Hub has for ``model``, or None if it has none or cannot be asked."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        tags = HfApi(library_name="hf_compat").model_info(model, timeout=10).tags or ()
    except Exception:  # a card without a licence is better than none
        return None
    return next((tag.removeprefix("license:") for tag in reversed(tags) if tag.startswith("license:")), None)


def _versions() -> str:
    loaded = ((title, getattr(sys.modules.get(package), "__version__", None)) for title, package in _FRAMEWORKS)
    return "\n".join(f"- {title} {version}" for title, version in loaded if version is not None)
