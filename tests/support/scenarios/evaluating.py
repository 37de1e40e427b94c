"""When evaluation happens, what it is given and what comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import BertForSequenceClassification

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import accuracy, classifier, language_model, plain
from tests.support.scenarios.updates import train


@scenario()
def several_evaluation_sets(kit: Kit) -> None:
    sets = {name: helpers.ListDataset(helpers.labelled_rows(5, seed=seed)) for seed, name in enumerate(("near", "far"))}
    fields = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_far_loss",
        "num_train_epochs": 2,
    }
    trainer = classifier(kit, fields=fields, eval_dataset=sets)
    kit.train(trainer)
    kit.evaluate(trainer)
    kit.evaluate(trainer, "far")
    kit.evaluate(trainer, sets["near"], metric_key_prefix="other")


@scenario()
def evaluation_before_training(kit: Kit) -> None:
    trainer = classifier(kit)
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)
    kit.train(trainer)
    kit.evaluate(trainer)


@scenario()
def evaluation_on_start(kit: Kit) -> None:
    train(kit, classifier(kit, fields={"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 2}))


def _averaged(kit: Kit, method: str) -> None:
    """Train with an average of the weights that ``method`` puts in the place of the model, as scripts do."""

    class Averaging(kit.Trainer):  # type: ignore[misc,name-defined]
        def average(self, *given: Any, **named: Any) -> Any:
            if not hasattr(self, "averaged"):
                self.averaged = helpers.PlainModel(dropout=0.0)
                self.averaged.load_state_dict(self.model.state_dict())
            trained, self.model = self.model, self.averaged.to(self.args.device)
            with torch.no_grad():
                for mean, weight in zip(self.model.parameters(), trained.parameters(), strict=True):
                    mean.lerp_(weight, 0.5)
            try:
                return getattr(super(), method)(*given, **named)
            finally:
                self.model = trained

    setattr(Averaging, method, Averaging.average)
    fields = {"bf16": True, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "epoch"}
    trainer = plain(kit, subclass=Averaging, fields={**fields, "gradient_accumulation_steps": 2})
    train(kit, trainer)
    kit.keep("averaged", trainer.averaged.state_dict())


@scenario()
def average_in_evaluate(kit: Kit) -> None:
    """It is evaluated as it is, without autocast, and training goes on with the model."""
    _averaged(kit, "evaluate")


@scenario()
def average_in_the_evaluation_loop(kit: Kit) -> None:
    _averaged(kit, "evaluation_loop")


@scenario()
def evaluation_after_another_model_was_prepared(kit: Kit) -> None:
    """A model that is not trained, such as a reference: the first evaluation is without autocast."""
    trainer = plain(kit, fields={"bf16": True, "eval_strategy": "epoch"})
    trainer.accelerator.prepare_model(helpers.PlainModel(), evaluation_mode=True)
    kit.evaluate(trainer)
    train(kit, trainer)


@scenario()
def evaluation_of_another_model_after_training(kit: Kit) -> None:
    trainer = plain(kit, fields={"bf16": True})
    kit.train(trainer)
    trainer.model = helpers.PlainModel(dropout=0.0).to(trainer.args.device)
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)


@scenario()
def delayed_evaluation_by_steps(kit: Kit) -> None:
    fields = {"eval_delay": 4, "eval_strategy": "steps", "eval_steps": 2, "num_train_epochs": 2}
    train(kit, classifier(kit, fields=fields))


@scenario()
def delayed_evaluation_by_epochs(kit: Kit) -> None:
    train(kit, classifier(kit, fields={"eval_delay": 2, "eval_strategy": "epoch", "num_train_epochs": 3}))


@scenario()
def last_step_is_not_a_multiple(kit: Kit) -> None:
    """From 5.4 on the last update step is evaluated all the same."""
    fields = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    train(kit, classifier(kit, fields={**fields, "num_train_epochs": 2}))


@scenario()
def arrays_move_to_the_host_in_between(kit: Kit) -> None:
    train(kit, classifier(kit, fields={"eval_accumulation_steps": 2}))


@scenario()
def ragged_predictions_are_padded(kit: Kit) -> None:
    """Logits and labels of batches of different lengths are padded with -100 to the longest."""

    def shapes(prediction: Any) -> dict[str, float]:
        return {"scored": float((prediction.label_ids != -100).sum()), "width": prediction.predictions.shape[1]}

    train(kit, language_model(kit, fields={"eval_strategy": "epoch"}, compute_metrics=shapes))


@scenario()
def gradients_outlive_an_evaluation(kit: Kit) -> None:
    """A loop of the script's own evaluates between the batches of an update step."""
    trainer = plain(kit)
    trainer.current_gradient_accumulation_steps = 1
    batch = next(iter(trainer.get_train_dataloader()))
    for _ in range(2):
        trainer.training_step(trainer.model, dict(batch))
        kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)
    kit.keep("gradients", {name: parameter.grad for name, parameter in trainer.model.named_parameters()})


