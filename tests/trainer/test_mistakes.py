"""Mistakes that people ask about: both Trainers raise the same, and here a note below says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

import hf_compat
from hf_compat.errors import HFCompatWarning
from tests.support import helpers
from tests.support.helpers import PlainModel, bert_classifier, gpt2, t5, vector_rows
from tests.support.trainers import new_trainer

RELEASE = Version(transformers.__version__)
CHECKPOINTING = f"{'activation' if Version('5.23') <= RELEASE else 'gradient'}_checkpointing"
VECTORS = vector_rows(8)
NUMBERED = [(7 - number, row) for number, row in enumerate(VECTORS)]
TOKENS = [{"input_ids": [5, 6, 7], "labels": number % 3} for number in range(8)]
TARGETS = [{"features": row["features"], "target": 1} for row in VECTORS]


def two_step_trainer(
    library: Any,
    folder: Path,
    model: Any = None,
    rows: Any = VECTORS,
    kind: Any = None,
    fields: Any = None,
    **given: Any,
) -> Any:
    """Return a Trainer of a library that trains on, and evaluates, ``rows``."""
    settings = {"max_steps": 2, "save_strategy": "no", **(fields or {})}
    return new_trainer(folder, kind, library=library, model=model, train_dataset=rows, given=given, **settings)


def train_two_steps(library: Any, folder: Path, **given: Any) -> None:
    two_step_trainer(library, folder, **given).train()


def evaluate(library: Any, folder: Path, **given: Any) -> None:
    two_step_trainer(library, folder, **given).evaluate()


def arrow(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_list(rows)


def lengths_of_texts(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    features = torch.tensor([row["features"] for row in rows])
    return {"features": features, "labels": torch.tensor([len(row["text"]) for row in rows])}


WITH_TEXT = [{**row, "text": "a", "note": "b"} for row in VECTORS]


class Raises(PlainModel):
    """A model that raises what torch does on a GPU or on several processes."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, features: torch.Tensor, labels: Any = None) -> Any:
        raise self.error


class Two(PlainModel):
    """A model with a second output."""

    def forward(self, features: torch.Tensor, labels: Any = None) -> Any:
        return {**super().forward(features, labels), "hidden": features}


class Masked(PlainModel):
    def forward(self, features: torch.Tensor, mask: Any, labels: Any = None) -> Any:
        return super().forward(features, labels)


class Unlabelled(PlainModel):
    def forward(self, features: torch.Tensor, labels: Any = None) -> Any:
        return super().forward(features, labels.view(-1))


class Keeps(PlainModel):
    """A model that adds the loss of the batch before."""

    before: Any = 0

    def forward(self, features: torch.Tensor, labels: Any = None) -> Any:
        outputs = super().forward(features, labels)
        outputs["loss"] = self.before = outputs["loss"] + self.before
        return outputs


def reading(key: str) -> Callable[..., None]:
    """Return a mistake: a ``compute_loss`` that reads a name of the batch that it does not have."""

    def mistake(library: Any, folder: Path, **given: Any) -> None:
        class Reads(library.Trainer):
            def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
                return inputs[key].sum() * model(**inputs)["loss"]

        train_two_steps(library, folder, kind=Reads, **given)

    return mistake


def returning(event: str, value: Callable[[Any], Any]) -> Callable[..., None]:
    """Return a mistake: a callback that returns what is no control."""

    def mistake(library: Any, folder: Path) -> None:
        class Returns(library.TrainerCallback):
            pass

        setattr(Returns, event, lambda self, args, state, control, **kwargs: value(state))
        train_two_steps(library, folder, callbacks=[Returns()], fields={"logging_steps": 1})

    return mistake


def resuming(first: str, second: str) -> Callable[..., None]:
    """Return a mistake: a run that goes on with another optimizer."""

    def mistake(library: Any, folder: Path) -> None:
        fields = {"save_strategy": "steps", "save_steps": 1}
        train_two_steps(library, folder, fields={**fields, "max_steps": 1, "optim": first})
        two_step_trainer(library, folder, fields={**fields, "optim": second}).train(resume_from_checkpoint=True)

    return mistake


def roberta() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return transformers.RobertaForSequenceClassification(
        transformers.RobertaConfig(vocab_size=48, max_position_embeddings=10, num_labels=3, **sizes)
    )


