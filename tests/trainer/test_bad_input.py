"""Bad input: one clear error, before any training, that names the argument."""

import errno
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
import transformers
from datasets import Dataset, DatasetDict
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import DDPStrategy
from pandas import DataFrame
from torch import nn
from torch.utils.data import DataLoader

import hf_compat
from hf_compat import Trainer, TrainerCallback, TrainingArguments
from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.arguments.parallelism import ParallelSizes
from hf_compat.engine.process_layout import ProcessLayout, ProcessStart
from hf_compat.errors import (
    ArgumentsError,
    ArgumentTypesError,
    CallbackError,
    CheckpointError,
    DataCollatorError,
    DataError,
    DatasetTypeError,
    HFCompatError,
    HFCompatWarning,
    LoaderError,
    LogWriteError,
    LossError,
    MetricNameError,
    MetricsError,
    ModelError,
    ModelInitError,
    OutputFolderError,
    TrainerSetupError,
    UnknownArgumentError,
    UntrainableModelError,
)
from hf_compat.optim.prepared import unwrap_optimizer
from hf_compat.trainer.outputs import EvalLoopOutput
from tests.support.helpers import WIDTH, ListDataset, PlainModel, Stream, bert_classifier, gpt2, vector_rows
from tests.support.trainers import QUIET, arguments, new_trainer


def trainer_of_four(tmp_path, *, model=None, train=None, **fields):
    """Return a Trainer of four samples, and of none to evaluate."""
    return new_trainer(tmp_path, model=model, rows=4, train_dataset=train, given={"eval_dataset": None}, **fields)


class Pretrained(PlainModel):
    """A model with two members of transformers' classes; of the class itself the second is a property, and so true."""

    @classmethod
    def from_pretrained(cls, name):
        """Return a new model."""
        return cls()

    @property
    def is_distributed_loading_by_transformers(self):
        """Whether it was sharded when it was loaded."""
        return False


def test_no_model(tmp_path):
    """Neither a model nor a way to make one."""
    with pytest.raises(TrainerSetupError, match="`model=None`"):
        Trainer(args=arguments(tmp_path))


def with_attention(attention):
    """Return a model that says which attention it has."""
    model = PlainModel()
    model.config = SimpleNamespace(_attn_implementation=attention)
    return model


@pytest.mark.parametrize(
    ("build", "place", "fields", "message"),
    [
        pytest.param(
            lambda: with_attention("eager"),
            {"strategy": "fsdp2", "fsdp": FsdpSettings(version=2), "sizes": ParallelSizes(cp=3)},
            {},
            "is 'eager'.*`cp_size=3`",
            id="attention that ranks cannot share",
        ),
        pytest.param(
            lambda: nn.SyncBatchNorm(4),
            {"strategy": "one device", "start": ProcessStart("spawn", 2)},
            {"auto_find_batch_size": True},
            "`auto_find_batch_size=True` is not supported with `SyncBatchNorm`",
            id="norms of all ranks",
        ),
    ],
)
@pytest.mark.parametrize("name", ["model", "model_init"])
def test_models_that_the_strategy_does_not_support(build, place, fields, message, name, tmp_path, monkeypatch):
    """They are refused as the Trainer is made, also one that `model_init` returns."""

    def place_run(args, keywords, model):
        return ProcessLayout(args.launch, **place)

    monkeypatch.setattr("hf_compat.engine.backend.place_run", place_run)
    args = arguments(tmp_path, **fields)
    with pytest.raises(TrainerSetupError, match=message):
        Trainer(args=args, **{name: build() if name == "model" else lambda: build()})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PlainModel, r"`model`: PlainModel is a class. Pass an instance of it: `PlainModel\(...\)`\."),
        (
            Pretrained,
            r"`model`: Pretrained is a class. Pass an instance of it: .* or `Pretrained.from_pretrained\(...\)`\.",
        ),
        (
            "bert-base-cased",
            r"`model`: 'bert-base-cased' is a string. Load the model .*from_pretrained\('bert-base-cased'\)",
        ),
        ([], r"`model`: an object of type list. Pass a `torch.nn.Module`\."),
    ],
    ids=["class", "pretrained class", "string", "list"],
)
def test_what_is_no_model(model, message, tmp_path):
    """A class, a name or anything else that cannot be trained, passed as a model or returned by ``model_init``."""
    args = arguments(tmp_path)
    with pytest.raises(ModelError, match=message):
        Trainer(model, args)
    with pytest.raises(ModelInitError, match=message.removeprefix("`model`: ")):
        Trainer(args=args, model_init=lambda: model)


class Ported(pl.LightningModule):
    """A LightningModule as in its documentation: of its methods a Trainer calls only ``forward``."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    def training_step(self, batch, batch_idx=0):
        return self.layer(batch["features"]).mean()


class WithForward(Ported):
    def forward(self, features, labels=None):
        return {"loss": self.layer(features).mean()}


class Mixed(pl.LightningModule, PlainModel):
    """Inherits its ``forward`` past that of the LightningModule."""

    accepts_loss_kwargs = False

    def __init__(self):
        super().__init__()
        PlainModel.__init__(self)


@pytest.mark.parametrize("fields", [{}, {"remove_unused_columns": False}], ids=["used columns", "all columns"])
def test_a_lightning_module(fields, tmp_path):
    """One without a ``forward`` is named as the Trainer is made, by an error of upstream's types."""
    args = arguments(tmp_path, **fields)
    rows = ListDataset(vector_rows(4))
    told = r"^`model`: Ported is a LightningModule. Pass an nn.Module whose .* the page 'Coming from Lightning' "
    for given in ({"model": Ported()}, {"model_init": Ported}):
        with pytest.raises(UntrainableModelError, match=told) as caught:
            Trainer(**given, args=args, train_dataset=rows)
        assert isinstance(caught.value, ModelError)
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("made", ["of its own", "inherited", "assigned", "by the Trainer"])
def test_a_lightning_module_that_trains(made, tmp_path):
    """One that returns a loss, from whichever ``forward``, trains, with a warning that names the methods that do not.

    One of whose loss an override of the Trainer's makes use trains without.
    """

    class Calls(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model.training_step(inputs)

    model = {"of its own": WithForward, "inherited": Mixed}.get(made, Ported)()
    if made == "assigned":
        model.forward = lambda features, labels=None: {"loss": model.layer(features).mean()}
    kind = Calls if made == "by the Trainer" else Trainer
    args = arguments(tmp_path, max_steps=1, save_strategy="no", remove_unused_columns=False)
    told = pytest.warns(HFCompatWarning, match="is a LightningModule.* and none of `training_step`")
    with told if made in ("of its own", "assigned") else nullcontext():
        trainer = kind(model, args, train_dataset=ListDataset(vector_rows(4)))
    assert trainer.train().global_step == 1


def test_a_forward_of_any_arguments(tmp_path):
    """Of its signature no column is known, and all are removed; the error says what to set."""

    class Takes(PlainModel):
        def forward(self, *values, **named):
            return super().forward(*values, **named)

    trainer = trainer_of_four(tmp_path, model=Takes())
    with pytest.raises(DataError, match=r"batch received was empty. `Takes.forward` takes any .*unused_columns=False`"):
        trainer.train()


def test_a_frozen_model(tmp_path):
    """A model without trainable parameters is named where torch's error came, of which the phrase and type are kept."""
    trainer = trainer_of_four(tmp_path, model=PlainModel().requires_grad_(False))
    told = "^`model`: no parameter of PlainModel requires gradients.* element 0 of tensors does not require grad"
    with pytest.raises(UntrainableModelError, match=told) as caught:
        trainer.train()
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("bert-base-cased", r"`model_init='bert-base-cased'` cannot be called"),
        (
            PlainModel(),
            r"`model_init`: PlainModel is a model, not a function that returns one. Pass it as `model`",
        ),
    ],
    ids=["string", "model"],
)
def test_what_is_no_model_init(init, message, tmp_path):
    """What cannot be called to make a model, passed as ``model_init``."""
    with pytest.raises(ModelInitError, match=message):
        Trainer(args=arguments(tmp_path), model_init=init)