@scenario()
def outputs_that_evaluations_leave_out(kit: Kit) -> None:
    """Since 5.24 ``cache`` is left out of the predictions, before ``past_key_values``; the other one is kept."""

    class WithCaches(BertForSequenceClassification):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Any]:
            outputs = super().forward(input_ids, attention_mask=attention_mask, labels=labels)
            return {**outputs, "cache": outputs.logits + 1, "past_key_values": outputs.logits + 2}

    def model() -> Any:
        return WithCaches(helpers.bert_classifier().config)

    trainer = classifier(kit, model=kit.model(model), compute_metrics=None)
    kit.predict(trainer, trainer.eval_dataset)


@scenario()
def inputs_and_losses_for_metrics(kit: Kit) -> None:
    def metrics(prediction: Any) -> dict[str, float]:
        logits, labels, inputs, losses = prediction
        assert len(logits) == len(labels) == len(inputs) == len(losses)
        return {"tokens": float((inputs > 0).sum()), "worst": losses.max()}

    fields = {"include_for_metrics": ["inputs", "loss"], "eval_strategy": "epoch"}
    train(kit, classifier(kit, fields=fields, compute_metrics=metrics))


@scenario()
def metrics_batch_by_batch(kit: Kit) -> None:
    train(
        kit, classifier(kit, fields={"batch_eval_metrics": True, "eval_strategy": "epoch"}, compute_metrics=_Counting())
    )


@scenario()
def batches_are_not_concatenated(kit: Kit) -> None:
    def metrics(prediction: Any) -> dict[str, float]:
        return {"accuracy": np.mean([accuracy(pair)["accuracy"] for pair in zip(*prediction, strict=True)])}

    fields = {"eval_do_concat_batches": False, "eval_strategy": "epoch"}
    train(kit, classifier(kit, fields=fields, compute_metrics=metrics))


@scenario()
def logits_are_preprocessed(kit: Kit) -> None:
    def best(logits: Tensor, labels: Tensor) -> Tensor:
        return logits.argmax(dim=-1)

    def metrics(prediction: Any) -> dict[str, float]:
        return {"hits": float((prediction.predictions == prediction.label_ids).mean())}

    train(kit, classifier(kit, preprocess_logits_for_metrics=best, compute_metrics=metrics))


@scenario()
def no_logits_are_kept(kit: Kit) -> None:
    """Preprocessing returns nothing, to save memory: there are losses, ``compute_metrics`` is not called."""
    fields = {"eval_strategy": "epoch"}
    trainer = classifier(kit, fields=fields, preprocess_logits_for_metrics=lambda *_: None, compute_metrics=accuracy)
    kit.train(trainer)
    kit.predict(trainer, trainer.eval_dataset)


@scenario()
def losses_only(kit: Kit) -> None:
    train(kit, classifier(kit, fields={"prediction_loss_only": True, "eval_strategy": "epoch"}))


