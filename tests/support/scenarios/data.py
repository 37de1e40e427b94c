"""Where batches come from, in which order, and what is drawn at random on the way."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import accuracy, classifier, language_model, plain
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.updates import ACCUMULATION, train

BALANCED = {"train_sampling_strategy": "batch_rebalance", "per_device_train_batch_size": 3, **ACCUMULATION}
FIXED_SEED = "do not change the order of samples"
SAVING = {"save_strategy": "steps", "save_steps": 1}


@scenario(warns="leaves out the last")
def workers_with_a_data_seed(kit: Kit) -> None:
    fields = {"dataloader_num_workers": 2, "data_seed": 5, "dataloader_drop_last": True, "num_train_epochs": 2}
    train(kit, language_model(kit, fields=fields))


@scenario()
def persistent_workers(kit: Kit) -> None:
    fields = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3}
    train(kit, language_model(kit, fields={**fields, **ACCUMULATION, "num_train_epochs": 2}))


@scenario()
def data_seed_without_workers(kit: Kit) -> None:
    train(kit, language_model(kit, fields={"data_seed": 5, "num_train_epochs": 2}))


@scenario()
def stream_of_unknown_length(kit: Kit) -> None:
    """The stream is read again when it is exhausted; windows do not stop at its end."""
    data = helpers.Stream(helpers.token_rows(10))
    train(kit, language_model(kit, fields={"max_steps": 5, **ACCUMULATION}, train_dataset=data))


@scenario()
def stream_of_unknown_length_without_accumulation(kit: Kit) -> None:
    data = helpers.Stream(helpers.token_rows(10))
    train(kit, language_model(kit, fields={"max_steps": 7}, train_dataset=data))


@scenario()
def stream_of_known_length(kit: Kit) -> None:
    data = helpers.SizedStream(helpers.token_rows(10))
    fields = {**ACCUMULATION, "num_train_epochs": 2, "eval_strategy": "epoch"}
    train(kit, language_model(kit, fields=fields, train_dataset=data, eval_dataset=data))


@scenario()
def stream_that_ends_early(kit: Kit) -> None:
    """The stream holds fewer rows than it says."""

    class Short(helpers.SizedStream):
        def __len__(self) -> int:
            return 20

    data = Short(helpers.token_rows(10))
    train(kit, language_model(kit, fields={**ACCUMULATION, "num_train_epochs": 2}, train_dataset=data))


@scenario()
def stream_that_reshuffles(kit: Kit) -> None:
    """``set_epoch`` of the data set is called before each pass."""
    data = helpers.ReshuffledStream(helpers.token_rows(10))
    train(kit, language_model(kit, fields={"max_steps": 7}, train_dataset=data))


@scenario()
def stream_runs_dry(kit: Kit) -> None:
    """A stream that can be read only once stops training before ``max_steps``."""

    class Once(helpers.Stream):
        def __iter__(self) -> Any:
            rows, self.rows = self.rows, []
            return iter(rows)

    data = Once(helpers.token_rows(10))
    fields = {"max_steps": 9, "accelerator_config": {"dispatch_batches": False}}
    kit.train(language_model(kit, fields=fields, train_dataset=data))


@scenario()
def stream_is_evaluated(kit: Kit) -> None:
    data = helpers.Stream(helpers.labelled_rows(8))
    train(kit, classifier(kit, fields={"eval_strategy": "epoch"}, eval_dataset=data))


@scenario()
def datasets_with_columns_the_model_does_not_take(kit: Kit) -> None:
    """Columns are dropped from what the collator sees; the data set itself keeps them."""
    from datasets import Dataset

    rows = [{**row, "title": f"row {number}"} for number, row in enumerate(helpers.token_rows(14))]
    data = Dataset.from_list(rows)
    train(kit, language_model(kit, fields={"num_train_epochs": 2}, train_dataset=data, eval_dataset=data))
    kit.keep("columns", data.column_names)


@scenario()
def datasets_stream(kit: Kit) -> None:
    from datasets import IterableDataset

    data = IterableDataset.from_generator(_generate_titled_rows)
    train(kit, language_model(kit, fields={"max_steps": 6}, train_dataset=data, eval_dataset=data))


@scenario()
def columns_of_a_torch_dataset(kit: Kit) -> None:
    rows = [{**row, "title": "unused"} for row in helpers.token_rows(14)]
    train(kit, language_model(kit, train_dataset=helpers.ListDataset(rows)))


@scenario()
def unused_columns_are_kept(kit: Kit) -> None:
    def without_title(rows: list[helpers.Row]) -> Any:
        assert all("title" in row for row in rows)
        return helpers.PadCollator()([{key: row[key] for key in ("input_ids", "labels")} for row in rows])

    data = helpers.ListDataset([{**row, "title": "kept"} for row in helpers.token_rows(14)])
    given = {"train_dataset": data, "eval_dataset": data, "data_collator": without_title}
    train(kit, language_model(kit, fields={"remove_unused_columns": False}, **given))


@scenario()
def default_collator_renames_label(kit: Kit) -> None:
    rows = [{"features": row["features"], "label": row["labels"]} for row in helpers.vector_rows(14)]
    train(kit, plain(kit, train_dataset=helpers.ListDataset(rows)))


@scenario()
def tokenizer_pads(kit: Kit) -> None:
    """A tokenizer given as ``processing_class`` pads by default and is saved with the model."""
    fields = {"save_strategy": "epoch", "num_train_epochs": 2}
    train(kit, classifier(kit, fields=fields, processing_class=helpers.tokenizer(), data_collator=None))


@scenario()
def grouping_by_length(kit: Kit) -> None:
    fields = {"group_by_length": True, "num_train_epochs": 2, **ACCUMULATION}
    train(kit, language_model(kit, rows=40, fields=fields))


@scenario()
def grouping_by_length_column(kit: Kit) -> None:
    from datasets import Dataset

    rows = [{**row, "length": len(row["input_ids"])} for row in helpers.token_rows(40)]
    data = Dataset.from_list(rows)
    fields = {"group_by_length": True, "num_train_epochs": 2, "eval_strategy": "epoch"}
    train(kit, language_model(kit, fields=fields, train_dataset=data, eval_dataset=data))


@scenario(since="5.17", warns=FIXED_SEED)
def batches_of_equal_cost(kit: Kit) -> None:
    """Of 43 rows seven are left over in each epoch, an update step of their own."""
    fields = {**BALANCED, "num_train_epochs": 2, "eval_strategy": "epoch"}
    train(kit, language_model(kit, rows=43, fields=fields))


@scenario(since="5.17", warns=f"{FIXED_SEED}|leaves out the last")
def batches_of_equal_cost_by_a_column(kit: Kit) -> None:
    from datasets import Dataset

    rows = [{**row, "length": len(row["input_ids"])} for row in helpers.token_rows(40)]
    fields = {**BALANCED, "remove_unused_columns": False, "dataloader_drop_last": True}

    def without_lengths(batch: Any) -> Any:
        return helpers.PadCollator()([{name: row[name] for name in row if name != "length"} for row in batch])

    for data in (Dataset.from_list(rows), Dataset.from_list(rows).with_format("torch", ["length"], True)):
        train(kit, language_model(kit, fields=fields, train_dataset=data, data_collator=without_lengths))


@scenario(since="5.17", warns=FIXED_SEED)
def too_few_samples_for_batches_of_equal_cost(kit: Kit) -> None:
    """Two samples are fewer than the batches of an update step, so that they are repeated."""
    train(kit, language_model(kit, rows=2, fields={**BALANCED, "gradient_accumulation_steps": 3}))


def _balanced(kit: Kit) -> Any:
    return language_model(kit, rows=43, fields={**BALANCED, "num_train_epochs": 3, **SAVING})


@scenario(since="5.17", warns=FIXED_SEED, resumes_exactly=True)
def resume_batches_of_equal_cost(kit: Kit) -> None:
    """In the first epoch: in later ones transformers' order is another on several processes."""
    resume(kit, _balanced, 2)


