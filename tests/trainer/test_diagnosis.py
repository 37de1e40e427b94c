"""Errors that say little: what is known of their cause is added after they are raised; class and text stay."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import traceback
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

import hf_compat
from hf_compat.arguments.problems import LIGHTNING_KEYWORDS
from hf_compat.errors import CheckpointError, LossError, MetricNameError, UnknownArgumentError
from tests.support import helpers
from tests.support.helpers import VOCABULARY, WIDTH, ListDataset, bert_classifier, gpt2, vector_rows
from tests.support.trainers import QUIET, arguments, new_trainer


def one_step_trainer(library: Any, folder: Any, model: nn.Module, rows: Any, **given: Any) -> Any:
    """Return a Trainer of a library that trains on, and evaluates, ``rows``."""
    fields = {"max_steps": 1, "save_strategy": "no"}
    return new_trainer(folder, library=library, model=model, train_dataset=rows, given=given, **fields)


class Returns(nn.Module):
    """A model whose loss is a function of its logits."""

    def __init__(self, loss: Callable[[Any], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, 3))
        self.loss = loss

    def forward(self, features: torch.Tensor, labels: Any = None) -> dict[str, Any]:
        return {"loss": self.loss(features @ self.weight)}


def without_gradients(logits: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return (logits * 2).mean()


def inferred(logits: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return (logits * 2).mean()


LOSSES = {
    "a vector": (
        lambda logits: logits.mean(1),
        r"returned a loss of shape \(8,\): .* Return its mean, `loss.mean\(\)`",
    ),
    "no_grad": (without_gradients, r"returned a loss without gradients, computed under `torch.no_grad\(\)`"),
    "inference mode": (inferred, r"returned a loss without gradients, computed under `torch.inference_mode\(\)`"),
    "detached": (
        lambda logits: logits.mean().detach(),
        r"returned a loss without gradients, .* cut off .*`detach\(\)`",
    ),
    "integers": (lambda logits: logits.mean().long(), "returned a loss without gradients, of torch.int64"),
}


@pytest.mark.parametrize(("loss", "message"), LOSSES.values(), ids=LOSSES)
def test_losses_that_cannot_be_trained_on(loss, message, tmp_path):
    """The error says whose loss, what it is and what to return; it is of torch's class, and has torch's words."""
    rows = ListDataset(vector_rows(8))
    with pytest.raises(RuntimeError) as theirs:
        one_step_trainer(transformers, tmp_path, Returns(loss), rows).train()
    with pytest.raises(LossError, match=f"^`Trainer.compute_loss` {message}") as caught:
        one_step_trainer(hf_compat, tmp_path, Returns(loss), rows).train()
    assert isinstance(caught.value, RuntimeError)
    assert str(theirs.value) in str(caught.value)


def test_gradients_that_are_switched_off(tmp_path):
    """A script that has switched them off for the whole process is told so."""
    trainer = one_step_trainer(hf_compat, tmp_path, Returns(lambda logits: logits.mean()), ListDataset(vector_rows(8)))

    class SwitchesOff(hf_compat.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            torch.set_grad_enabled(False)

    trainer.add_callback(SwitchesOff())
    try:
        with pytest.raises(LossError, match=r"`torch.set_grad_enabled\(False\)` is in effect. Set it to True"):
            trainer.train()
    finally:
        torch.set_grad_enabled(True)


def tokens(*ids: int, labels: Any = 0) -> list[dict[str, Any]]:
    return [{"input_ids": list(ids), "labels": labels}] * 8


NOTES = {
    "ids": (bert_classifier, tokens(5, VOCABULARY + 7), f"8 of 16 ids are not in .* of {VOCABULARY}, such as 55"),
    "positions": (
        gpt2,
        tokens(*[5] * 200, labels=[5] * 200),
        "sequences of 200 tokens, but the model has .* positions",
    ),
    "classes": (
        bert_classifier,
        tokens(5, labels=4),
        "from 4 to 4, but the model has 3 .* Load it with `num_labels=5`",
    ),
    "floats": (bert_classifier, tokens(5, labels=0.5), "of torch.float32 and shape .* `problem_type='regression'`"),
}


@pytest.mark.parametrize(("model", "rows", "note"), NOTES.values(), ids=NOTES)
@pytest.mark.parametrize("call", ["train", "evaluate"])
def test_inputs_that_the_model_cannot_take(model, rows, note, call, tmp_path):
    """Class and text are those of the model's error, as in transformers; a note says what is wrong with the inputs."""
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - any, which is compared
        getattr(one_step_trainer(transformers, tmp_path, model(), rows), call)()
    with pytest.raises(type(theirs.value), match=note) as caught:
        getattr(one_step_trainer(hf_compat, tmp_path, model(), rows), call)()
    assert str(caught.value) == str(theirs.value)
    assert len(caught.value.__notes__) == 1