class ReturnsNoLoss(Trainer):
    """Forgets to return the loss, or returns it alone where the outputs are asked for too."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        return loss if return_outputs else None


class PredictsNothing(Trainer):
    """Forgets to return the results of its prediction step."""

    def prediction_step(self, *given, **named):
        super().prediction_step(*given, **named)


class PredictsTwo(Trainer):
    """Returns no labels."""

    def prediction_step(self, *given, **named):
        return super().prediction_step(*given, **named)[:2]


class PredictsNumber(Trainer):
    """Returns a loss that is no tensor."""

    def prediction_step(self, *given, **named):
        return 1.0, None, None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (PredictsNothing, r"`PredictsNothing.prediction_step` returned None\. Return the loss, the logits and the"),
        (PredictsTwo, r"`PredictsTwo.prediction_step` returned an object of type tuple of length 2\."),
        (PredictsNumber, r"`PredictsNumber.prediction_step` returned an object of type float instead of the loss"),
    ],
)
def test_no_prediction(kind, message, tmp_path):
    """A prediction step that returns no loss, logits and labels: scripts that catch upstream's errors catch this."""
    trainer = kind(PlainModel(), arguments(tmp_path), eval_dataset=ListDataset(vector_rows(4)))
    with pytest.raises(LossError, match=message) as caught:
        trainer.evaluate()
    assert isinstance(caught.value, TypeError | ValueError)


class ReturnsNone(nn.Module):
    """Returns no outputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, features, labels=None):
        return None


def test_no_outputs(tmp_path):
    """A model that returns nothing is named, in training and in an evaluation."""
    rows, args = ListDataset(vector_rows(4)), arguments(tmp_path, max_steps=1)
    trainer = Trainer(ReturnsNone(), args, train_dataset=rows, eval_dataset=rows)
    for call in (trainer.train, trainer.evaluate):
        with pytest.raises(LossError, match="`model`: ReturnsNone returned None"):
            call()


@pytest.mark.parametrize("batch", [None, [], torch.ones(2), 5], ids=["none", "list", "tensor", "number"])
def test_batches_without_names(batch, tmp_path):
    """A collator whose batches a model cannot take, in training and in an evaluation."""
    rows, args = ListDataset(vector_rows(4)), arguments(tmp_path, max_steps=1)
    trainer = Trainer(
        PlainModel(),
        args,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=lambda features: features if batch == [] else batch,
    )
    kind = "None" if batch is None else f"an object of type {type(batch).__name__}"
    for call in (trainer.train, trainer.evaluate):
        with pytest.raises(LoaderError, match=f"`data_collator`: a batch is {kind}, but the model takes its inputs by"):
            call()


def test_batches_that_the_users_code_takes(tmp_path):
    """Lists are batches to a Trainer whose ``compute_loss`` reads them."""

    class Reads(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(torch.stack([torch.tensor(row["features"]) for row in inputs]))["logits"].mean()

    args = arguments(tmp_path, max_steps=1)
    trainer = Reads(PlainModel(), args, train_dataset=ListDataset(vector_rows(4)), data_collator=list)
    assert trainer.train().global_step == 1


@pytest.mark.parametrize("loader", [None, 5])
@pytest.mark.parametrize("name", ["get_train_dataloader", "get_eval_dataloader", "get_test_dataloader"])
def test_what_is_no_loader(name, loader, tmp_path):
    """An override that returns no loader is named; the error is of upstream's type too."""
    rows, args = ListDataset(vector_rows(4)), arguments(tmp_path, max_steps=1)
    trainer = Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows)
    setattr(trainer, name, lambda dataset=None: loader)
    calls = {"train": trainer.train, "eval": trainer.evaluate, "test": lambda: trainer.predict(rows)}
    with pytest.raises(LoaderError, match=f"`{name}` returned .*Return a `DataLoader`") as caught:
        calls[name.split("_")[1]]()
    assert isinstance(caught.value, TypeError)


SGD = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)


@pytest.mark.parametrize(
    ("optimizers", "message"),
    [
        (None, "an object of type NoneType is no pair"),
        (SGD, "an object of type SGD is no pair"),
        ((None,), "an object of type tuple is no pair"),
        (("adamw", None), "an object of type str is no optimizer"),
        ((torch.optim.SGD, None), "the class SGD is no optimizer"),
        ((None, "linear"), "an object of type str is no learning-rate schedule"),
        ((torch.optim.lr_scheduler.ConstantLR(SGD), SGD), "an object of type ConstantLR is no optimizer"),
    ],
    ids=["none", "an optimizer", "one", "a name", "a class", "a name of a schedule", "swapped"],
)
def test_what_is_no_optimizer(optimizers, message, tmp_path):
    """Each part of ``optimizers`` is checked when it is given."""
    with pytest.raises(TrainerSetupError, match=f"`optimizers`: {message}"):
        Trainer(PlainModel(), arguments(tmp_path), optimizers=optimizers)