@scenario(since="5.17", warns=FIXED_SEED, resumes_exactly=True, slow=True)
def resume_batches_of_equal_cost_later(kit: Kit) -> None:
    resume(kit, _balanced, 8)


@scenario()
def collator_draws_random_numbers(kit: Kit) -> None:
    """Batches are fetched a window and one batch ahead: their draws come before those of dropout."""
    fields = {**ACCUMULATION, "num_train_epochs": 2, "eval_strategy": "steps", "eval_steps": 2}
    train(kit, language_model(kit, fields=fields, data_collator=helpers.NoisyCollator()))


@scenario()
def collator_masks_tokens(kit: Kit) -> None:
    from transformers import DataCollatorForLanguageModeling

    rows = [{"input_ids": row["input_ids"]} for row in helpers.token_rows(14)]
    given = {
        "model": kit.model(helpers.bert_masked_lm),
        "train_dataset": helpers.ListDataset(rows),
        "eval_dataset": helpers.ListDataset(rows[:6]),
        "data_collator": DataCollatorForLanguageModeling(helpers.tokenizer(), mlm_probability=0.4),
    }
    fields = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    train(kit, language_model(kit, fields=fields, **given))


@scenario()
def collator_draws_random_numbers_in_workers(kit: Kit) -> None:
    fields = {"dataloader_num_workers": 2, "num_train_epochs": 2}
    train(kit, language_model(kit, fields=fields, data_collator=helpers.NoisyCollator()))