@scenario()
def prediction_without_labels(kit: Kit) -> None:
    trainer = classifier(kit)
    kit.train(trainer)
    rows = [{"input_ids": row["input_ids"]} for row in helpers.labelled_rows(7)]
    kit.predict(trainer, helpers.ListDataset(rows))
    kit.predict(trainer, trainer.eval_dataset, metric_key_prefix="final")


@scenario()
def several_outputs(kit: Kit) -> None:
    """Hidden states come back beside the logits, as a tuple; keys to ignore are left out."""
    trainer = classifier(kit, model=kit.model(helpers.bert_classifier, output_hidden_states=True), compute_metrics=None)
    kit.train(trainer)
    kit.predict(trainer, trainer.eval_dataset)
    kit.predict(trainer, trainer.eval_dataset, ignore_keys=["hidden_states"])


@scenario()
def label_names_of_the_user(kit: Kit) -> None:
    fields = {"label_names": ["labels", "features"], "eval_strategy": "epoch"}
    train(kit, plain(kit, fields=fields))


@scenario()
def half_precision_evaluation(kit: Kit) -> None:
    trainer = classifier(kit, fields={"bf16_full_eval": True})
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)


@scenario()
def metrics_of_numpy_and_torch(kit: Kit) -> None:
    """Scalars of every kind become Python's before they are logged."""

    def metrics(prediction: Any) -> dict[str, Any]:
        import torch

        return {"share": np.float32(0.1), "count": np.int64(3), "tensor": torch.tensor(0.1), "eval_named": 2}

    train(kit, classifier(kit, fields={"eval_strategy": "epoch", "save_strategy": "epoch"}, compute_metrics=metrics))


class _Counting:
    """A metric that adds up over batches and answers at the last."""

    def __init__(self) -> None:
        self.hits = 0.0
        self.count = 0

    def __call__(self, prediction: Any, compute_result: bool) -> dict[str, float]:
        logits, labels = prediction
        self.hits += float((logits.argmax(dim=-1) == labels).sum())
        self.count += len(labels)
        if not compute_result:
            return {}
        result = {"accuracy": self.hits / self.count}
        self.hits, self.count = 0.0, 0
        return result


def _empty_evaluation(kit: Kit, **given: Any) -> None:
    """Train with evaluations and evaluate and predict; dropout and the order of samples follow the generator."""
    fields = {"eval_strategy": "steps", "eval_steps": 2, "num_train_epochs": 3, **given.pop("fields", {})}
    trainer = plain(kit, fields=fields, **given)
    kit.evaluate(trainer)
    kit.train(trainer)
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)
    kit.keep("drawn", torch.rand(1))


@scenario()
def empty_evaluation_set(kit: Kit) -> None:
    """A loader without a batch is opened all the same, which draws from the random generator."""
    _empty_evaluation(kit, eval_dataset=helpers.ListDataset([]))


@scenario(warns="leaves out the last")
def evaluation_without_a_full_batch(kit: Kit) -> None:
    rows = helpers.ListDataset(helpers.vector_rows(2, seed=1))
    _empty_evaluation(kit, eval_dataset=rows, fields={"dataloader_drop_last": True})


@scenario()
def one_of_several_evaluation_sets_is_empty(kit: Kit) -> None:
    rows = helpers.ListDataset(helpers.vector_rows(4, seed=1))
    trainer = plain(
        kit,
        eval_dataset={"none": helpers.ListDataset([]), "some": rows},
        fields={"eval_strategy": "epoch", "num_train_epochs": 2},
    )
    kit.train(trainer)
    kit.evaluate(trainer)