@pytest.mark.parametrize("given", [torch.optim.SGD, ("sgd", {}), (torch.optim.SGD,)])
def test_what_names_no_optimizer(given, tmp_path):
    """``optimizer_cls_and_kwargs`` is a pair of something that can be called and a dict."""
    with pytest.raises(TrainerSetupError, match=r"`optimizer_cls_and_kwargs=.*`: pass a pair of a class and a dict"):
        Trainer(PlainModel(), arguments(tmp_path), optimizer_cls_and_kwargs=given)


def of_a_lightning_module(method, library):
    """Return a Trainer class with ``method`` as a LightningModule has it."""

    def own(self, batch, batch_idx):
        return self.model(**batch)["loss"]

    return type("Own", (library.Trainer,), {method: own})


@pytest.mark.parametrize("method", ["training_step", "compute_loss"])
def test_methods_with_the_parameters_of_a_lightning_module(method, tmp_path):
    """The error is of transformers' class and says what a Trainer's method takes; a name of its own does not matter."""
    for library, text in (
        (transformers, None),
        (
            hf_compat,
            r"own\(batch, batch_idx\)` has the parameters of a LightningModule.s. .* take `model, inputs, num_",
        ),
    ):
        args = library.TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
        trainer = of_a_lightning_module(method, library)(PlainModel(), args, train_dataset=vector_rows(4))
        with pytest.raises(TypeError, match=text):
            trainer.train()


class ReturnsNothing(Trainer):
    """Forgets to return the loss of its training step."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        super().training_step(model, inputs, num_items_in_batch)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (ReturnsNoLoss, {}, r"`ReturnsNoLoss.compute_loss` returned None instead of the loss"),
        (ReturnsNothing, {}, r"`ReturnsNothing.training_step` returned None instead of the loss"),
        (
            Trainer,
            {"compute_loss_func": lambda *_, **__: None},
            r"`compute_loss_func` returned None instead of the loss",
        ),
        (Trainer, {"compute_loss_func": lambda *_, **__: 1.0}, r"`compute_loss_func` returned an object of type float"),
    ],
    ids=["compute_loss", "training_step", "compute_loss_func", "a number"],
)
def test_no_loss(kind, given, message, tmp_path):
    """Users' code that returns no loss: the error says whose, and scripts that catch upstream's TypeError catch it."""
    args = arguments(tmp_path, max_steps=1)
    trainer = kind(PlainModel(), args, train_dataset=ListDataset(vector_rows(4)), **given)
    with pytest.raises(LossError, match=message) as caught:
        trainer.train()
    assert isinstance(caught.value, TypeError)


def test_no_outputs_beside_the_loss(tmp_path):
    """A ``compute_loss`` that returns the loss alone in an evaluation, which needs the outputs too."""
    args = arguments(tmp_path)
    trainer = ReturnsNoLoss(PlainModel(), args, eval_dataset=ListDataset(vector_rows(4)))
    with pytest.raises(LossError, match=r"`ReturnsNoLoss.compute_loss` returned an object of type Tensor for"):
        trainer.evaluate()


class ReturnsMore(PlainModel):
    """Returns, beside its logits, what is no tensor."""

    more = None

    def forward(self, features, labels=None):
        return {**super().forward(features, labels), "more": self.more}


@pytest.mark.parametrize(("more", "named"), [(None, "None"), (["a"], "an object of type str")], ids=["None", "text"])
@pytest.mark.parametrize("legacy", [False, True], ids=["evaluation_loop", "prediction_loop"])
def test_outputs_that_are_no_tensors(more, named, legacy, tmp_path):
    """A model whose further outputs cannot be gathered: upstream raises a TypeError, ours says what to do, which works.

    Without predictions that are kept it does not matter.
    """
    model, rows = ReturnsMore(), ListDataset(vector_rows(4))
    model.more = more
    args = {"output_dir": str(tmp_path), **QUIET}
    theirs = transformers.Trainer(model, transformers.TrainingArguments(**args), eval_dataset=rows)
    trainer = Trainer(model, TrainingArguments(**args), eval_dataset=rows)
    if legacy:
        trainer.evaluation_loop = trainer.prediction_loop
    with pytest.raises(TypeError):
        theirs.predict(rows)
    message = f"`Trainer.prediction_step` returned logits with {named}, but only tensors .* name it in `ignore_keys`"
    with pytest.raises(LossError, match=message) as caught:
        trainer.predict(rows)
    assert isinstance(caught.value, TypeError)
    assert trainer.evaluate()["eval_loss"] == theirs.evaluate()["eval_loss"]
    ours, expected = trainer.predict(rows, ignore_keys=["more"]), theirs.predict(rows, ignore_keys=["more"])
    assert (ours.predictions == expected.predictions).all()


def test_empty_train_dataset(tmp_path):
    """Training on a data set without samples; what does not train on it may have one, and it may be filled later."""
    trainer = trainer_of_four(tmp_path, train=ListDataset([]))
    assert trainer.evaluate(ListDataset(vector_rows(4)))["eval_loss"] > 0
    with pytest.raises(DataError, match="`train_dataset` is empty"):
        trainer.train()
    trainer.train_dataset.rows += vector_rows(4)
    assert trainer.train().global_step > 0


def test_no_train_dataset(tmp_path):
    """Training without a data set."""
    args = arguments(tmp_path)
    with pytest.raises(DataError, match="`train_dataset=None`"):
        Trainer(PlainModel(), args).train()


def test_iterable_without_max_steps(tmp_path):
    """A data set without length needs ``max_steps``."""
    with pytest.raises(ArgumentsError, match="`max_steps=-1`"):
        trainer_of_four(tmp_path, train=Stream(vector_rows(4)))


def test_two_accumulations(tmp_path):
    """Both ways to set it; the Trainer says so, not its arguments, as upstream, where a script may still set one."""
    config = {"gradient_accumulation_kwargs": {"num_steps": 2}}
    args = arguments(tmp_path, gradient_accumulation_steps=4, accelerator_config=config)
    with pytest.raises(ArgumentsError, match=r"`gradient_accumulation_steps=4`.*num_steps=2"):
        Trainer(PlainModel(), args)
    args.gradient_accumulation_steps = 2
    assert Trainer(PlainModel(), args).args.gradient_accumulation_steps == 2


class Collator:
    """A collator of the oldest releases."""

    def collate_batch(self, rows):
        raise AssertionError("not called")


@pytest.mark.parametrize(
    ("collator", "remedy"),
    [
        pytest.param(Collator(), "Rename its `collate_batch` to `__call__`.", id="the old name"),
        pytest.param(1, "Pass a function of a list of samples.", id="no function"),
        pytest.param({"features": 1}, "pass a dataset by name, `train_dataset=...`.", id="a mapping"),
        pytest.param(ListDataset(vector_rows(1)), "pass a dataset by name, `train_dataset=...`.", id="a dataset"),
    ],
)
def test_collator_that_cannot_be_called(tmp_path, collator, remedy):
    """It is told alone, or with all other problems."""
    rows, args = ListDataset(vector_rows(4)), arguments(tmp_path)
    with pytest.raises(DataCollatorError, match=f"^`data_collator`: {type(collator).__name__} .*{remedy}$") as caught:
        Trainer(PlainModel(), args, train_dataset=rows, data_collator=collator)
    assert isinstance(caught.value, TypeError)
    with pytest.raises(ArgumentsError, match=r"(?s)`max_steps=-1`.*`data_collator`"):
        Trainer(PlainModel(), args, train_dataset=Stream(vector_rows(4)), data_collator=collator)


@pytest.mark.parametrize(
    ("model_init", "kind", "told"),
    [
        pytest.param(lambda one, two: None, RuntimeError, "0 or 1 argument", id="two arguments"),
        pytest.param(lambda: None, RuntimeError, "should not return None", id="no model"),
        pytest.param(None, TypeError, "`model_init=None`", id="none"),
    ],
)
def test_model_init_that_makes_no_model(tmp_path, model_init, kind, told):
    """Each is one of our errors and of upstream's type."""
    args = arguments(tmp_path)
    model = PlainModel() if model_init is None else None
    with pytest.raises(ModelInitError, match=told) as caught:
        Trainer(model, args, model_init=model_init).call_model_init()
    assert isinstance(caught.value, kind)


