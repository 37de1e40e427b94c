"""The Trainer's data loaders, samplers and columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

from hf_compat.data import columns
from hf_compat.data.samplers import eval_sampler, train_sampler
from hf_compat.data.workers import begin_worker
from hf_compat.errors import DataError
from hf_compat.metrics import has_length
from hf_compat.overriding import call_as_defined
from hf_compat.seeding import seed_worker
from hf_compat.trainer.base import TrainerBase
from hf_compat.trainer.preemption import Preemption

__all__ = ["DataMethods"]


class DataMethods(TrainerBase):
    """Loaders for training, evaluation and prediction, as transformers' Trainer builds them."""

    _train_batch_size: int
    _signature_columns: list[str] | None = None
    _eval_dataloaders: dict[str, DataLoader[Any]]
    _preemption: Preemption | None = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the training loader, shuffled by seed and epoch.

        Raises:
            DataError: If there is no ``train_dataset``.
        """
        if self.train_dataset is None:
            raise DataError("`train_dataset=None`: pass the data set to train on to the Trainer.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the evaluation loader, in order.

        Args:
            eval_dataset: A data set, or the name of one in ``self.eval_dataset``; default: ``self.eval_dataset``.

        Raises:
            DataError: If there is none.
        """
        if eval_dataset is None and self.eval_dataset is None:
            raise DataError("`eval_dataset=None`: pass the data set to evaluate on to the Trainer or to `evaluate`.")
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        keeps_workers = self.args.dataloader_persistent_workers
        if keeps_workers and key in self._eval_dataloaders:
            return self._eval_dataloaders[key]
        if isinstance(eval_dataset, str):
            dataset = self.eval_dataset[eval_dataset]
        else:
            dataset = eval_dataset if eval_dataset is not None else self.eval_dataset
        loader = self._get_dataloader(
            dataset=dataset,
            description="Evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=key,
        )
        if keeps_workers:
            self._eval_dataloaders[key] = loader
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Return the loader that :meth:`predict` goes through, in order."""
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Sampler[Any] | None] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader[Any]:
        """Return a prepared loader of ``dataset`` without the columns that the model does not take."""
        collator = self.data_collator
        if columns.is_arrow_dataset(dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(collator, description=description)
        args = self.args
        settings: dict[str, Any] = {
            "batch_size": batch_size,
            "collate_fn": collator,
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory,
            "persistent_workers": args.dataloader_persistent_workers,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "in_order": args.dataloader_in_order,
        }
        if not isinstance(dataset, IterableDataset):
            named = ("train_dataset" if is_training else "eval_dataset", dataset)
            sampler = call_as_defined(sampler_fn, named) if sampler_fn is not None else None
            if sampler is not None:
                settings["sampler"] = sampler
            settings["drop_last"] = args.dataloader_drop_last
            if is_training:
                settings["worker_init_fn"] = partial(
                    seed_worker, num_workers=args.dataloader_num_workers, rank=self.accelerator.data_parallel_rank
                )
        if self._preemption is not None and args.dataloader_num_workers > 0:
            signals, seed = self._preemption.signals(), settings.get("worker_init_fn")
            settings["worker_init_fn"] = partial(begin_worker, signals=signals, then=seed)
        loader: DataLoader[Any] = self.accelerator.prepare(DataLoader(dataset, **settings))
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        """Return the sampler that ``train_sampling_strategy`` asks for; None for a data set without length."""
        args = self.args
        return train_sampler(
            self.train_dataset if train_dataset is None else train_dataset,
            args.train_sampling_strategy,
            args.train_batch_size * args.gradient_accumulation_steps,
            length_column_name=args.length_column_name,
            model_input_name=self._model_input_name(),
        )

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[Any] | None:
        """Return the sampler of an evaluation: in order, or by length when training groups by length."""
        args = self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        return eval_sampler(
            eval_dataset,
            args.train_sampling_strategy,
            args.eval_batch_size,
            length_column_name=args.length_column_name,
            model_input_name=self._model_input_name(),
            seed=seed if self.semantics.eval_grouping_has_own_generator else None,
        )

    def _model_input_name(self) -> str | None:
        """Return the first of the processing class's ``model_input_names``, None if it has none."""
        names = getattr(self.processing_class, "model_input_names", None)
        return names[0] if names else None

    def _set_signature_columns_if_needed(self) -> None:
        """Fill ``_signature_columns`` with the columns that the model takes."""
        if self._signature_columns is None:
            self._signature_columns = columns.signature_columns(self.model, self.label_names)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Return ``dataset`` without the columns that the model does not take."""
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        return columns.remove_unused_columns(dataset, self._signature_columns or [], description)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        """Return a collator that first drops the columns that the model does not take."""
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        return columns.RemoveColumnsCollator(
            data_collator, self._signature_columns or [], model_name=type(self.model).__name__, description=description
        )

    def num_examples(self, dataloader: Any) -> int:
        """Return the samples that one pass over ``dataloader`` gives, estimated from its batches if need be."""
        dataset = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)
        return len(dataloader) * self.args.per_device_train_batch_size