def token_classifier() -> Any:
    return transformers.BertForTokenClassification(helpers._bert_config(num_labels=3))


def masked_model() -> Any:
    return transformers.BertForMaskedLM(helpers._bert_config())


def lists(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def one_label_less(rows: list[dict[str, Any]]) -> dict[str, Any]:
    batch = lists(rows)
    return {"features": torch.tensor(batch["features"]), "labels": torch.tensor(batch["labels"][1:])}


def decoding(prediction: Any) -> dict[str, float]:
    helpers.tokenizer().batch_decode(prediction.label_ids)
    return {}


def unpacking(prediction: Any) -> dict[str, float]:
    _predictions, _labels = prediction
    return {}


def named_inputs() -> Any:
    model: Any = PlainModel()
    model.main_input_name = "features"
    return model


class NoLength:
    def __getitem__(self, index: int) -> dict[str, Any]:
        return VECTORS[index]


REMOVED = r"the Trainer removed the columns text, note, which PlainModel.forward does not take. Set it to False"
NOT_TOKENIZED = [{"text": "w4 w5", "label": 0}] * 8
RAGGED = [{"input_ids": [5] * (1 + number % 3), "labels": [1] * (1 + number % 3)} for number in range(8)]
METRICS: dict[str, Any] = {"compute_metrics": lambda prediction: {}}

MISTAKES: dict[str, tuple[Callable[..., None], str]] = {
    "a removed key in the collator": (
        partial(train_two_steps, rows=WITH_TEXT, data_collator=lengths_of_texts),
        REMOVED,
    ),
    "a removed column in the collator": (
        lambda *run: train_two_steps(*run, rows=arrow(WITH_TEXT), data_collator=lengths_of_texts),
        REMOVED,
    ),
    "a removed column, evaluated": (
        lambda *run: evaluate(*run, rows=arrow(WITH_TEXT), data_collator=lengths_of_texts),
        REMOVED,
    ),
    "a removed column in a transform": (
        lambda *run: train_two_steps(*run, rows=arrow(WITH_TEXT).with_transform(lambda rows: {"labels": rows["text"]})),
        REMOVED,
    ),
    "a removed column in the loss": (partial(reading("text"), rows=WITH_TEXT), REMOVED),
    "a renamed column in the loss": (
        partial(reading("label"), rows=[{"features": row["features"], "label": 0} for row in VECTORS]),
        "^`label`: the collator names it `labels`",
    ),
    "labels of another name in the loss": (partial(reading("labels"), rows=TARGETS), "only features, target. Rename"),
    "labels of another name in the model": (
        partial(train_two_steps, model=Unlabelled(), rows=TARGETS),
        "^`labels`: a batch has none, .* only features, target. Rename",
    ),
    "a callback that returns a flag": (
        returning("on_step_end", lambda state: True),
        r"`Returns.on_step_end` returned an object of type bool, .* Return the `control` that it was given",
    ),
    "a callback that returns its logs": (returning("on_log", lambda state: {}), "`Returns.on_log` returned .* dict"),
    "SGD after AdamW": (
        resuming("adamw_torch", "sgd"),
        "state of Adam or AdamW, but this run has SGD, which needs 'momentum'. Resume with",
    ),
    "AdamW after Adafactor": (resuming("adafactor", "adamw_torch"), "state of Adafactor, but this run has AdamW"),
    "no padding token in the model": (
        lambda *run: train_two_steps(*run, model=gpt2_classifier(), rows=TOKENS),
        "^Set `model.config.pad_token_id = tokenizer.pad_token_id`",
    ),
    "texts, with a tokenizer": (
        lambda *run: train_two_steps(
            *run, model=bert_classifier(), rows=NOT_TOKENIZED, processing_class=helpers.tokenizer()
        ),
        "^The samples have no tokens. Tokenize the dataset first",
    ),
    "tuples, with a tokenizer": (
        lambda *run: train_two_steps(
            *run, model=bert_classifier(), rows=[([5, 6], 1)] * 8, processing_class=helpers.tokenizer()
        ),
        "^`train_dataset`: a sample is an object of type tuple, but the tokenizer pads dicts. Return a dict",
    ),
    "lists of tokens, evaluated": (
        lambda *run: evaluate(*run, model=bert_classifier(), rows=[[5, 6]] * 8, processing_class=helpers.tokenizer()),
        "^`eval_dataset`: a sample is an object of type list",
    ),
    "texts, without a tokenizer": (
        lambda *run: train_two_steps(*run, model=bert_classifier(), rows=arrow(NOT_TOKENIZED)),
        "a batch has only labels, and the dataset the columns text, label. Tokenize",
    ),
    "no target texts": (
        lambda *run: train_two_steps(*run, model=t5(), rows=[{"input_ids": [5]}] * 8),
        "Tokenize the target",
    ),
    "labels that are texts": (
        lambda *run: train_two_steps(
            *run,
            model=bert_classifier(),
            rows=[{"input_ids": [5], "label": "good"}] * 8,
            processing_class=helpers.tokenizer(),
        ),
        r"^That column has texts.* `dataset.class_encode_column\('label'\)`",
    ),
    "labels of tokens that are not padded": (
        lambda *run: train_two_steps(*run, model=token_classifier(), rows=RAGGED, processing_class=helpers.tokenizer()),
        r"Pass `DataCollatorForTokenClassification\(tokenizer\)`",
    ),
    "labels of other tokens": (
        lambda *run: train_two_steps(
            *run, model=token_classifier(), rows=[{"input_ids": [5, 6, 7], "labels": [1, 1]}] * 8
        ),
        r"^`labels`: of shape \(8, 2\), but `input_ids` of \(8, 3\)",
    ),
    "a label less": (
        partial(train_two_steps, data_collator=one_label_less),
        "one batch has 8 of `features`, 7 of `labels`",
    ),
    "classes as texts": (
        partial(train_two_steps, rows=[{**row, "label": "good"} for row in VECTORS]),
        r"^`label`: .* texts, such as 'good', .*`dataset.class_encode_column",
    ),
    "a label that is None": (
        partial(evaluate, rows=[{"features": row["features"], "label": index or None} for index, row in NUMBERED]),
        "^`label`: some of its values are None, of which no tensor can be made. Fill them in",
    ),
    "an object in a column": (
        partial(train_two_steps, rows=[{"features": Path(), "labels": 0}] * 8),
        "an object of type PosixPath",
    ),
    "texts in a column": (
        partial(train_two_steps, rows=[{"features": ["a"], "labels": 0}] * 8),
        "such as 'a', .* Tokenize them",
    ),
    "float64": (
        partial(train_two_steps, rows=[{"features": np.ones(helpers.WIDTH), "labels": 1}] * 8),
        r"^`features`: of torch.float64, but the model's parameters are of torch.float32. .*`.to\(torch.float32\)`",
    ),
    "integers": (
        partial(train_two_steps, rows=[{"features": [1] * helpers.WIDTH, "labels": 1}] * 8),
        "^`features`: of torch.int64",
    ),
    "ids that are floats": (
        lambda *run: train_two_steps(*run, model=bert_classifier(), rows=[{"input_ids": [5.5], "labels": 1}] * 8),
        "^`input_ids`: of torch.float32, but ids of tokens are integers",
    ),
    "a batch of lists": (
        lambda *run: train_two_steps(*run, model=bert_classifier(), rows=TOKENS, data_collator=lists),
        "^`data_collator`: in its batch `input_ids`, `labels` are lists, not tensors.*`return_tensors='pt'`",
    ),
    "an argument that no column has": (
        partial(train_two_steps, model=Masked()),
        "^`mask`: Masked.forward needs it, but a batch has only features, labels",
    ),
    "a column that the model does not take": (
        partial(train_two_steps, rows=[{**row, "idx": 1} for row in VECTORS], fields={"remove_unused_columns": False}),
        "^`idx`: a batch has features, labels, idx; PlainModel.forward takes features, labels. Remove the column",
    ),
    "types of tokens": (
        lambda *run: train_two_steps(
            *run,
            model=bert_classifier(type_vocab_size=1),
            rows=[{**row, "token_type_ids": [0, 1, 1]} for row in TOKENS],
        ),
        "^`token_type_ids`: up to 1, but the model has 1 .*`return_token_type_ids=False`",
    ),
    "positions of RoBERTa": (
        lambda *run: train_two_steps(*run, model=roberta(), rows=[{"input_ids": [5] * 9, "labels": 0}] * 8),
        "sequences of 9 tokens, but the model has 10 .* the first 2 are not for tokens.* max_length=8`",
    ),
    "a loss function of two arguments": (
        partial(train_two_steps, compute_loss_func=lambda outputs, labels: outputs["loss"]),
        r"^`compute_loss_func`: it is called with `\(outputs, labels, num_items_in_batch=...\)`",
    ),
    "metrics of two arguments": (
        partial(evaluate, compute_metrics=lambda predictions, labels: {}),
        "^`compute_metrics`: it is called with one argument, an `EvalPrediction`",
    ),
    "metrics of two outputs": (
        partial(evaluate, model=Two(), compute_metrics=lambda prediction: {"best": prediction.predictions.argmax()}),
        r"^`compute_metrics`: `predictions` are 2 outputs of the model. Take one, `predictions\[0\]`",
    ),
    "metrics of two outputs, as one array": (
        partial(evaluate, model=Two(), compute_metrics=lambda prediction: {"best": np.argmax(prediction.predictions)}),
        r"^`compute_metrics`: `predictions` are 2 outputs of the model",
    ),
    "metrics that unpack too little": (
        lambda *run: evaluate(
            *run, model=named_inputs(), compute_metrics=unpacking, fields={"include_for_metrics": ["inputs"]}
        ),
        "unpacks into predictions, label_ids, inputs here",
    ),
    "metrics that decode padding": (
        lambda *run: evaluate(
            *run, model=gpt2(), rows=[{"input_ids": [5, 6], "labels": [-100, 6]}] * 8, compute_metrics=decoding
        ),
        "padded with -100, which is no token. Replace it before decoding",
    ),
    "inputs of another name for metrics": (
        partial(evaluate, fields={"include_for_metrics": ["inputs"]}, **METRICS),
        "a batch has no 'input_ids'. Set `model.main_input_name`",
    ),
    "logits of two outputs": (
        partial(
            evaluate, model=Two(), preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1), **METRICS
        ),
        r"^`preprocess_logits_for_metrics`: `logits` are 2 outputs of the model. Take one, `logits\[0\]`",
    ),
    "logits without labels": (
        partial(evaluate, preprocess_logits_for_metrics=lambda logits: logits, **METRICS),
        "^`preprocess_logits_for_metrics`: it is called with two arguments",
    ),
    "a loss of the batch before": (
        lambda *run: train_two_steps(*run, model=Keeps()),
        r"Call `detach\(\)` on what .* keeps",
    ),
    "checkpointing of a plain module": (
        partial(train_two_steps, fields={CHECKPOINTING: True}),
        "^`activation_checkpointing=True`: only models of transformers have it. Remove the field",
    ),
    "a dataset without a length": (
        partial(train_two_steps, rows=NoLength()),
        "^`train_dataset`: a dataset has `__len__`",
    ),
    "out of memory in training": (
        partial(train_two_steps, model=Raises(torch.OutOfMemoryError("CUDA out of memory."))),
        "^`per_device_train_batch_size=8`: lower it, and raise `gradient_accumulation_steps`",
    ),
    "out of memory in an evaluation": (
        partial(evaluate, model=Raises(torch.OutOfMemoryError("CUDA out of memory."))),
        "^`per_device_eval_batch_size=8`: lower it. .* `eval_accumulation_steps=1`",
    ),
    "a kernel that failed": (
        partial(train_two_steps, model=Raises(RuntimeError("CUDA error: device-side assert triggered"))),
        "Run it once with `use_cpu=True`",
    ),
    "a tensor on another device": (
        partial(
            train_two_steps, model=Raises(RuntimeError("Expected all tensors to be on the same device, but found two"))
        ),
        r"`.to\(trainer.args.device\)`",
    ),
    "weights in float16": (
        partial(train_two_steps, model=Raises(ValueError("Attempting to unscale FP16 gradients."))),
        "^`fp16=True` needs parameters in float32",
    ),
    "unused parameters": (
        partial(
            train_two_steps,
            model=Raises(RuntimeError("Expected to have finished reduction in the prior iteration before")),
        ),
        "Set `ddp_find_unused_parameters=True`",
    ),
    "reentrant checkpoints on several processes": (
        partial(train_two_steps, model=Raises(RuntimeError("Expected to mark a variable ready only once."))),
        "`activation_checkpointing_kwargs={'use_reentrant': False}`",
    ),
}