def test_metric_that_no_evaluation_returns(tmp_path):
    """The message is shown as it is, not in quotes as a KeyError's; it names the metrics that there are."""
    rows = ListDataset(vector_rows(4))
    settings = {"metric_for_best_model": "f1", "eval_strategy": "epoch", "save_strategy": "best", "max_steps": 1}
    args = arguments(tmp_path, **settings)
    with pytest.raises(MetricNameError, match=r"^`metric_for_best_model='f1'`.*only eval_loss") as caught:
        Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows).train()
    assert isinstance(caught.value, KeyError)


def test_metric_of_an_evaluation_without_any(tmp_path):
    """The message says that there are none, and names no others to use."""

    class Empty(Trainer):
        def evaluate(self, *args, **kwargs):
            return {}

    settings = {"metric_for_best_model": "f1", "eval_strategy": "epoch", "save_strategy": "best", "max_steps": 1}
    args, rows = arguments(tmp_path, **settings), ListDataset(vector_rows(4))
    trainer = Empty(PlainModel(), args, train_dataset=rows, eval_dataset=rows)
    with pytest.raises(MetricNameError) as caught:
        trainer.train()
    assert str(caught.value).endswith("there is no `eval_f1`, and no other metric. Return it from `compute_metrics`.")


@pytest.mark.parametrize(
    ("metrics", "kind"),
    [
        (None, "None"),
        ("f1", "an object of type str"),
        (1.0, "an object of type float"),
        ([("f1", 1.0)], "an object of type list"),
    ],
)
def test_metrics_that_are_none(metrics, kind, tmp_path):
    """A function that returns no dict is an error of upstream's type that names it."""
    args = arguments(tmp_path)
    trainer = Trainer(PlainModel(), args, eval_dataset=ListDataset(vector_rows(4)), compute_metrics=lambda _: metrics)
    with pytest.raises(MetricsError, match=f"`compute_metrics` returned {kind}") as caught:
        trainer.evaluate()
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("metrics", "shown"), [("accuracy", "'accuracy'"), ({"f1": max}, "an object of type dict")], ids=["name", "dict"]
)
@pytest.mark.parametrize("fields", [{}, {"batch_eval_metrics": True}], ids=["whole", "batchwise"])
def test_metrics_that_cannot_be_called(metrics, shown, fields, tmp_path):
    """What is no function is named as the Trainer is made, by an error of upstream's type; an override may read it."""
    args = arguments(tmp_path, **fields)
    with pytest.raises(MetricsError, match=f"^`compute_metrics`: {shown} cannot be called. Pass a function") as caught:
        Trainer(PlainModel(), args, compute_metrics=metrics)
    assert isinstance(caught.value, TypeError)

    class ByName(Trainer):
        def evaluation_loop(self, *given, **named):
            """Look the metrics up by other rules."""

    assert ByName(PlainModel(), args, compute_metrics=metrics).compute_metrics is metrics


@pytest.mark.parametrize(
    ("returned", "kind"), [(None, "None"), (5, "an object of type int"), ((1, 2), "an object of type tuple")]
)
def test_an_evaluation_without_metrics(returned, kind, tmp_path):
    """An override of ``evaluate`` that returns something else is named where its metrics choose the best model."""

    class Forgets(Trainer):
        def evaluate(self, *given, **named):
            super().evaluate(*given, **named)
            return returned

    rows = ListDataset(vector_rows(4))
    settings = {"metric_for_best_model": "loss", "eval_strategy": "epoch", "save_strategy": "best", "max_steps": 1}
    args = arguments(tmp_path, **settings)
    with pytest.raises(MetricsError, match=f"`evaluate` returned {kind}"):
        Forgets(PlainModel(), args, train_dataset=rows, eval_dataset=rows).train()


NO_OUTPUTS = {
    "None": (None, "None"),
    "a number": (5, "an object of type int"),
    "metrics": ({"eval_loss": 1.0}, "an object of type dict"),
    "an output without metrics": (EvalLoopOutput(None, None, None, 4), "an object of type EvalLoopOutput"),
}


