"""Whatever transformers raises in a case, ours is an instance of that class too, with a message of its own.

Each row is run by both libraries. Rows of errors with phrases that people search for are in ``test_error_phrases.py``,
those of overrides that return what cannot be used in ``test_wrong_returns.py``.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from hf_compat import TrainingArguments
from hf_compat.errors import ArgumentsError, ArgumentTypesError, CheckpointError, HFCompatError, OutputFolderError
from tests.support.helpers import WIDTH, ListDataset, PlainModel, vector_rows
from tests.support.phrases import LIBRARIES, rows_of_this_release, variables_taken_back
from tests.support.trainers import QUIET

ROWS = ListDataset(vector_rows(4))
SGD = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
TRACKERS = {
    "azure_ml": "azureml",
    "clearml": "clearml",
    "codecarbon": "codecarbon",
    "comet_ml": "comet_ml",
    "dvclive": "dvclive",
    "swanlab": "swanlab",
    "trackio": "trackio",
    "wandb": "wandb",
}
"""Tracker to its package; without MLflow, after whose error transformers' callback raises another as it is deleted."""


@dataclass(frozen=True)
class Row:
    """One error.

    Attributes:
        then: What ends in it, with the library and a folder.
        since: The first release with it.
        until: The first release without it.
    """

    then: Callable[[Any, Path], object]
    since: str = "4.57"
    until: str = "6"


def made(library: Any, folder: Path, given: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Return a Trainer of the library, with constructor arguments ``given`` and training arguments ``fields``."""
    settings = {**QUIET, "max_steps": 2, "save_strategy": "no", "per_device_train_batch_size": 2, **fields}
    args = library.TrainingArguments(str(folder), **settings)
    model = {} if "model_init" in (given or {}) else {"model": PlainModel()}
    return library.Trainer(args=args, **{"train_dataset": ROWS, "eval_dataset": ROWS, **model, **(given or {})})


def fields(since: str = "4.57", until: str = "6", **values: Any) -> Row:
    """Return the row of training arguments."""
    return Row(lambda library, folder: made(library, folder, **values).train(), since, until)


def given(call: str = "train", **values: Any) -> Row:
    """Return the row of constructor arguments and a method."""
    return Row(lambda library, folder: getattr(made(library, folder, values), call)())


def json_file(content: str, name: str) -> Row:
    """Return the row of a file as the value of the field ``name``."""

    def then(library: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "given.json").write_text(content, "utf-8")
        made(library, folder, **{name: str(folder / "given.json")})

    return Row(then)


def schedule(name: str, **options: Any) -> Row:
    """Return the row of a schedule with ``options``."""
    since = "5.4" if name == "greedy" else "4.57"
    evaluates = {"eval_strategy": "steps", "eval_steps": 1} if name in ("greedy", "reduce_lr_on_plateau") else {}
    return fields(since, lr_scheduler_type=name, lr_scheduler_kwargs=options, **evaluates)


def returning(outputs: Callable[[torch.Tensor], Any], call: str = "train") -> Row:
    """Return the row of a model whose outputs are those of a function of its logits."""

    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH, 3))

        def forward(self, features: torch.Tensor, labels: Any = None) -> Any:
            return outputs(features @ self.weight)

    return given(call, model=Returns())


def metrics(value: Any, **values: Any) -> Row:
    """Return the row of what ``compute_metrics`` returns."""

    def compute(prediction: Any, compute_result: bool = True) -> Any:
        return value

    return Row(lambda library, folder: made(library, folder, {"compute_metrics": compute}, **values).evaluate())


class RunsCode:
    """An object that runs code as it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("unpickled",))


def spoiled(spoil: Callable[[Path], object]) -> Row:
    """Return the row of resuming a checkpoint of transformers after ``spoil`` has changed it."""

    def then(library: Any, folder: Path) -> None:
        made(transformers, folder / "first", save_strategy="steps", save_steps=1).train()
        checkpoint = folder / "first" / "checkpoint-1"
        spoil(checkpoint)
        made(library, folder / "second").train(resume_from_checkpoint=str(checkpoint))

    return Row(then)


def rename_weights(checkpoint: Path) -> None:
    """Rename all weights in a checkpoint, as a ``_save`` does that saves the model within a model."""
    file = checkpoint / "model.safetensors"
    save_file({f"inner.{name}": value for name, value in load_file(file).items()}, file, {"format": "pt"})


def written(name: str, content: bytes) -> Row:
    return spoiled(lambda folder: (folder / name).write_bytes(content))