@scenario()
def empty_evaluation_loader_of_the_user(kit: Kit) -> None:
    class Own(kit.Trainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
            return DataLoader([])  # type: ignore[arg-type]

    _empty_evaluation(kit, subclass=Own)


@scenario()
def empty_evaluation_loader_with_workers(kit: Kit) -> None:
    _empty_evaluation(kit, eval_dataset=helpers.ListDataset([]), fields={"dataloader_num_workers": 1})


@scenario(until="5.0")
def empty_evaluation_of_the_older_loop(kit: Kit) -> None:
    _empty_evaluation(kit, eval_dataset=helpers.ListDataset([]), fields={"use_legacy_prediction_loop": True})


# Loaders of one's own


def _own_loaders(kit: Kit, *, compute_metrics: Any = accuracy, **fields: Any) -> Any:
    """Return a Trainer whose evaluation and test loaders are plain ones; the train loader ends with two samples."""

    class OwnLoaders(kit.Trainer):  # type: ignore[misc,name-defined]
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            data = self.eval_dataset if eval_dataset is None else eval_dataset
            return DataLoader(data, batch_size=3, collate_fn=self.data_collator)

        get_test_dataloader = get_eval_dataloader

    fields = {"num_train_epochs": 2, **fields}
    return classifier(kit, subclass=OwnLoaders, fields=fields, compute_metrics=compute_metrics)


CUT = r"truncates each batch to 2 samples"


@scenario(warns=CUT)
def own_loader_evaluated_at_an_epochs_end(kit: Kit) -> None:
    """The train loader's last batch is taken for the evaluation's: each batch is cut to its two samples."""
    train(kit, _own_loaders(kit, eval_strategy="epoch"))


@scenario(warns=CUT)
def own_loader_evaluated_after_steps(kit: Kit) -> None:
    """Within the epoch nothing is cut."""
    train(kit, _own_loaders(kit, eval_strategy="steps", eval_steps=1))


@scenario()
def own_loader_after_a_run_that_ended_within_an_epoch(kit: Kit) -> None:
    train(kit, _own_loaders(kit, max_steps=2))


@scenario()
def own_loader_without_a_run(kit: Kit) -> None:
    trainer = _own_loaders(kit)
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)


@scenario()
def own_loader_where_the_train_loader_drops_its_last_batch(kit: Kit) -> None:
    train(kit, _own_loaders(kit, eval_strategy="epoch", dataloader_drop_last=True))


@scenario(warns="cannot detect its last batch|truncates each batch")
def own_loader_with_batch_eval_metrics(kit: Kit) -> None:
    """The metrics of the last batch are asked for only where the train loader is at its end, and then for each."""
    results: list[bool] = []

    def counted(prediction: Any, compute_result: bool) -> dict[str, float]:
        results.append(compute_result)
        return {"samples": float(len(prediction.label_ids))}

    fields = {"eval_strategy": "steps", "eval_steps": 2, "batch_eval_metrics": True}
    train(kit, _own_loaders(kit, compute_metrics=counted, **fields))
    kit.keep("results", results)


@scenario(warns=CUT)
def own_loader_of_a_resumed_run(kit: Kit) -> None:
    """In the epoch that is resumed in the middle nothing is cut."""
    fields = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "epoch"}
    folder = kit.stage(lambda first: first.train(_own_loaders(first, **fields)))
    trainer = _own_loaders(kit, **fields)
    kit.train(trainer, resume_from_checkpoint=f"{folder}/checkpoint-2")
    kit.evaluate(trainer)


@scenario()
def own_loader_that_is_prepared(kit: Kit) -> None:
    class Prepares(kit.Trainer):  # type: ignore[misc,name-defined]
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            loader = DataLoader(self.eval_dataset, batch_size=3, collate_fn=self.data_collator)
            return self.accelerator.prepare(loader)

    train(kit, classifier(kit, subclass=Prepares, fields={"num_train_epochs": 2, "eval_strategy": "epoch"}))


@scenario(until="5.0")
def own_loader_in_the_older_loop(kit: Kit) -> None:
    """It gathers by itself, so nothing is cut."""
    train(kit, _own_loaders(kit, eval_strategy="epoch", use_legacy_prediction_loop=True))