@pytest.mark.parametrize(("returned", "kind"), NO_OUTPUTS.values(), ids=NO_OUTPUTS)
@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_a_loop_without_an_output(call, returned, kind, tmp_path):
    """An override of ``evaluation_loop`` that forgets to return is named, by an error of upstream's types."""

    class Forgets(Trainer):
        def evaluation_loop(self, *given, **named):
            super().evaluation_loop(*given, **named)
            return returned

    rows = ListDataset(vector_rows(4))
    with pytest.raises(MetricsError, match=f"`evaluation_loop` returned {kind}") as caught:
        getattr(Forgets(PlainModel(), arguments(tmp_path)), call)(rows)
    assert isinstance(caught.value, AttributeError)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("returned", [None, 5, (5, None), ([], None, None)], ids=str)
def test_a_window_that_is_none(returned, tmp_path):
    """An override of ``get_batch_samples`` that returns no batches is named, by an error of upstream's types."""

    class Forgets(Trainer):
        def get_batch_samples(self, *given):
            return returned

    args = arguments(tmp_path, max_steps=1)
    with pytest.raises(LoaderError, match="`get_batch_samples` returned") as caught:
        Forgets(PlainModel(), args, train_dataset=ListDataset(vector_rows(4))).train()
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


class Needs(TrainerCallback):
    """Cannot be created without an argument."""

    def __init__(self, path):
        self.path = path


class NeedsToo(pl.Callback):
    """As a Lightning callback."""

    def __init__(self, path):
        self.path = path


@pytest.mark.parametrize("kind", [Needs, NeedsToo])
def test_a_class_of_callbacks_with_arguments(kind, tmp_path):
    """The error names the class and the argument, and what to pass."""
    message = rf"`callbacks`: {kind.__name__} cannot be created without arguments .*'path'"
    with pytest.raises(CallbackError, match=message) as caught:
        Trainer(PlainModel(), arguments(tmp_path), callbacks=[kind])
    assert isinstance(caught.value, TypeError)


def test_callbacks_that_are_no_list(tmp_path):
    """A callback alone is not taken for a list."""
    with pytest.raises(CallbackError, match=r"`callbacks`: .* TrainerCallback is no list\. Pass a list of callbacks"):
        Trainer(PlainModel(), arguments(tmp_path), callbacks=TrainerCallback())


@pytest.mark.parametrize(
    ("part", "keyword"),
    [(CSVLogger("."), "logger"), (SimpleProfiler(), "profiler"), (DDPStrategy(), "strategy")],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_keywords_of_lightning_among_callbacks(part, keyword, tmp_path):
    """Where they belong is said, also of those with methods that are named like events."""
    said = f"of type {type(part).__name__} is no callback. Pass it as `lightning={{'{keyword}': ...}}`"
    with pytest.raises(CallbackError, match=re.escape(said)):
        Trainer(PlainModel(), arguments(tmp_path), callbacks=[part])
    with pytest.raises(CallbackError, match=re.escape(said)):
        Trainer(PlainModel(), arguments(tmp_path)).add_callback(part)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("ddp", "'ddp'"), (["ddp"], "an object of type list")],
    ids=["text", "list"],
)
def test_keywords_of_lightning_that_are_no_dict(given, shown, tmp_path):
    """They are refused, with what a dict of them looks like."""
    with pytest.raises(TrainerSetupError, match=f"`lightning`: {shown} is no dict. Pass keywords") as caught:
        Trainer(PlainModel(), arguments(tmp_path), lightning=given)
    assert isinstance(caught.value, TypeError)


def test_unknown_keywords_of_lightning(tmp_path):
    """The nearest name of each is said."""
    with pytest.raises(TrainerSetupError, match="Did you mean `max_epochs` and `strategy`"):
        Trainer(PlainModel(), arguments(tmp_path), lightning={"max_epoch": 3, "strategie": "ddp"})


@pytest.mark.parametrize("callback", [3, "tensorboard", {}, object()])
def test_what_is_no_callback(callback, tmp_path):
    """It is refused when it is given, with what to pass instead."""
    args = arguments(tmp_path)
    with pytest.raises(CallbackError, match="is not a callback: pass an instance or a subclass of TrainerCallback"):
        Trainer(PlainModel(), args, callbacks=[callback])
    with pytest.raises(CallbackError, match="is not a callback"):
        Trainer(PlainModel(), args).add_callback(callback)


@pytest.mark.parametrize("fields", [{"logging_steps": "3"}, {"learning_rate": "1e-3"}, {"seed": None}])
def test_numbers_of_another_type(fields, tmp_path):
    """They are of upstream's type too."""
    with pytest.raises(ArgumentTypesError, match="must be a number") as caught:
        TrainingArguments(str(tmp_path), **{**QUIET, **fields})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_an_optimizer_of_another_model(tmp_path):
    """A model that was replaced between two runs is not trained in vain, with an optimizer that was passed."""
    model = PlainModel()
    given = {"optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None), "eval_dataset": None}
    trainer = new_trainer(tmp_path, model=model, rows=4, given=given, max_steps=1)
    trainer.train()
    trainer.model = PlainModel()
    with pytest.raises(TrainerSetupError, match=r"updates no parameter of `trainer.model`.*lr_scheduler = None"):
        trainer.train()
    trainer.optimizer = trainer.lr_scheduler = None
    assert trains_its_model(trainer)


def test_an_own_optimizer_of_another_model(tmp_path):
    """In place of one that the Trainer had made, it makes another for each model that replaces one, once."""
    trainer = trainer_of_four(tmp_path, max_steps=1)
    made = []
    for renewed in (True, False, True):
        if renewed:
            trainer.model = PlainModel()
        assert trains_its_model(trainer)
        made.append(unwrap_optimizer(trainer.optimizer))
    assert made[0] is made[1] is not made[2]


def trains_its_model(trainer):
    """Train, and return whether that changed the model's weights."""
    before = [value.clone() for value in trainer.model.parameters()]
    trainer.train()
    return not all(torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True))


def test_an_optimizer_of_a_smaller_layer(tmp_path):
    """A layer that has grown between two runs, as a vocabulary does, is refused before the optimizer steps on it."""
    trainer = trainer_of_four(tmp_path, max_steps=1)
    trainer.train()
    layer = next(module for module in trainer.model.modules() if isinstance(module, nn.Linear))
    rows, columns = layer.weight.shape
    layer.weight.data = torch.cat([layer.weight.data, torch.zeros(rows, 1)], dim=1)
    told = rf"average of shape \({rows}, {columns}\).*has become \({rows}, {columns + 1}\).*lr_scheduler = None"
    with pytest.raises(TrainerSetupError, match=told):
        trainer.train()