class Scores(nn.Module):
    """A plain model whose loss is a function of logits and labels; of the width of its logits."""

    def __init__(self, loss: Callable[..., torch.Tensor], width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(helpers.WIDTH, width)
        self.loss = loss

    def forward(self, features: torch.Tensor, labels: Any = None) -> Any:
        logits = self.layer(features)
        return {"loss": self.loss(logits, labels), "logits": logits}


class Normed(Scores):
    """A model that cannot train on one sample."""

    def __init__(self) -> None:
        super().__init__(nn.functional.cross_entropy)
        self.norm = nn.BatchNorm1d(helpers.WIDTH)

    def forward(self, features: torch.Tensor, labels: Any = None) -> Any:
        return super().forward(self.norm(features), labels)


class Grows(PlainModel):
    """A model each of whose outputs is larger than the one before."""

    size = 3

    def forward(self, features: torch.Tensor, labels: Any = None) -> Any:
        self.size += 1
        return {**super().forward(features, labels), "logits": torch.zeros(len(features), 2, self.size)}


class WithConfig(Scores):
    """A model with the configuration that upstream's label smoothing asks for, whose loss needs labels."""

    config = SimpleNamespace(problem_type=None)


def difference(prediction: Any) -> dict[str, float]:
    return {"difference": float((prediction.predictions - prediction.label_ids).mean())}


def refusing(text: str) -> Callable[[Any], dict[str, float]]:
    """Return a ``compute_metrics`` that raises what scikit-learn does."""

    def metrics(prediction: Any) -> dict[str, float]:
        raise ValueError(text)

    return metrics


def first_texts(prediction: Any) -> dict[str, float]:
    helpers.tokenizer().batch_decode(prediction.predictions)
    return {}


FLOATS = [{**row, "labels": 0.5} for row in VECTORS]
GPU_OR_WORKERS = {
    "tensors of a GPU in the dataset": (
        "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
        "^`dataloader_pin_memory=True`: the dataset or the collator returns tensors of a GPU",
    ),
    "a GPU in a worker": (
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use 'spawn'",
        "^`dataloader_num_workers`: the dataset or the collator uses the GPU in a worker",
    ),
    "a worker that was killed": (
        "DataLoader worker (pid 7) is killed by signal: Killed.",
        "^`dataloader_num_workers`: a worker has ended, .* /dev/shm. With 0 its own error is seen",
    ),
    "a worker that ended": (
        "DataLoader worker (pid(s) 7, 8) exited unexpectedly",
        "^`dataloader_num_workers`: a worker has ended",
    ),
    "too many open files": (
        "Too many open files. Communication with the workers is no longer possible.",
        r"set_sharing_strategy\('file_system'\)`, or raise `ulimit -n`",
    ),
    "float16 on a CPU": (
        "\"addmm_impl_cpu_\" not implemented for 'Half'",
        "^The CPU lacks this operation in float16. Load the model with `dtype=torch.float32`",
    ),
    "an input on another device": (
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        r"`.to\(trainer.args.device\)`",
    ),
    "wandb without a login": (
        "api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        "^`report_to`: wandb needs a login. .* `report_to='none'`",
    ),
}
"""What is raised on other machines, and the beginning of the note."""

MISTAKES |= {
    "an id with a dimension too many": (
        lambda *run: train_two_steps(
            *run, model=bert_classifier(), rows=[{"input_ids": torch.tensor([[5, 6]]), "labels": 1}] * 8
        ),
        r"^`input_ids`: of shape \(8, 1, 2\), .* Tokenize without `return_tensors='pt'` in the dataset",
    ),
    "an id with a dimension too few": (
        lambda *run: train_two_steps(*run, model=bert_classifier(), rows=[{"input_ids": 5, "labels": 1}] * 8),
        r"^`input_ids`: of shape \(8,\), .* Let a sample be a list of ids",
    ),
    "a loss that is not created": (
        lambda *run: train_two_steps(*run, model=Scores(lambda *given: nn.CrossEntropyLoss(*given))),
        r"^A loss is created first .*`nn.CrossEntropyLoss\(\)\(logits, labels\)`",
    ),
    "a last batch of one sample": (
        lambda *run: train_two_steps(*run, model=Normed(), rows=VECTORS[:3], fields={"per_device_train_batch_size": 2}),
        "`dataloader_drop_last=True`",
    ),
    "labels without the dimension of logits": (
        lambda *run: train_two_steps(
            *run, model=Scores(nn.functional.binary_cross_entropy_with_logits, 1), rows=FLOATS
        ),
        r"`logits.squeeze\(-1\)`, or `labels.unsqueeze\(-1\)`",
    ),
    "floats as classes": (
        lambda *run: train_two_steps(*run, model=Scores(nn.functional.cross_entropy), rows=FLOATS),
        r"^`labels`: of torch.float32 and shape \(8,\), but this loss takes numbers of classes. .*`labels.long\(\)`",
    ),
    "classes as floats": (
        lambda *run: train_two_steps(
            *run,
            model=Scores(lambda logits, labels: nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels)),
        ),
        r"^`labels`: of torch.int64 and shape \(8,\), but this loss takes floats. .*`labels.float\(\)`",
    ),
    "several classes a sample": (
        lambda *run: train_two_steps(
            *run,
            model=Scores(nn.functional.cross_entropy),
            rows=[{"features": row["features"], "labels": [0, 0, 1]} for row in VECTORS],
        ),
        r"^`labels`: of torch.int64 and shape \(8, 3\), but this loss takes one class .*`labels.argmax\(-1\)`",
    ),
    "label smoothing without logits": (
        lambda *run: train_two_steps(
            *run, model=WithConfig(nn.functional.cross_entropy), fields={"label_smoothing_factor": 0.1}
        ),
        "^`label_smoothing_factor=0.1`: .* Let it return `logits` without them, or set 0",
    ),
    "logits compared with classes": (
        partial(evaluate, compute_metrics=difference),
        r"^`compute_metrics`: `predictions` are of shape \(8, 3\), a number .* Take `predictions.argmax\(-1\)`",
    ),
    "logits given to scikit-learn": (
        partial(
            evaluate,
            compute_metrics=refusing("Classification metrics can't handle a mix of multiclass and continuous targets"),
        ),
        r"a number for each class, and `label_ids` of \(8,\)",
    ),
    "padding given to scikit-learn": (
        lambda *run: evaluate(
            *run,
            model=gpt2(),
            rows=[{"input_ids": [5, 6], "labels": [-100, 6]}] * 8,
            compute_metrics=refusing("multiclass-multioutput is not supported"),
        ),
        r"^`compute_metrics`: `label_ids` are -100 .*`predictions\[label_ids != -100\]`",
    ),
    "logits that are decoded": (
        lambda *run: evaluate(
            *run, model=gpt2(), rows=[{"input_ids": [5, 6], "labels": [5, 6]}] * 8, compute_metrics=first_texts
        ),
        r"logits and no tokens. Take `predictions.argmax\(-1\)`, or have a `Seq2SeqTrainer` generate",
    ),
    "predictions of several shapes": (
        lambda *run: evaluate(*run, model=Grows(), fields={"per_device_eval_batch_size": 4}, **METRICS),
        "^`preprocess_logits_for_metrics`: the predictions of batches differ in their third dimension",
    ),
    **{
        name: (partial(train_two_steps, model=Raises(RuntimeError(text))), note)
        for name, (text, note) in GPU_OR_WORKERS.items()
    },
    "a language model without its collator": (
        lambda *run: train_two_steps(*run, model=masked_model(), rows=TOKENS),
        r"^`labels`: of shape \(8,\), but `input_ids` of \(8, 3\). .*, as `DataCollatorForLanguageModeling` does",
    ),
    "a tokenizer as collator": (
        lambda *run: train_two_steps(*run, model=bert_classifier(), rows=TOKENS, data_collator=helpers.tokenizer()),
        "^`data_collator`: .* is a tokenizer. Pass it as `processing_class`",
    ),
}