def test_an_error_of_the_users_own(tmp_path):
    """It gets no note if the inputs are as they should be."""

    class Raises(hf_compat.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            raise ValueError("mine")

    args = arguments(tmp_path, max_steps=1)
    with pytest.raises(ValueError, match=r"^mine$") as caught:
        Raises(bert_classifier(), args, train_dataset=tokens(5)).train()
    assert not hasattr(caught.value, "__notes__")


def test_samples_of_different_lengths(tmp_path):
    """The default collator cannot stack them; the note names the column and what pads."""
    rows = [{"input_ids": [5] * (1 + number % 3), "labels": 0} for number in range(8)]
    for library in (transformers, hf_compat):
        with pytest.raises(ValueError, match="expected sequence of length") as caught:
            one_step_trainer(library, tmp_path, bert_classifier(), rows).train()
    (note,) = caught.value.__notes__
    assert note.startswith(
        "`input_ids`: samples of 1 to 3 values in one batch. Pass the tokenizer as `processing_class`"
    )


def test_a_callback_without_keywords(tmp_path):
    """The note has its class and event, and what it takes; an error inside of a callback has none."""

    def callbacks(library: Any) -> Any:
        class Needs(library.TrainerCallback):
            def on_step_end(self, args, state, control):
                """Take too little."""

        class Raises(library.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                raise TypeError("mine")

        return Needs(), Raises()

    rows = ListDataset(vector_rows(8))
    for which, note in enumerate([r"define `Needs.on_step_end\(self, args, state, control, \*\*kwargs\)`", r"^mine$"]):
        for library in (transformers, hf_compat):
            model = Returns(lambda logits: logits.mean())
            trainer = one_step_trainer(library, tmp_path, model, rows, callbacks=[callbacks(library)[which]])
            with pytest.raises(TypeError, match=note if library is hf_compat else "on_step_end|mine"):
                trainer.train()


@pytest.mark.parametrize("fields", [{}, {"batch_eval_metrics": True}], ids=["whole", "batchwise"])
def test_a_name_that_predictions_do_not_have(fields, tmp_path):
    """The note has the names that there are; another object's missing name is the user's own."""

    def read(prediction: Any, compute_result: bool = True) -> dict[str, float]:
        return {"mean": prediction.logits.mean()}

    def other(prediction: Any, compute_result: bool = True) -> dict[str, float]:
        return {"mean": prediction.predictions.nothing}

    args = arguments(tmp_path, **fields)
    rows = tokens(5)
    for compute, note in ((read, "has the model's outputs as `predictions`"), (other, "has no attribute 'nothing'$")):
        trainer = hf_compat.Trainer(bert_classifier(), args, eval_dataset=rows, compute_metrics=compute)
        with pytest.raises(AttributeError, match=note) as caught:
            trainer.evaluate()
        assert caught.traceback[-1].name == compute.__name__


# Errors of ours that say more

SAVES: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}


def test_weights_of_another_model(tmp_path):
    """Instead of torch's text, which is the cause: how many differ, the first three, and what the file alone has."""
    new_trainer(tmp_path, model=bert_classifier(), train_dataset=tokens(5), max_steps=1, **SAVES).train()
    config = helpers._bert_config()
    config.type_vocab_size, config.intermediate_size = 5, 8
    other = new_trainer(tmp_path, model=transformers.BertForMaskedLM(config), train_dataset=tokens(5), **SAVES)
    with pytest.raises(CheckpointError) as caught:
        other.train(resume_from_checkpoint=True)
    first, *lines = str(caught.value).splitlines()
    assert re.fullmatch(r"The weights in `.*model.safetensors` do not fit BertForMaskedLM: 7 of \d+ have .*", first)
    assert [line.strip() for line in lines] == [
        "`bert.embeddings.token_type_embeddings.weight`: (2, 16) in the file, (5, 16) in the model",
        "`bert.encoder.layer.0.intermediate.dense.bias`: (32,) in the file, (8,) in the model",
        "`bert.encoder.layer.0.intermediate.dense.weight`: (32, 16) in the file, (8, 16) in the model",
        "and 4 more",
        "only in the file: 4, such as `bert.pooler.dense.bias`",
        "Resume with the model that the checkpoint was written with, of the same `config.json`.",
    ]
    assert "size mismatch for bert" in str(caught.value.__cause__)


def test_other_frozen_parameters(tmp_path):
    """An optimizer whose state has more parameters than this run trains."""
    new_trainer(tmp_path, max_steps=1, **SAVES).train()
    trainer = new_trainer(tmp_path, max_steps=2, **SAVES)
    next(trainer.model.parameters()).requires_grad_(False)
    with pytest.raises(CheckpointError, match=r"doesn't match the size .*, and the same parameters frozen"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.skipif(
    Version("5") <= Version(transformers.__version__), reason="transformers 5 has inputs of layers require gradients"
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpointing_behind_frozen_embeddings(tmp_path):
    """Reentrant checkpointing loses the gradients; the error says so, not that the loss was detached."""
    model: Any = gpt2()
    model.requires_grad_(False)
    model.transformer.h[-1].requires_grad_(True)
    rows = tokens(5, 6, labels=[5, 6])
    with pytest.raises(LossError, match=r"reentrant .* frozen embeddings.*'use_reentrant': False"):
        new_trainer(tmp_path, model=model, train_dataset=rows, gradient_checkpointing=True).train()


def test_the_best_model_without_labels(tmp_path):
    """An evaluation of batches without labels has no loss; the error names the field that tells which they are."""

    class Scores(hf_compat.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            outputs = model(**inputs)
            return (outputs["logits"].mean(), outputs) if return_outputs else outputs["logits"].mean()

    rows = [{"features": row["features"]} for row in vector_rows(8)]
    fields = {**SAVES, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    with pytest.raises(MetricNameError, match=r"no `eval_loss`.* by the names in `label_names=None`"):
        new_trainer(tmp_path, Scores, train_dataset=rows, **fields).train()
    fields["metric_for_best_model"] = "f1"  # which `compute_metrics` would return
    with pytest.raises(MetricNameError, match=r"no `eval_f1`.* called if batches have labels, in a column `labels`"):
        new_trainer(tmp_path, Scores, train_dataset=rows, **fields).train()


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")
@pytest.mark.parametrize("value", [torch.ones(3), np.ones(3), [1.0, 2.0]], ids=lambda value: type(value).__name__)
def test_a_best_metric_of_several_numbers(value, tmp_path):
    """The error is of transformers' class, and names the metric and its shape."""
    fields = {**SAVES, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "f1"}
    raised = []
    for library in (transformers, hf_compat):
        trainer = new_trainer(tmp_path, library=library, given={"compute_metrics": lambda _: {"f1": value}}, **fields)
        with pytest.raises((RuntimeError, ValueError)) as caught:
            trainer.train()
        raised.append(caught.value)
    assert isinstance(raised[1], type(raised[0]))
    assert re.search(
        r"`eval_f1` is an object of type \w+ of shape \(\d,\), but .* `value.mean\(\).item\(\)`", str(raised[1])
    )


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("train_dataset", "pass it to the Trainer"),
        ("compute_metrics", "pass it to the Trainer"),
        ("max_seq_length", "trl's `SFTConfig` has it"),
        ("truncation", "pass it to the tokenizer"),
    ],
)
def test_arguments_of_others(name, place, tmp_path):
    """What belongs elsewhere is said to, instead of a field that looks alike."""
    with pytest.raises(UnknownArgumentError, match=f"`{name}` is not an argument of TrainingArguments: {place}"):
        hf_compat.TrainingArguments(str(tmp_path), **{name: 1})


def test_a_constructor_that_forgets_the_trainers():
    """Upstream names a private attribute; the class is the same."""

    class Forgets(hf_compat.Trainer):
        def __init__(self, model: Any) -> None:
            self.model = model

    with pytest.raises(AttributeError, match=r"`Forgets.__init__` has not called `super\(\).__init__\(...\)`"):
        Forgets(helpers.PlainModel()).train()


def test_a_control_that_replaces_another(tmp_path):
    """A callback may return another control, which is then the run's; an error of the user's own has no note."""

    class Replaces(hf_compat.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return hf_compat.TrainerControl(should_training_stop=True)

    class Fails(hf_compat.TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise KeyError("mine")

    trainer = new_trainer(tmp_path, callbacks=[Replaces(), Fails()], max_steps=3)
    with pytest.raises(KeyError, match="mine") as caught:
        trainer.train()
    assert trainer.state.global_step == 1
    assert not hasattr(caught.value, "__notes__")


class OwnError(Exception):
    """An error of the user's own code."""


class Fails(nn.Module):
    """A model whose forward raises."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, 3))

    def forward(self, features: torch.Tensor, labels: Any = None) -> dict[str, Any]:
        raise OwnError


class Unreadable(ListDataset):
    """A dataset whose samples cannot be read."""

    def __getitem__(self, index: int) -> Any:
        raise OwnError


def failing(prediction: Any) -> dict[str, float]:
    raise OwnError


def fails_in(library: Any, place: str) -> dict[str, Any]:
    """Return what makes a Trainer of ``library`` fail in ``place``."""

    class Callback(library.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            raise OwnError

    class Overrides(library.Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            raise OwnError

    places = {
        "a forward": {"model": Fails()},
        "a dataset": {"train_dataset": Unreadable(vector_rows(8))},
        "compute_metrics": {"compute_metrics": failing},
        "a callback": {"callbacks": [Callback()]},
        "an override": {"kind": Overrides},
    }
    return places[place]


def frames_of(library: Any, folder: Any, place: str) -> list[tuple[str, int]]:
    """Return name and line of the frames of an error in ``place``, from the call of ``train`` on."""
    settings: dict[str, Any] = {"model": helpers.PlainModel(), "train_dataset": ListDataset(vector_rows(8))}
    settings |= {"kind": library.Trainer, **fails_in(library, place)}
    fields = {**QUIET, "max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no"}
    args = library.TrainingArguments(str(folder), **fields)
    evaluated = ListDataset(vector_rows(8))
    trainer = settings.pop("kind")(args=args, eval_dataset=evaluated, **settings)
    with pytest.raises(OwnError) as caught:
        trainer.train()
    return [(frame.name, frame.lineno or 0) for frame in traceback.extract_tb(caught.tb)][1:]


@pytest.mark.parametrize("place", ["a forward", "a dataset", "compute_metrics", "a callback", "an override"])
def test_a_traceback_is_short(place, tmp_path, monkeypatch):
    """It has half as many frames more than upstream's at most, and ends at the same line; all of them if asked for.

    transformers 4.57 has two frames less in an evaluation than 5.24, of which ours has five more.
    """
    ours, theirs = (frames_of(library, tmp_path, place) for library in (hf_compat, transformers))
    assert ours[-1] == theirs[-1]
    assert [name for name, _ in ours[:2]] == ["train", "_inner_training_loop"]
    is_older = Version(transformers.__version__) < Version("5")
    assert len(ours) <= (len(theirs) + 5 if is_older and place == "compute_metrics" else 1.5 * len(theirs))
    monkeypatch.setenv("HF_COMPAT_FULL_TRACEBACKS", "1")
    complete = frames_of(hf_compat, tmp_path, place)
    assert complete[-1] == ours[-1]
    assert "_fit_impl" in dict(complete)
    assert "_fit_impl" not in dict(ours)
    assert [frame for frame in complete if frame in ours] == ours


def test_a_traceback_of_lightning_is_whole(tmp_path):
    """A callback of Lightning is called by Lightning, whose frames are of use to its author."""

    class Callback(pl.Callback):
        def on_train_start(self, *args: Any) -> None:
            raise OwnError

    trainer = new_trainer(tmp_path, callbacks=[Callback()])
    with pytest.raises(OwnError) as caught:
        trainer.train()
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names[-2:] == ["_call_callback_hooks", "on_train_start"]
    assert "_fit_impl" in names


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"strategy": "ddp"}, r"pass `lightning={'strategy': 'ddp'}`\.$"),
        ({"max_epochs": 3}, "set `num_train_epochs` in `args`, or pass `lightning={'max_epochs': 3}`"),
        ({"accelerator": "cpu"}, "set `use_cpu` in `args`, or pass `lightning={'accelerator': 'cpu'}`"),
        ({"logger": pl.loggers.CSVLogger}, "set `report_to` in `args`, or pass `lightning={'logger': ...}`"),
        (
            {"precision": "bf16-mixed"},
            "set `bf16` or `fp16` in `args`, or pass `lightning={'precision': 'bf16-mixed'}`",
        ),
        ({"learning_rate": 1.0}, "it is a field of `TrainingArguments`. Set it there"),
        ({"epochs": 3}, "set `num_train_epochs` in `args`"),
        ({"peft_config": None}, r"use `model=get_peft_model\(model, peft_config\)`, of peft"),
        ({"optimizer": None}, r"use `optimizers=\(optimizer, schedule\)`"),
        ({"compute_metric": len}, r"did you mean `compute_metrics`\?"),
        ({"lightning_kwargs": {}}, r"did you mean `lightning`\?"),
        ({"learnin_rate": 1.0}, r"did you mean `learning_rate`, a field of `TrainingArguments`\?"),
        ({"qqqqqq": 1}, "it takes model, args, data_collator, .*, lightning"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_the_trainer_lacks(given, place):
    """Python names the keyword; here the error, of its class, says where it belongs."""
    (name,) = given
    with pytest.raises(TypeError, match=name):
        transformers.Trainer(helpers.PlainModel(), **given)
    with pytest.raises(
        UnknownArgumentError, match=rf"^Trainer.__init__\(\) got an unexpected keyword argument '{name}': {place}"
    ):
        hf_compat.Trainer(helpers.PlainModel(), **given)


def test_all_of_them_are_said_at_once():
    """Also of a subclass that hands its keywords on; a value that may be secret is not repeated."""

    class Mine(hf_compat.Seq2SeqTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    with pytest.raises(UnknownArgumentError) as caught:
        Mine(helpers.PlainModel(), devices=2, hub_token="secret")
    first, second = str(caught.value).split("\n")
    assert first == "Trainer.__init__() got an unexpected keyword argument 'devices': pass `lightning={'devices': 2}`."
    assert "'hub_token' is not an argument of Mine: it is a field" in second
    assert "secret" not in second


@pytest.mark.parametrize("name", [*LIGHTNING_KEYWORDS])
def test_a_keyword_of_lightning_in_the_training_arguments(name):
    """It is said to belong to the Trainer, beside the fields that say the same, which there are."""
    fields = re.findall(r"`(\w+)`", LIGHTNING_KEYWORDS[name] or "")
    assert {*fields} <= inspect.signature(hf_compat.TrainingArguments).parameters.keys()
    if name not in fields:
        with pytest.raises(UnknownArgumentError, match=rf"pass `lightning={{'{name}': \.\.\.}}` to the Trainer"):
            hf_compat.TrainingArguments(**{name: 1})


def test_no_keyword_of_lightning_is_forgotten():
    """The table has each, but for the callbacks, which are an argument of the Trainer."""
    assert LIGHTNING_KEYWORDS.keys() == inspect.signature(pl.Trainer.__init__).parameters.keys() - {"self", "callbacks"}


@pytest.mark.parametrize(
    "name",
    [name for name in inspect.signature(hf_compat.Trainer.__init__).parameters if name not in ("self", "unknown")],
)
def test_arguments_of_the_trainer_in_the_training_arguments(name):
    """Each is said to belong to the Trainer."""
    with pytest.raises(UnknownArgumentError, match=rf"`{name}` is not an argument of .*: pass it to the Trainer\.$"):
        hf_compat.TrainingArguments(**{name: 1})


@pytest.mark.parametrize("name", ["fit", "validate", "test"])
def test_methods_of_lightnings_trainer(name, tmp_path):
    """Each is an AttributeError, as in transformers, which names what to call."""
    with pytest.raises(AttributeError, match=name):
        getattr(new_trainer(tmp_path, library=transformers), name)
    with pytest.raises(AttributeError, match=f"`{name}` is a method of a `lightning.Trainer`. Call `"):
        getattr(new_trainer(tmp_path), name)


class Explicit(hf_compat.Trainer):
    """Names what it takes, as a script's subclass does."""

    def __init__(self, model, args, train_dataset=None, processing_class=None):
        super().__init__(model, args, train_dataset=train_dataset, processing_class=processing_class)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (
            "max_epochs",
            "set `num_train_epochs` in `args`, or hand on to `super().__init__` `lightning={'max_epochs': 3}`.",
        ),
        ("learning_rate", "it is a field of `TrainingArguments`. Set it there, and pass them as `args`."),
        ("max_length", "it is a field of `OwnArguments`. Set it there, and pass them as `args`."),
        ("train_ds", "use `train_dataset`."),
        ("tokenizer", "use `processing_class`."),
        (
            "val_dataset",
            "the Trainer calls it `eval_dataset`, which this constructor does not take. Add it there, and hand it on "
            "to `super().__init__`.",
        ),
        (
            "callbacks",
            "it is an argument of the Trainer, which this constructor does not take. Add it there, and hand it on to "
            "`super().__init__`.",
        ),
        ("train_datset", "did you mean `train_dataset`?"),
        ("qqqqqq", "it takes model, args, train_dataset, processing_class."),
    ],
)
def test_arguments_that_a_subclass_lacks(name, place, tmp_path):
    """Python's own error, with the place behind its words, and raised where the class is called."""
    args = OwnArguments(str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(UnknownArgumentError) as caught:
        Explicit(helpers.PlainModel(), args, **{name: 3})
    assert str(caught.value) == f"Explicit.__init__() got an unexpected keyword argument {name!r}: {place}"
    with pytest.raises(TypeError, match=r"^Explicit\.__init__\(\) missing 1 required positional argument: 'args'$"):
        Explicit(helpers.PlainModel())


@dataclasses.dataclass
class OwnArguments(hf_compat.TrainingArguments):
    """Has a field of a library's own."""

    max_length: int = 8


def renaming(init):
    """Decorate a constructor that had a keyword by an older name, as libraries do, with the signature of the newer."""

    @functools.wraps(init)
    def taking_both(self, *args, **kwargs):
        if "old" in kwargs:
            kwargs["train_dataset" if issubclass(type(self), hf_compat.Trainer) else "max_length"] = kwargs.pop("old")
        init(self, *args, **kwargs)

    return taking_both


def test_a_constructor_that_renames_a_keyword(tmp_path):
    """Its signature is that of the function it wraps, but it takes any keyword: of a Trainer, and of arguments."""

    class Renamed(Explicit):
        __init__ = renaming(Explicit.__init__)

    class RenamedArguments(OwnArguments):
        __init__ = renaming(OwnArguments.__init__)

    args = RenamedArguments(str(tmp_path), use_cpu=True, report_to=[], old=4)
    assert args.max_length == 4
    assert Renamed(helpers.PlainModel(), args, old=[1]).train_dataset == [1]
    assert [*inspect.signature(Renamed).parameters] == ["model", "args", "train_dataset", "processing_class"]


def test_a_base_that_makes_instances_itself(tmp_path):
    """One beside the Trainer gets the arguments in its ``__new__``, as with a Trainer without one."""

    class Counted:
        def __new__(cls, model, args):
            made = super().__new__(cls)
            made.given = (model, args)
            return made

    class Both(hf_compat.Trainer, Counted):
        pass

    model, args = helpers.PlainModel(), OwnArguments(str(tmp_path), use_cpu=True, report_to=[])
    assert Both(model, args).given == (model, args)