def test_an_optimizer_that_is_taken_away(tmp_path):
    """A run that is left without one ends with what to do."""

    class Takes(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.optimizer = None

    trainer = trainer_of_four(tmp_path, max_steps=3)
    trainer.add_callback(Takes())
    with pytest.raises(TrainerSetupError, match=r"`trainer.optimizer` was set to None.*create_optimizer\(\)"):
        trainer.train()


def test_accumulation_that_changes_during_training(tmp_path):
    """The planned number stays, and a warning says so once."""

    class Changes(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            args.gradient_accumulation_steps = 1

    trainer = trainer_of_four(tmp_path, max_steps=4, gradient_accumulation_steps=2, per_device_train_batch_size=1)
    trainer.add_callback(Changes())
    with pytest.warns(HFCompatWarning, match="was changed from 2 to 1 during training. This run keeps 2") as told:
        trainer.train()
    assert len(told) == 1
    assert trainer.state.global_step == 4


class SizedStream(Stream):
    """A stream that knows its length."""

    def __len__(self):
        return 4


@pytest.mark.parametrize("kind", [Stream, SizedStream])
def test_an_order_that_a_stream_cannot_have(kind, tmp_path, caplog):
    """A stream, with a length or without, has an order of its own: the field is ignored with a warning that is true."""
    fields = {"train_sampling_strategy": "group_by_length", "max_steps": 1, "semantics": "5.23"}
    with caplog.at_level("WARNING", "hf_compat"):
        trainer_of_four(tmp_path, train=kind(vector_rows(4)), **fields).get_train_dataloader()
    told = (
        "`train_sampling_strategy='group_by_length'` is ignored: the order of samples can only be chosen for a dataset"
    )
    assert caplog.text.count(told) == 1


@pytest.mark.parametrize("kind", [Stream, SizedStream])
def test_an_order_that_releases_before_5_2_refuse(kind, tmp_path):
    """Under their semantics a stream in groups of equal length is an error, as it is there."""
    with pytest.raises(ArgumentsError, match="only available for `Dataset`, not for an `IterableDataset`"):
        trainer_of_four(tmp_path, train=kind(vector_rows(4)), group_by_length=True, max_steps=1, semantics="4.57")


class NoLoss(nn.Module):
    """A model that returns logits alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, features, labels=None):
        return {"logits": self.layer(features)}


def test_model_without_loss(tmp_path):
    """A model that returns no loss is refused at its first batch, before any update step."""
    trainer = trainer_of_four(tmp_path, model=NoLoss())
    before = trainer.model.layer.weight.clone()
    with pytest.raises(ModelError, match=r"`model`: NoLoss did not return a loss, only: logits"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert torch.equal(trainer.model.layer.weight, before)


@pytest.mark.parametrize(
    ("model", "columns", "advice"),
    [
        (bert_classifier, {"target": 1}, "The dataset also has target: rename the labels to `labels`, pass"),
        (
            bert_classifier,
            {"labels": "good"},
            "The dataset has `labels` that the collator leaves out, as",
        ),
        (gpt2, {}, "Make labels by `data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False)`, pass"),
        (PlainModel, {}, "Its inputs were: features. Name the labels as its forward does, pass"),
    ],
    ids=["another name", "texts", "a language model", "none"],
)
def test_samples_without_labels(model, columns, advice, tmp_path):
    """The error says how the model gets them: what is in the dataset, or what a language model's collator makes."""
    name, value = ("features", [0.0] * WIDTH) if model is PlainModel else ("input_ids", [5, 6])
    with pytest.raises(LossError, match=re.escape(advice)):
        trainer_of_four(tmp_path, model=model(), train=ListDataset([{name: value, **columns}] * 4)).train()


class LossOfNone(NoLoss):
    """A model that has the name of a loss, and none."""

    def forward(self, features, labels=None):
        return {"loss": None, **super().forward(features)}


def test_model_whose_loss_is_none(tmp_path):
    """The error says that the loss is None, not that it is there."""
    trainer = trainer_of_four(tmp_path, model=LossOfNone())
    with pytest.raises(ModelError, match=r"`model`: LossOfNone did not return a loss, only: loss=None, logits\."):
        trainer.train()


def test_bare_transformers_model(tmp_path):
    """A transformers base model, which has no head to give a loss, is refused by name."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    with pytest.raises(ModelError, match=r"`model`: BertModel computes hidden states only"):
        trainer_of_four(tmp_path, model=transformers.BertModel(config))


def test_bare_transformers_model_with_a_loss_of_the_users(tmp_path):
    """A base model trains with a loss that the user computes, and predicts where nothing is trained."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    args = arguments(tmp_path, max_steps=1, save_strategy="no")
    rows = ListDataset([{"input_ids": torch.tensor([1, 2, 3])}] * 2)
    hidden = Trainer(transformers.BertModel(config), args).predict(rows).predictions[0]
    assert hidden.shape == (2, 3, 8)

    class Squared(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs).last_hidden_state.pow(2).mean()

    assert Squared(transformers.BertModel(config), args, train_dataset=rows).train().global_step == 1


def test_strategies_that_disagree(tmp_path):
    """The best model can only be loaded if evaluations are saved."""
    with pytest.raises(ArgumentsError, match="load_best_model_at_end"):
        TrainingArguments(
            output_dir=str(tmp_path), load_best_model_at_end=True, eval_strategy="epoch", save_strategy="steps"
        )


def test_unknown_argument(tmp_path):
    """A misspelt argument is refused with the nearest name."""
    with pytest.raises(UnknownArgumentError, match="learning_rate"):
        TrainingArguments(output_dir=str(tmp_path), learning_rat=1e-3)


def test_evaluation_without_data(tmp_path):
    """An evaluation strategy without a data set to evaluate on."""
    with pytest.raises(ArgumentsError, match=r"`eval_strategy='epoch'`.*eval_dataset"):
        trainer_of_four(tmp_path, eval_strategy="epoch")


@pytest.mark.parametrize("broken", ["missing", "empty", "garbage weights", "garbage state"])
def test_unreadable_checkpoint(tmp_path, broken):
    """A checkpoint that is not there, holds nothing or holds garbage is refused, and nothing of it is deleted."""
    folder = tmp_path / "checkpoint-1"
    if broken in ("garbage weights", "garbage state"):
        trainer_of_four(tmp_path, max_steps=1).train()
        name = "model.safetensors" if broken == "garbage weights" else "trainer_state.json"
        (folder / name).write_bytes(b"garbage")
    elif broken == "empty":
        folder.mkdir()
    kept = sorted(path.name for path in folder.iterdir()) if folder.exists() else None
    with pytest.raises(CheckpointError, match="checkpoint-1"):
        trainer_of_four(tmp_path, max_steps=2).train(resume_from_checkpoint=str(folder))
    assert kept == (sorted(path.name for path in folder.iterdir()) if folder.exists() else None)


def test_no_checkpoint_to_resume_from(tmp_path):
    """``resume_from_checkpoint=True`` in a folder without checkpoints."""
    with pytest.raises(CheckpointError, match="No valid checkpoint found in output directory"):
        trainer_of_four(tmp_path).train(resume_from_checkpoint=True)


def test_copies_that_would_train_apart(tmp_path, monkeypatch):
    """Several processes that are not told which one they are would train a copy each; that is refused."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainerSetupError, match=r"WORLD_SIZE=2 .*RANK is not set"):
        trainer_of_four(tmp_path)


def test_strategies_of_accelerate_launch(tmp_path, monkeypatch):
    """What ``accelerate launch`` asks for and cannot be carried out is refused, not replaced."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(TrainerSetupError, match=r"`fsdp` shards a model over several processes.*world size is only 1"):
        trainer_of_four(tmp_path)


def test_all_problems_at_once(tmp_path):
    """All that is wrong with one set of arguments is told in one error."""
    with pytest.raises(ArgumentsError) as caught:
        TrainingArguments(output_dir=str(tmp_path), fp16=True, bf16=True, warmup_steps=-1, use_cpu=True)
    assert len(caught.value.problems) >= 2


def test_all_problems_of_a_trainer_at_once(tmp_path):
    """What is wrong with the constructor's arguments is told together with what data and ``args`` lack."""
    args = arguments(tmp_path, eval_strategy="epoch", save_strategy="best")
    lacking = {"args": args, "train_dataset": Stream([])}
    with pytest.raises(ArgumentsError) as caught:
        Trainer(PlainModel(), **lacking)
    of_args = ("`eval_strategy='epoch'`", "`metric_for_best_model=None`", "`train_dataset` has no length")
    assert all(part in str(caught.value) for part in of_args)
    optimizers = (torch.optim.SGD(PlainModel().parameters()), None)
    with pytest.raises(TrainerSetupError) as caught:
        Trainer(
            **lacking,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=(torch.optim.SGD, {}),
            lightning={"min_steps": -1, "fast_dev_run": -3, "profilr": "simple"},
        )
    of_the_constructor = (
        "`model=None`",
        "Passing both `optimizers`",
        "'min_steps': -1",
        "'fast_dev_run': -3",
        "Did you mean `profiler`",
    )
    assert all(part in str(caught.value) for part in (*of_args, *of_the_constructor))


def test_what_optimizer_and_schedule_cannot_read(tmp_path):
    """It is told when the Trainer is built, together with the rest; an override that reads it is not in the way."""
    wrong = {"optim_args": "rank", "lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"cycles": 1, "floor": 0}}
    args = arguments(tmp_path, **wrong, eval_strategy="epoch")
    with pytest.raises(ArgumentsError) as caught:
        Trainer(PlainModel(), args)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "`eval_strategy='epoch'`",
        "`optim_args='rank'`",
        "`lr_scheduler_kwargs={'cycles'",
        "`lr_scheduler_kwargs={'floor'",
    ]

    class Mine(Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            """Make both by other rules."""

    args.eval_strategy = "no"
    Mine(PlainModel(), args)


def test_every_error_is_ours():
    """Every error derives from one class, so that a caller can tell them from bugs."""
    for error in (ArgumentsError, CheckpointError, DataError, ModelError, TrainerSetupError, UnknownArgumentError):
        assert issubclass(error, HFCompatError)


SPLITS = DatasetDict({name: Dataset.from_list(vector_rows(4)) for name in ("train", "validation")})


@pytest.mark.parametrize(
    ("dataset", "said", "parent"),
    [
        ("imdb", "the string 'imdb'. Load it", TypeError),
        ({"features": [[1.0, 2.0]], "labels": [0]}, "of type dict, with features, labels, instead of", KeyError),
        (DataFrame({"labels": [0]}), "of type DataFrame, which .* `datasets.Dataset.from_pandas", KeyError),
        (5, "of type int. Pass a list of samples", TypeError),
        ((row for row in vector_rows(4)), "of type generator, .* Make a list of it, or wrap it in an `Iter", TypeError),
        (map(dict, vector_rows(4)), "of type map, .* Make a list of it, or wrap it in an `IterableDataset`", TypeError),
        (SPLITS, "of type DatasetDict, with train, .*: pass one split, such as `dataset\\['train'\\]`\\.$", KeyError),
        ({"mine": ListDataset(vector_rows(4))}, ".*: pass one split, such as `dataset\\['mine'\\]`\\.$", KeyError),
        ([*SPLITS.values()], "a list of 2 datasets. Pass one of them, or join them", RuntimeError),
        ((ListDataset(vector_rows(4)),), "a tuple of 1 datasets. Pass one of them, or join them", RuntimeError),
    ],
    ids=["name", "columns", "table", "number", "generator", "map", "splits", "own splits", "list", "tuple"],
)
def test_what_is_no_dataset(dataset, said, parent, tmp_path):
    """What is none is named, when training and predicting, by an error of upstream's class that says what to do."""
    args = arguments(tmp_path, max_steps=1)
    trainer = Trainer(PlainModel(), args, train_dataset=dataset)
    for call, purpose in ((trainer.train, "training"), (lambda: trainer.predict(dataset), "test")):
        with pytest.raises(DatasetTypeError, match=f"The dataset for {purpose} is .*{said}") as caught:
            call()
        assert isinstance(caught.value, parent)


@pytest.mark.parametrize(
    ("given", "name", "said", "parent"),
    [
        ("dev", None, "the string 'dev'. Load it", TypeError),
        ({"dev": vector_rows(4)}, "test", "'test', but `eval_dataset` of the Trainer has only dev. Pass", KeyError),
        (SPLITS["train"], "test", "'test', but `eval_dataset` of the Trainer is .* Dataset. Pass", ValueError),
        (None, "test", "'test', but `eval_dataset` of the Trainer is None. Pass", TypeError),
    ],
    ids=["a name", "another name", "no dict", "none"],
)
def test_a_name_of_no_dataset(given, name, said, parent, tmp_path):
    """A string that names no dataset of the Trainer is an error of upstream's class, with the names that there are."""
    trainer = Trainer(PlainModel(), arguments(tmp_path), eval_dataset=given)
    with pytest.raises(DatasetTypeError, match=f"The dataset for evaluation is {said}|.*{said}") as caught:
        trainer.evaluate(name)
    assert isinstance(caught.value, parent)


def test_lightnings_name_of_the_checkpoint(tmp_path):
    """`train(ckpt_path=...)`, as of Lightning's `fit`, says what the argument is called here."""
    trainer = Trainer(PlainModel(), arguments(tmp_path))
    with pytest.raises(TypeError, match=r"unexpected keyword arguments: ckpt_path\. Pass .* `resume_from_checkpoint`"):
        trainer.train(ckpt_path="last")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda trainer, _: trainer.train(), "`train_dataset` .* set `per_device_train_batch_size`, .*`get_train_"),
        (lambda trainer, _: trainer.evaluate(), "`eval_dataset` .* set `per_device_eval_batch_size`, .*`get_eval_"),
        (Trainer.evaluate, "`eval_dataset` .* set `per_device_eval_batch_size`, .*`get_eval_"),
        (Trainer.predict, "`test_dataset` .* set `per_device_eval_batch_size`, .*`get_test_"),
    ],
    ids=["train", "evaluate", "evaluate it", "predict"],
)
@pytest.mark.parametrize("rows", [ListDataset(vector_rows(4)), Stream(vector_rows(4))], ids=["list", "stream"])
def test_a_loader_as_dataset(rows, call, said, tmp_path):
    """A ``DataLoader`` where a dataset belongs is named with what to pass instead, by an error of upstream's type."""
    loader = DataLoader(rows, batch_size=2)
    args = arguments(tmp_path, max_steps=1)
    trainer = Trainer(PlainModel(), args, train_dataset=loader, eval_dataset=loader)
    with pytest.raises(DatasetTypeError, match=f"^{said}dataloader`.$") as caught:
        call(trainer, loader)
    assert "is a DataLoader. Pass its dataset (`loader.dataset`)" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_a_loader_that_an_override_returns(tmp_path):
    """A ``DataLoader`` as dataset trains and evaluates with overrides that use it as the loader that it is."""

    class Mine(Trainer):
        def get_train_dataloader(self):
            return self.train_dataset

        def get_eval_dataloader(self, eval_dataset=None):
            return self.eval_dataset

    loader = DataLoader(vector_rows(4), batch_size=2, collate_fn=transformers.default_data_collator)
    args = arguments(tmp_path, max_steps=1)
    trainer = Mine(PlainModel(), args, train_dataset=loader, eval_dataset=loader)
    assert trainer.train().global_step == 1
    assert "eval_loss" in trainer.evaluate()


