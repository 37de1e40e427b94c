"""The Trainer's model card, and the methods that are not carried out yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from hf_compat.errors import NotCarriedOutError
from hf_compat.model_card import model_card
from hf_compat.trainer.training import TrainingMethods

__all__ = ["SharingMethods"]


def _as_list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


class SharingMethods(TrainingMethods):
    """``create_model_card``, ``push_to_hub``, ``hyperparameter_search``, ``end``."""

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,  # noqa: A002 - upstream's name
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write ``README.md`` into the output folder: metadata, evaluations and hyperparameters of the run.

        Args:
            language: The language of the model.
            license: Its licence.
            tags: Tags besides ``generated_from_trainer``.
            model_name: Its name. Default: the output folder's.
            finetuned_from: The model it was trained from. Default: the one the model was loaded from.
            tasks: What it does, as tags.
            dataset_tags: Identifiers of the data sets on the Hub.
            dataset: Names of the data sets, as tags.
            dataset_args: Their configurations, as tags.
        """
        if not self.is_world_process_zero():
            return
        config = getattr(self.model, "config", None)
        origin = finetuned_from or getattr(config, "_name_or_path", None) or None
        described = [*_as_list(tags), *_as_list(tasks), *_as_list(dataset), *_as_list(dataset_args)]
        text = model_card(
            self.args,
            self.state.log_history,
            title=model_name or Path(self.args.output_dir).name,
            finetuned_from=origin,
            language=language,
            license=license,
            library_name="transformers" if config is not None else None,
            tags=["generated_from_trainer", *described],
            datasets=_as_list(dataset_tags) or None,
        )
        Path(self.args.output_dir, "README.md").write_text(text, encoding="utf-8")

    def push_to_hub(self, *_: Any, **__: Any) -> NoReturn:
        """Say that pushing is not carried out yet.

        Raises:
            NotCarriedOutError: Always.
        """
        raise NotCarriedOutError(
            "`push_to_hub` is not carried out yet: upload the output folder with `huggingface_hub.upload_folder`."
        )

    def hyperparameter_search(self, *_: Any, **__: Any) -> NoReturn:
        """Say that searches are not carried out yet.

        Raises:
            NotCarriedOutError: Always.
        """
        raise NotCarriedOutError(
            "`hyperparameter_search` is not carried out yet: build a Trainer for each trial in a study of your own."
        )

    def end(self) -> None:
        """Close what a run holds open: nothing, with one process; Lightning closes its loggers with each run."""