def gpt2_classifier() -> Any:
    sizes = {"vocab_size": 48, "n_embd": 16, "n_layer": 1, "n_head": 2, "num_labels": 3}
    return transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**sizes))


def raised(mistake: Callable[..., None], library: Any, folder: Path) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any, which is compared
        mistake(library, folder)
    return caught.value


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")
@pytest.mark.parametrize(
    ("mistake", "note"),
    [
        pytest.param(*row, id=name, marks=() if index % 4 == 0 else pytest.mark.slow)
        for index, (name, row) in enumerate(MISTAKES.items())
    ],
)
def test_the_error_says_what_to_do(mistake, note, tmp_path):
    """Class and text are those of transformers, and one note below them names the field and the remedy."""
    theirs = raised(mistake, transformers, tmp_path / "theirs")
    before = len(getattr(theirs, "__notes__", ()))
    ours = raised(mistake, hf_compat, tmp_path / "ours")
    assert (type(ours), str(ours)) == (type(theirs), str(theirs))
    *others, own = ours.__notes__
    assert re.search(note, own)
    assert len(others) == before


def test_a_tokenizer_that_is_not_loaded(tmp_path):
    """A name or a class trains as in transformers, without padding; the constructor warns of the save, which fails."""
    fields = {"save_strategy": "steps", "save_steps": 2}
    for given, found, error in (
        ("bert-base-cased", "the name 'bert-base-cased': .* Pass `AutoTokenizer.from_pretrained", AttributeError),
        (transformers.BertTokenizer, "the class BertTokenizer: .* Pass `BertTokenizer.from_pretrained", TypeError),
    ):
        with pytest.raises(error, match="save_pretrained"):
            train_two_steps(transformers, tmp_path, fields=fields, processing_class=given)
        with pytest.warns(HFCompatWarning, match=f"`processing_class` is {found}"):
            trainer = two_step_trainer(hf_compat, tmp_path, fields=fields, processing_class=given)
        with pytest.raises(error, match="save_pretrained"):
            trainer.train()
        assert trainer.state.global_step == 2