@pytest.mark.parametrize("sample", [(1.0, 0), "text", 5], ids=["tuple", "string", "number"])
def test_samples_without_names(sample, tmp_path):
    """Samples that the default collator cannot make a batch of; the error is of upstream's type too."""
    args = arguments(tmp_path, max_steps=1)
    kind = type(sample).__name__
    with pytest.raises(LoaderError, match=f"A sample of the dataset is an object of type {kind}, but") as caught:
        Trainer(PlainModel(), args, train_dataset=[sample] * 4).train()
    assert isinstance(caught.value, TypeError)


def test_a_mapping_of_samples_is_a_dataset(tmp_path):
    """A dict from numbers to samples trains."""
    args = arguments(tmp_path, max_steps=1)
    assert Trainer(PlainModel(), args, train_dataset=dict(enumerate(vector_rows(4)))).train().global_step == 1


@pytest.mark.parametrize(("inside", "parent"), [("", FileExistsError), ("/out", NotADirectoryError)], ids=["is", "in"])
def test_an_output_folder_that_is_a_file(inside, parent, tmp_path):
    """An ``output_dir`` that is a file, or in one, is named with its value; the error is of upstream's type too."""
    (tmp_path / "file").write_text("")
    path = f"{tmp_path}/file{inside}"
    with pytest.raises(OutputFolderError, match=f"`output_dir='{path}'`: .*name another folder") as caught:
        Trainer(PlainModel(), arguments(path, save_strategy="no"))
    assert isinstance(caught.value, parent)