@scenario()
def loader_of_the_user(kit: Kit) -> None:
    """``get_train_dataloader`` is overridden and returns a plain loader that shuffles."""
    from torch.utils.data import DataLoader

    class OwnLoader(kit.Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(self.train_dataset, batch_size=3, shuffle=True, collate_fn=self.data_collator)

    train(kit, language_model(kit, subclass=OwnLoader, fields={"num_train_epochs": 2}))


@scenario()
def sampler_of_the_user(kit: Kit) -> None:
    from torch.utils.data import SequentialSampler

    class InOrder(kit.Trainer):
        def _get_train_sampler(self, *given: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    train(kit, language_model(kit, subclass=InOrder, fields={"num_train_epochs": 2}))


@scenario(warns="leaves out the last")
def last_batch_is_dropped(kit: Kit) -> None:
    """Of the evaluation set, too."""
    fields = {"dataloader_drop_last": True, "num_train_epochs": 2, "eval_strategy": "epoch"}
    train(kit, classifier(kit, fields=fields))


def _generate_titled_rows() -> Any:
    for number, row in enumerate(helpers.token_rows(14)):
        yield {**row, "title": f"row {number}"}


# Lengths that are estimates


class _Estimated(helpers.SizedStream):
    """A stream that says another length than it has."""

    def __init__(self, rows: list[helpers.Row], said: int) -> None:
        super().__init__(rows)
        self.said = said

    def __len__(self) -> int:
        return self.said


def _estimated(kit: Kit, said: int, **fields: Any) -> None:
    """Train and evaluate on streams of 11 rows that say there are ``said``, in batches of two."""
    data = _Estimated(helpers.vector_rows(11), said)
    fields = {"num_train_epochs": 2, "eval_strategy": "epoch", "per_device_eval_batch_size": 2, **fields}
    given = {"train_dataset": data, "eval_dataset": data}
    train(kit, plain(kit, fields={"per_device_train_batch_size": 2, **fields}, compute_metrics=accuracy, **given))


@scenario()
def stream_longer_than_its_length(kit: Kit) -> None:
    """An epoch ends at the length, an evaluation with the stream."""
    _estimated(kit, 5)


@scenario()
def stream_shorter_than_its_length(kit: Kit) -> None:
    _estimated(kit, 20)


@scenario()
def stream_that_each_worker_reads_whole(kit: Kit) -> None:
    _estimated(kit, 11, dataloader_num_workers=2, eval_strategy="no")


class _SaysAnotherLength:
    """Batches of uneven sizes, of 7 rows; there is one more than it says."""

    def __iter__(self) -> Any:
        return iter([[0], [1, 2], [3, 4, 5], [6]])

    def __len__(self) -> int:
        return 3


def _uneven(kit: Kit, *, prepares: bool, **given: Any) -> Any:
    """Return a Trainer whose evaluation loader has batches of ``_SaysAnotherLength``."""
    from torch.utils.data import DataLoader

    class Uneven(kit.Trainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            sampler: Any = _SaysAnotherLength()
            loader = DataLoader(self.eval_dataset, batch_sampler=sampler, collate_fn=self.data_collator)
            return self.accelerator.prepare(loader) if prepares else loader

        def get_test_dataloader(self, test_dataset: Any) -> Any:
            return self.get_eval_dataloader()

    return plain(kit, subclass=Uneven, **{"compute_metrics": accuracy, **given})


@scenario()
def batches_longer_than_their_length(kit: Kit) -> None:
    train(kit, _uneven(kit, prepares=True, fields={"eval_strategy": "epoch", "num_train_epochs": 2}))


@scenario()
def own_batches_longer_than_their_length(kit: Kit) -> None:
    """They are not prepared."""
    trainer = _uneven(kit, prepares=False)
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)


@scenario()
def metrics_of_batches_longer_than_their_length(kit: Kit) -> None:
    """The metrics are asked for at the last batch alone."""
    asked: list[bool] = []

    def counted(prediction: Any, compute_result: bool) -> dict[str, float]:
        asked.append(compute_result)
        return {"samples": float(len(prediction.label_ids))}

    kit.evaluate(_uneven(kit, prepares=True, fields={"batch_eval_metrics": True}, compute_metrics=counted))
    kit.keep("asked", asked)


@scenario()
def loader_of_the_script_beside_the_trainers(kit: Kit) -> None:
    """The loader whose pass began last is the one in use, also one that was prepared long before the training."""

    class SemiSupervised(kit.Trainer):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            rows = helpers.ListDataset(helpers.vector_rows(7, seed=2))
            self.unlabelled = self.accelerator.prepare(DataLoader(rows, batch_size=3, collate_fn=self.data_collator))
            self.batches = iter(self.unlabelled)

        def compute_loss(self, model: Any, inputs: Any, *given: Any, **more: Any) -> Any:
            labels = inputs["labels"]
            loss = super().compute_loss(model, inputs, *given, **more)
            if model.training:
                batch = next(self.batches, None) or next(self.batches_anew())
                loss = loss + 0.1 * model(features=batch["features"])["logits"].square().mean()
            state = self.accelerator.gradient_state
            gathered = self.accelerator.gather_for_metrics(labels)
            seen.append([len(gathered), state.end_of_dataloader, state.remainder, state.in_dataloader])
            return loss

        def batches_anew(self) -> Any:
            self.batches = iter(self.unlabelled)
            return self.batches

    seen: list[Any] = []
    fields = {"num_train_epochs": 2, "eval_strategy": "steps", "eval_steps": 3}
    train(kit, plain(kit, subclass=SemiSupervised, fields=fields))
    kit.keep("seen", seen)


def _train_with_lengths(kit: Kit, *lengths: int) -> None:
    """Train an epoch on each of so many rows of one data set, whose length a callback changes as an epoch ends."""
    rows, later = helpers.token_rows(max(lengths)), list(lengths[1:])
    data = helpers.ListDataset(rows[: lengths[0]])

    class Changes(kit.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
            if later:
                data.rows = rows[: later.pop(0)]

    fields = {**ACCUMULATION, "num_train_epochs": len(lengths), "logging_steps": 1}
    train(kit, language_model(kit, fields=fields, train_dataset=data, callbacks=[Changes()]))


@scenario()
def shrinking_data(kit: Kit) -> None:
    """Before transformers 5.3 the share of an epoch is that of its own length."""
    _train_with_lengths(kit, 10, 6, 3)


@scenario()
def growing_data(kit: Kit) -> None:
    """Before transformers 5.3 a longer epoch is trained on to its end."""
    _train_with_lengths(kit, 4, 10, 10)


class _ByEpoch(helpers.ListDataset):
    """Rows of which each epoch has four more than the last."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 8 + 4 * self.epoch


def _growing_by_epoch(kit: Kit, told: list[int], **fields: Any) -> Any:
    """Return a Trainer whose data is longer in each epoch; ``told`` gets the epochs that ``on_epoch_begin`` finds."""

    class Looks(kit.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
            told.append(data.epoch)

    data = _ByEpoch(helpers.token_rows(20))
    fields = {**ACCUMULATION, "num_train_epochs": 3, "logging_steps": 1, **fields}
    return language_model(kit, fields=fields, train_dataset=data, callbacks=[Looks()])


@scenario()
def data_that_grows_by_its_epoch(kit: Kit) -> None:
    """Before transformers 5.0 it is told the epoch ahead of ``on_epoch_begin``, and asked for its length then."""
    told: list[int] = []
    train(kit, _growing_by_epoch(kit, told))
    kit.keep("told", told)


@scenario(warns="has a `set_epoch`", warns_since="5.0")
def resume_data_that_grows_by_its_epoch(kit: Kit) -> None:
    """Before transformers 5.0 the rest of an epoch is as long as that epoch."""
    told: list[int] = []
    resume(kit, lambda each: _growing_by_epoch(each, told, **SAVING), 3)
    kit.keep("told", told)
