"""A user's script with types: a Trainer with overrides, callbacks and arguments of its own; read by type checkers."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hf_compat import (
    EarlyStoppingCallback,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)


@dataclass
class Arguments(TrainingArguments):
    """Arguments with one of the script's own."""

    weight_of_positives: float = field(default=2.0, metadata={"help": "Weight of the second class in the loss."})


class Points(Dataset[dict[str, Tensor]]):
    """Points in the plane, and whether they are above a line."""

    def __init__(self, count: int, seed: int) -> None:
        self.points = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        point = self.points[index]
        return {"features": point, "labels": (point.sum() > 0).long()}


class Classifier(nn.Module):
    """Two logits of a point."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return the logits."""
        return {"logits": self.layer(features)}


class WeightedTrainer(Trainer):
    """A Trainer with the overrides that users write most."""

    def __init__(self, *args: Any, weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weight = weight

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Return the weighted cross-entropy."""
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, self.weight], device=labels.device)
        loss = nn.functional.cross_entropy(outputs["logits"], labels, weight=weight)
        return (loss, outputs) if return_outputs else loss

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the loss of a batch."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        return loss.detach()

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return loss, logits and labels of a batch."""
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        return loss, None if logits is None else logits.float(), labels

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return batches in their order."""
        assert self.train_dataset is not None
        return DataLoader(self.train_dataset, batch_size=self.args.train_batch_size, collate_fn=self.data_collator)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return SGD."""
        if self.optimizer is None:
            assert self.model is not None
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate)
        return self.optimizer

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add a number to each log."""
        super().log({**logs, "weight": self.weight}, start_time)


class StopWhenGood(TrainerCallback):
    """Ends the run when the accuracy is good."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Compare the accuracy of the evaluation."""
        metrics: dict[str, float] = kwargs["metrics"]
        if metrics["eval_accuracy"] >= self.accuracy and state.global_step < args.max_steps:
            control.should_training_stop = True
        return control


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Return the fraction of points that are classified correctly."""
    logits, labels = torch.as_tensor(prediction.predictions), torch.as_tensor(prediction.label_ids)
    return {"accuracy": float((logits.argmax(-1) == labels).float().mean())}


def main() -> None:
    """Train and evaluate."""
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    assert isinstance(args, Arguments)
    set_seed(args.seed)
    trainer = WeightedTrainer(
        Classifier(),
        args,
        train_dataset=Points(64, 0),
        eval_dataset=Points(16, 1),
        compute_metrics=accuracy,
        callbacks=[StopWhenGood(0.99), EarlyStoppingCallback(early_stopping_patience=3)],
        weight=args.weight_of_positives,
    )
    output = trainer.train(resume_from_checkpoint=None)
    metrics: dict[str, float] = trainer.evaluate()
    predicted = trainer.predict(Points(4, 2))
    trainer.save_model()
    loss: float = output.training_loss
    print(output.global_step, round(loss, 4), round(metrics["eval_accuracy"], 4), predicted.metrics is not None)
    print([entry["loss"] for entry in trainer.state.log_history if "loss" in entry], file=sys.stderr)


if __name__ == "__main__":
    main()