@pytest.mark.skipif(sys.platform != "linux", reason="has no file system that nobody may write to")
def test_an_output_folder_that_cannot_be_made():
    """An ``output_dir`` on a file system that refuses is named with the reason; the error is upstream's type too."""
    raised = []
    for library in (transformers, hf_compat):
        args = arguments("/proc/nowhere/out", library, max_steps=1, save_strategy="no")
        with pytest.raises(OSError, match="/proc/nowhere") as caught:
            library.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(4))).train()
        raised.append(caught.value)
    assert isinstance(raised[1], OutputFolderError)
    assert isinstance(raised[1], type(raised[0]))
    assert (raised[1].errno, raised[1].filename) == (raised[0].errno, "/proc/nowhere/out")
    assert str(raised[1]) == (
        "`output_dir='/proc/nowhere/out'`: No such file or directory, so it cannot be made. Have it made, or name "
        "another folder."
    )


def test_a_logger_that_cannot_write(tmp_path):
    """A logger of Lightning's whose file cannot be written is an error that names the logger and its folder."""
    logger = CSVLogger(tmp_path / "logs", name="", version="")
    Path(logger.experiment.metrics_file_path).mkdir()
    args = arguments(tmp_path / "out", max_steps=2, logging_steps=1, save_strategy="no")
    trainer = Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(4)), lightning={"logger": logger})
    with pytest.raises(LogWriteError, match=rf"^CSVLogger cannot write to `{tmp_path}/logs.*`: .*Is a dir") as caught:
        trainer.train()
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.EISDIR
    assert trainer.state.global_step == 1