def halved(name: str) -> Row:
    def halve(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return spoiled(halve)


def saved(name: str, content: object) -> Row:
    def save(folder: Path) -> None:
        if name == "pytorch_model.bin":
            (folder / "model.safetensors").unlink()
        torch.save(content, folder / name)

    return spoiled(save)


def resuming(value: Any) -> Row:
    return Row(lambda library, folder: made(library, folder).train(resume_from_checkpoint=value))


def of_other_arguments(value: Any) -> Row:
    return Row(lambda library, folder: library.Trainer(PlainModel(), value, train_dataset=ROWS).train())


TABLE: dict[str, Row] = {
    **{
        f"tracker {name}": fields(report_to=[name])
        for name, package in TRACKERS.items()
        if util.find_spec(package) is None
    },
    "keyword of no schedule": schedule("linear", cycles=2),
    "keyword of another schedule": schedule("cosine_with_restarts", cycles=2),
    "keyword of plateau": schedule("reduce_lr_on_plateau", cycles=2),
    "keyword of greedy": schedule("greedy", cycles=2),
    "schedule without its length": schedule("warmup_stable_decay"),
    "schedule of two minimums": schedule("cosine_with_min_lr", min_lr=1, min_lr_rate=1),
    "key of accelerator_config": fields(accelerator_config={"split": True}),
    "key of accelerator_config in JSON": fields(accelerator_config='{"split": true}'),
    "accelerator_config of a list": fields(accelerator_config=["split"]),
    "accelerator_config without its file": fields(accelerator_config="nothing.json"),
    "accelerator_config of no JSON": json_file("{", "accelerator_config"),
    "key of its accumulation": fields("5", accelerator_config={"gradient_accumulation_kwargs": {"other": 1}}),
    "accumulation of a number": fields(accelerator_config={"gradient_accumulation_kwargs": 3}),
    "fsdp_config of a number": fields(until="5", fsdp_config=3),
    "fsdp_config without its file": fields(until="5", fsdp_config="nothing.json"),
    "optim_args of a number": fields(optim_args=3),
    "compiler of a number": fields(torch_compile_backend=3),
    "log_level": fields(log_level="loud"),
    "log_level of a list": fields(log_level=["info"]),
    "no accumulation": fields(gradient_accumulation_steps=0),
    "accumulation of no evaluation": Row(
        lambda library, folder: made(library, folder, eval_accumulation_steps=0).evaluate()
    ),
    "endless warm-up": fields(warmup_steps=float("inf")),
    "noise of a plain model": fields(neftune_noise_alpha=5.0),
    "arguments of a dict": of_other_arguments({"output_dir": "out"}),
    "arguments of a path": of_other_arguments("out"),
    "class of models": given(model=PlainModel),
    "name of a model": given(model="bert-base-cased"),
    "object as a model": given(model=object()),
    "init of a name": given(model_init=lambda: "bert-base-cased"),
    "init of a class": given(model_init=lambda: PlainModel),
    "optimizers of none": given(optimizers=None),
    "one optimizer": given(optimizers=SGD),
    "name of an optimizer": given(optimizers=("adamw", None)),
    "class of optimizers": given(optimizers=(torch.optim.SGD, None)),
    "name of a schedule": given(optimizers=(None, "linear")),
    "optimizer as a schedule": given(optimizers=(SGD, SGD)),
    "class without keywords": given(optimizer_cls_and_kwargs=torch.optim.SGD),
    "name with keywords": given(optimizer_cls_and_kwargs=("sgd", {})),
    "class and none": given(optimizer_cls_and_kwargs=(torch.optim.SGD, None)),
    "callback of a number": given(callbacks=[3]),
    "callback of none": given(callbacks=[None]),
    "callbacks of a number": given(callbacks=3),
    "batch of none": given("evaluate", data_collator=lambda rows: None),
    "batch of a list": given("evaluate", data_collator=lambda rows: rows),
    "batch of a tensor": given(data_collator=lambda rows: torch.ones(2)),
    "loss of none": returning(lambda logits: {"loss": None}),
    "evaluated loss of none": returning(lambda logits: {"loss": None}, "evaluate"),
    "loss of a number": returning(lambda logits: {"loss": 1.0}),
    "no loss": returning(lambda logits: {"logits": logits}),
    "tensor that is no loss": returning(lambda logits: logits),
    "metrics of a text": metrics("f1"),
    "metrics of a list": metrics([("f1", 1.0)]),
    "metrics of a batch": metrics("f1", batch_eval_metrics=True),
    "predictions of a text": given(
        "evaluate", compute_metrics=lambda _: {}, preprocess_logits_for_metrics=lambda *_: "logits"
    ),
    "no state": written("trainer_state.json", b""),
    "state of no JSON": written("trainer_state.json", b"no JSON"),
    "state of a list": written("trainer_state.json", b"[]"),
    "state of another type": written("trainer_state.json", b'{"global_step": "x"}'),
    **{
        f"{what} {name}": row
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")
        for what, row in {
            "empty": written(name, b""),
            "code in": saved(name, {"state": RunsCode()}),
            "nothing in": saved(name, {}),
        }.items()
    },
    "no archive in optimizer.pt": written("optimizer.pt", b"garbage" * 9),
    "half of optimizer.pt": halved("optimizer.pt"),
    "list in optimizer.pt": saved("optimizer.pt", [1]),
    "half of scheduler.pt": halved("scheduler.pt"),
    "empty model.safetensors": written("model.safetensors", b""),
    "model.safetensors of another model": spoiled(rename_weights),
    "half of model.safetensors": halved("model.safetensors"),
    "code in pytorch_model.bin": saved("pytorch_model.bin", {"state": RunsCode()}),
    "list in pytorch_model.bin": saved("pytorch_model.bin", [1]),
    "checkpoint of a number": resuming(5),
    "checkpoint of a list": resuming(["checkpoint-1"]),
    "checkpoint that is not there": resuming("checkpoint-1"),
}


def raised(row: Row, library: str, folder: Path) -> BaseException | None:
    """Return the error in which a row ends under a library."""
    with warnings.catch_warnings(), variables_taken_back():
        warnings.simplefilter("ignore")
        try:
            row.then(import_module(library), folder / library)
        except Exception as error:
            return error
    return None


@pytest.mark.parametrize("row", rows_of_this_release(TABLE))
def test_classes(row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both raise; ours is of hf_compat's classes and of transformers', and code in a checkpoint was not run."""
    theirs, ours = (raised(row, library, tmp_path) for library in LIBRARIES)
    assert theirs is not None
    assert isinstance(ours, HFCompatError), repr(ours)
    assert isinstance(ours, type(theirs)), (repr(theirs), type(ours).__mro__)
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize("optim", ["galore_adamw", "apollo_adamw"])
def test_a_projected_optimizer(optim: str, tmp_path: Path) -> None:
    """Its state holds objects of its package, which neither library unpickles: an UnpicklingError in both."""
    pytest.importorskip("galore_torch" if optim == "galore_adamw" else "apollo_torch")

    def then(library: Any, folder: Path) -> None:
        settings = {"optim": optim, "optim_target_modules": ["body"], "save_strategy": "steps", "save_steps": 1}
        made(library, folder, **settings).train()
        made(library, folder, **settings).train(resume_from_checkpoint=True)

    theirs, ours = (raised(Row(then), library, tmp_path) for library in LIBRARIES)
    assert isinstance(theirs, pickle.UnpicklingError)
    assert isinstance(ours, pickle.UnpicklingError)
    assert isinstance(ours, CheckpointError)


def test_several_problems_are_of_the_classes_of_each() -> None:
    """An error that lists several problems is caught by what catches any of them, here and from another process."""
    values = {"log_level": "loud", "gradient_accumulation_steps": 0, "optim_args": 3}
    with pytest.raises(ArgumentsError) as caught:
        TrainingArguments("out", **values)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert len(error.problems) == len(values)
        assert type(error).__name__ == "ArgumentTypesError"
        assert isinstance(error, ArgumentTypesError)
        assert isinstance(error, KeyError)
        assert isinstance(error, ZeroDivisionError)
        assert str(error).startswith("3 problems in TrainingArguments:\n")


@pytest.mark.parametrize("other", [json.JSONDecodeError, KeyError, OSError, pickle.UnpicklingError, UnicodeDecodeError])
def test_a_class_that_is_also_another(other: type[Exception]) -> None:
    """It has the name and the text of ours, whatever the other's constructor takes and its text would be."""
    error = CheckpointError.also(other)("It cannot be read.")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(each, CheckpointError)
        assert isinstance(each, other)
        assert (type(each).__name__, str(each)) == ("CheckpointError", "It cannot be read.")
    assert CheckpointError.also(ValueError) is CheckpointError
    assert OutputFolderError.also(AttributeError) is OutputFolderError  # Python has no layout for both


class OddOutputs(PlainModel):
    """Returns logits that are sparse, or a tensor for every other batch and a pair of them for the others."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0

    def forward(self, features: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.calls += 1
        outputs = super().forward(features, labels)
        logits = outputs["logits"].detach()
        odd = logits.to_sparse() if self.kind == "sparse" else (logits, logits) if self.calls % 2 else logits
        return {**outputs, "logits": odd}


@pytest.mark.parametrize(("kind", "concatenates"), [("sparse", True), ("sparse", False), ("pairs", True)])
def test_outputs_that_cannot_be_joined(kind: str, concatenates: bool, tmp_path: Path) -> None:
    """Predictions that are sparse are a TypeError in both, those of another type in each batch an AssertionError."""
    settings = {"eval_do_concat_batches": concatenates, "per_device_eval_batch_size": 2}
    row = Row(lambda library, folder: made(library, folder, {"model": OddOutputs(kind)}, **settings).predict(ROWS))
    theirs, ours = (raised(row, library, tmp_path) for library in LIBRARIES)
    assert type(theirs) is (TypeError if kind == "sparse" else AssertionError)
    assert isinstance(ours, HFCompatError), repr(ours)
    assert isinstance(ours, type(theirs)), (repr(theirs), type(ours).__mro__)
