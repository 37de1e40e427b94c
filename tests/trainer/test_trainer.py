"""The Trainer's surface: upstream's names and parameters, and overrides called at upstream's points."""

import inspect
import shutil
from collections import UserDict
from functools import partial

import pytest
import torch

from hf_compat import Trainer, TrainerCallback, TrainingArguments, default_data_collator
from tests.support import trainers
from tests.support.helpers import ListDataset, PlainModel, gpt2, vector_rows
from tests.support.trainer_methods import OVERRIDABLE

trainer_of = partial(trainers.new_trainer, max_steps=2, save_strategy="no", logging_steps=1)


@pytest.mark.parametrize("name", OVERRIDABLE)
def test_overridable_methods_take_upstreams_parameters(name):
    """Each method that may be overridden takes at least the parameters of the installed transformers', in order."""
    transformers = pytest.importorskip("transformers")
    upstream = getattr(transformers.Trainer, name, None)
    if upstream is None:
        pytest.skip(f"the installed release has no `{name}`")
    theirs = [
        parameter.name
        for parameter in inspect.signature(upstream).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    ours = list(inspect.signature(getattr(Trainer, name)).parameters)
    assert ours[: len(theirs)] == theirs


def test_constructor_takes_upstreams_parameters_in_order():
    """The constructor's positional order is upstream's."""
    transformers = pytest.importorskip("transformers")
    theirs = list(inspect.signature(transformers.Trainer.__init__).parameters)
    assert list(inspect.signature(Trainer.__init__).parameters)[: len(theirs)] == theirs


def test_overrides_are_called(tmp_path):
    """A subclass's methods are called for each batch, update step, log and evaluation."""
    calls = []

    class Mine(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            calls.append("training_step")
            return super().training_step(model, inputs, num_items_in_batch)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            calls.append("compute_loss")
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        def log(self, logs, start_time=None):
            calls.append("log")
            super().log(logs, start_time)

        def evaluate(self, *args, **kwargs):
            calls.append("evaluate")
            return super().evaluate(*args, **kwargs)

        def _save_checkpoint(self, model, trial):
            calls.append("save")
            super()._save_checkpoint(model, trial)

    trainer_of(
        tmp_path,
        Mine,
        max_steps=1,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
    ).train()
    step = ["training_step", "compute_loss"]
    assert calls == [*step, *step, "log", "evaluate", "compute_loss", "log", "save", "log"]


def test_signatures_of_older_releases_are_called_as_they_are(tmp_path):
    """Overrides written before ``num_items_in_batch`` and ``start_time`` existed keep working."""

    class Old(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            outputs = model(**inputs)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

        def training_step(self, model, inputs):
            return super().training_step(model, inputs)

        def log(self, logs):
            super().log(logs)

    trainer = trainer_of(tmp_path, Old, eval_strategy="steps", eval_steps=1)
    assert trainer.train().global_step == 2
    assert {"loss", "eval_loss", "train_loss"} <= {key for entry in trainer.state.log_history for key in entry}


def test_model_stays_where_it_is_between_evaluations(tmp_path):
    """Evaluating twice, and training after, use the same parameters in place."""
    trainer = trainer_of(tmp_path)
    pointers = [parameter.data_ptr() for parameter in trainer.model.parameters()]
    first, second = trainer.evaluate(), trainer.evaluate()
    assert first["eval_loss"] == second["eval_loss"]
    trainer.train()
    assert [parameter.data_ptr() for parameter in trainer.model.parameters()] == pointers


def test_a_model_put_in_place_of_the_first_is_the_one_evaluated(tmp_path):
    """After ``trainer.model = other`` evaluations, and a training, are of the other model."""
    trainer = trainer_of(tmp_path)
    trainer.train()
    trainer.model = PlainModel()
    loss = trainer.evaluate()["eval_loss"]
    assert loss == trainer_of(tmp_path / "fresh", model=trainer.model).evaluate()["eval_loss"]
    trainer.optimizer = None
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    trainer.train()
    assert not all(map(torch.equal, before, trainer.model.parameters()))


class Batch(UserDict):
    """A mapping that moves itself to a device, as a tokenizer's ``BatchEncoding`` does."""

    def to(self, device, non_blocking=False):
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


def test_computing_the_loss_leaves_the_batch_whole(tmp_path):
    """Labels that a loss function takes out of its inputs are still in the batch that is counted afterwards."""
    counted = []

    class Counts(Trainer):
        def floating_point_ops(self, inputs):
            counted.append(sorted(inputs))
            return 0

    trainer = trainer_of(tmp_path, Counts)
    trainer.data_collator = lambda samples: Batch(default_data_collator(samples))
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: outputs["logits"].sum() + labels.sum()
    trainer.train()
    assert counted == [["features", "labels"]] * 2


class LossAlone(PlainModel):
    """Returns its loss as a tensor, in a dimension of its own."""

    def forward(self, features, labels=None):
        return super().forward(features, labels)["loss"].unsqueeze(0)


def test_a_loss_in_a_dimension_of_its_own(tmp_path):
    """A tensor of one element is a loss, whatever its shape."""
    assert trainer_of(tmp_path, model=LossAlone()).train().global_step == 2


class Loses(TrainerCallback):
    """Deletes every checkpoint once it is saved."""

    def on_save(self, args, state, control, **kwargs):
        shutil.rmtree(state.best_model_checkpoint, ignore_errors=True)


def test_a_lost_best_checkpoint_does_not_cost_the_result(tmp_path, caplog):
    """Where the best checkpoint is gone when training ends, the model keeps its last weights, with a warning."""
    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = trainer_of(tmp_path, load_best_model_at_end=True, **settings)
    trainer.add_callback(Loses())
    assert trainer.train().global_step == 2
    assert "Could not locate the best model at" in caplog.text


def test_settings_of_checkpointing_reach_the_model(tmp_path):
    """``every_n_layers`` and ``offload`` are arguments of their own to models that know them."""
    asked = {}

    class Checkpoints(PlainModel):
        def activation_checkpointing_enable(self, **settings):
            asked.update(settings)

    settings = {"every_n_layers": 2, "use_reentrant": False}
    trainer_of(
        tmp_path, model=Checkpoints(), activation_checkpointing=True, activation_checkpointing_kwargs=settings
    ).train()
    assert asked == {"every_n_layers": 2, "offload": False, "activation_checkpointing_kwargs": {"use_reentrant": False}}


def test_tokenizer_is_the_old_name_of_processing_class(tmp_path):
    """``tokenizer=`` works with a warning; together with ``processing_class`` it is an error."""
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    with pytest.warns(FutureWarning, match="processing_class"):
        trainer = Trainer(PlainModel(), args, tokenizer=str)
    assert trainer.processing_class is trainer.tokenizer is str
    with pytest.raises(ValueError, match="both passed"):
        Trainer(PlainModel(), args, tokenizer=str, processing_class=str)


def test_unknown_constructor_keyword_is_a_type_error(tmp_path):
    """A misspelt keyword of the constructor is refused, as upstream's."""
    with pytest.raises(TypeError, match="eval_datset"):
        Trainer(PlainModel(), TrainingArguments(output_dir=str(tmp_path)), eval_datset=[])


def test_transformers_arguments_are_taken_as_they_are(tmp_path):
    """An instance of transformers' own ``TrainingArguments`` runs the same training."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        max_steps=2,
        logging_steps=1,
    )
    histories = []
    for args in (theirs, None):
        trainer = (
            trainer_of(tmp_path)
            if args is None
            else Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))
        )
        torch.manual_seed(0)
        for parameter in trainer.model.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        trainer.train()
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert histories[0] == histories[1]


def test_an_untrained_trainer_counts_the_labels_that_are_scored(tmp_path):
    """Before any training too, a causal language model's first labels are no items: evaluations divide by them."""
    pytest.importorskip("transformers")
    batch = {"input_ids": torch.ones(2, 5, dtype=torch.long), "labels": torch.ones(2, 5, dtype=torch.long)}
    model = gpt2()
    model.loss_type = "ForCausalLM"  # as the models of 5.x that score shifted labels have it
    trainer = trainer_of(tmp_path, model=model)
    items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)[1]
    assert items == (2 * 4 if trainer.semantics.counts_shifted_labels else 2 * 5)


def test_auto_resumes_if_there_is_a_checkpoint(tmp_path):
    """``"auto"`` starts anew in an empty folder and goes on from the newest checkpoint otherwise."""
    settings = {"save_strategy": "steps", "save_steps": 1}
    assert trainer_of(tmp_path, max_steps=1, **settings).train("auto").global_step == 1
    resumed = trainer_of(tmp_path, max_steps=3, **settings)
    assert resumed.train("auto").global_step == 3
    assert resumed._initial_global_step == 1