def words(**tokens):
    """Return a tokenizer of two words and an unknown one."""
    core = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", **tokens)


@pytest.mark.parametrize(
    ("name", "meaning"), [("pad_token", "padding"), ("eos_token", "ends of texts")], ids=["pad", "end"]
)
def test_a_token_that_the_vocabulary_lacks(name, meaning, tmp_path):
    """It is the unknown token, as in transformers, and the constructor warns; not if it is added, or meant to be."""
    tokenizer = words()
    setattr(tokenizer, name, "<new>")
    assert getattr(tokenizer, f"{name}_id") == tokenizer.unk_token_id
    for given in (tokenizer, SimpleNamespace(tokenizer=tokenizer)):  # or a processor that has it
        with pytest.warns(HFCompatWarning, match=f"unknown words count as {meaning}"):
            two_step_trainer(hf_compat, tmp_path, processing_class=given)
    tokenizer.add_special_tokens({name: "<new>"})
    assert getattr(tokenizer, f"{name}_id") == 3
    for given in (tokenizer, words(), words(**{name: "<unk>"})):
        two_step_trainer(hf_compat, tmp_path, processing_class=given)


def test_classes_in_the_place_of_instances(tmp_path):
    """A collator, or the training arguments: the error is of transformers' class and comes with the constructor."""
    collator = transformers.DataCollatorWithPadding
    with pytest.raises(TypeError):
        train_two_steps(transformers, tmp_path, model=bert_classifier(), rows=TOKENS, data_collator=collator)
    with pytest.raises(TypeError, match=r"^`data_collator`: DataCollatorWithPadding is a class. Pass an instance"):
        two_step_trainer(hf_compat, tmp_path, model=bert_classifier(), rows=TOKENS, data_collator=collator)
    for args, found in ((hf_compat.TrainingArguments, "the class TrainingArguments"), ("out", "an object of type str")):
        with pytest.raises(AttributeError):
            transformers.Trainer(PlainModel(), args)
        with pytest.raises(AttributeError, match=f"`args` is {found}: pass an instance of `TrainingArguments`"):
            hf_compat.Trainer(PlainModel(), args)
