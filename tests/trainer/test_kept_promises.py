"""What a run does for users who replace things: optimizers, accelerators, arguments, callbacks, models."""

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import transformers
from torch import nn

import hf_compat
from hf_compat import Trainer, TrainingArguments
from hf_compat.errors import HFCompatWarning
from hf_compat.overriding import WarnOnce
from tests.support import trainers
from tests.support.helpers import CLASSES, WIDTH, ListDataset, PlainModel, gpt2, vector_rows

new_trainer = partial(
    trainers.new_trainer, rows=16, max_steps=4, save_strategy="no", logging_steps=1, per_device_train_batch_size=2
)


def test_an_optimizer_replaced_while_states_are_loaded_is_stepped(tmp_path):
    """An override of ``_load_optimizer_and_scheduler`` may make another optimizer; that one trains."""
    new_trainer(tmp_path, save_strategy="steps", save_steps=2).train()

    class Replaces(Trainer):
        def _load_optimizer_and_scheduler(self, checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)

    resumed = new_trainer(tmp_path, Replaces)
    steps = []
    resumed.model.register_forward_pre_hook(lambda *_: steps.append(resumed.optimizer))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert isinstance(resumed.lightning_trainer.optimizers[0], torch.optim.SGD)
    assert resumed.lightning_trainer.optimizers[0] is resumed.optimizer
    assert resumed.state.log_history[-2]["learning_rate"] == pytest.approx(0.1)


def test_an_accelerator_of_the_users_is_asked(tmp_path):
    """``no_sync`` and ``sync_gradients`` of an object that a subclass puts in place are used."""
    seen = []

    class Own:
        def __init__(self, inner):
            object.__setattr__(self, "inner", inner)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        @contextmanager
        def no_sync(self, model):
            seen.append("no_sync")
            yield

        def backward(self, loss, **given):
            seen.append(self.sync_gradients)
            self.inner.backward(loss, **given)

    class Replaces(Trainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator = Own(self.accelerator)

    new_trainer(tmp_path, Replaces, max_steps=1, gradient_accumulation_steps=2).train()
    assert seen == ["no_sync", False, True]


def test_a_callback_may_be_appended_in_the_middle(tmp_path):
    """A Lightning callback that adds another one to the ``lightning.Trainer`` does not disturb the run."""
    called = []

    class Late(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            called.append(trainer.global_step)

    class Adds(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.callbacks.append(Late())

    assert new_trainer(tmp_path, callbacks=[Adds()]).train().global_step == 4
    assert called == [1, 2, 3, 4]


def test_an_evaluation_after_a_training_that_failed(tmp_path):
    """The module of an evaluation before the training does not outlive its run."""
    trainer = new_trainer(tmp_path)
    first = trainer.evaluate()
    with pytest.raises(ValueError, match="does not exist"):
        trainer.train("nowhere")
    again = trainer.evaluate()
    assert again["eval_loss"] == first["eval_loss"]
    assert trainer.lightning_module.belongs_to(trainer.training_run)


def test_noise_is_taken_from_the_model_that_got_it(tmp_path):
    """A ``_finalize_training`` that puts another model in place does not keep NEFTune's hook on the trained one."""
    taken = []

    class Replaces(Trainer):
        def _activate_neftune(self, model):
            return model

        def _deactivate_neftune(self, model):
            taken.append(model)

        def _finalize_training(self, *given):
            output = super()._finalize_training(*given)
            self.model = None
            return output

    trainer = new_trainer(tmp_path, Replaces, neftune_noise_alpha=1.0)
    trained = trainer.model
    trainer.train()
    assert taken == [trained]


def test_a_run_whose_end_returns_nothing(tmp_path):
    """An override of ``_finalize_training`` without a ``return`` ends the run once, as upstream's."""
    ends = []

    class Silent(Trainer):
        def _finalize_training(self, *given):
            ends.append(super()._finalize_training(*given).global_step)

    assert new_trainer(tmp_path, Silent).train() is None
    assert ends == [4]


def test_values_of_a_subclass_under_the_names_of_counts(tmp_path):
    """A class body that sets ``_total_loss_scalar`` or ``current_flos`` gives their first values, no more."""

    class Sets(Trainer):
        _total_loss_scalar = 0.0
        current_flos = 7

    losses = []
    for kind in (Trainer, Sets):
        torch.manual_seed(0)
        trainer = new_trainer(tmp_path, kind)
        assert trainer.current_flos == (7 if kind is Sets else 0)
        losses.append((trainer.train().training_loss, trainer._total_loss_scalar))
    assert losses[0] == losses[1] > (0, 0)


def test_attributes_with_names_of_the_users(tmp_path):
    """What users call ``_run`` or ``_backend`` is theirs."""

    class Tracked(Trainer):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            self._run, self._backend, self._counters = "wandb", 1.0, {}

    trainer = new_trainer(tmp_path, Tracked)
    trainer.train()
    assert (trainer._run, trainer._backend, trainer._counters) == ("wandb", 1.0, {})


def test_a_failed_evaluation_leaves_no_loader_behind(tmp_path):
    """``gather_for_metrics`` in a later training is not trimmed by the loader of an evaluation that failed."""
    trainer = new_trainer(tmp_path)

    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        trainer.evaluate(Broken())
    assert trainer.lightning_backend.loaders.current is None


def test_arguments_replaced_by_model_init_hold(tmp_path):
    """What ``call_model_init`` puts into ``args`` is what the run uses."""
    given = []

    class Replaces(Trainer):
        def call_model_init(self, trial=None):
            if self.is_in_train:
                self.args = TrainingArguments(**{**self.args.to_dict(), "max_steps": 2, "use_cpu": True})
            return super().call_model_init(trial)

        def _inner_training_loop(self, *positional, **named):
            given.append(named["args"] is self.args)
            return super()._inner_training_loop(*positional, **named)

    args = TrainingArguments(str(tmp_path), use_cpu=True, max_steps=4, save_strategy="no", report_to="none")
    trainer = Replaces(args=args, model_init=lambda: PlainModel(), train_dataset=ListDataset(vector_rows(16)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert trainer.train().global_step == 2
    assert given == [True]


def test_warnings_of_the_constructor_name_the_users_line(tmp_path):
    """Deprecated arguments are warned of where the Trainer is made."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.warns(FutureWarning, match="tokenizer") as caught:
        Trainer(PlainModel(), args, tokenizer=object())
    assert caught[0].filename == __file__


def test_warnings_name_the_users_line_through_other_libraries(tmp_path):
    """So they do of a dataclass that derives from ours, and of what Lightning has called in between."""

    @dataclass
    class Own(TrainingArguments):
        mine: int = 1

    with pytest.warns(FutureWarning, match="no_cuda") as of_arguments:
        Own(str(tmp_path), no_cuda=True)
    between = {"__name__": "lightning.pytorch.loops"}
    exec("def call(function):\n    function()", between)
    with pytest.warns(HFCompatWarning, match="mind this") as of_a_run:
        between["call"](partial(WarnOnce(), "mind this"))
    assert {caught[0].filename for caught in (of_arguments, of_a_run)} == {__file__}


class HalfFrozen(nn.Module):
    """A model of two numbers with the gradients 3 and 4, of which the second is frozen."""

    def __init__(self):
        super().__init__()
        self.head = nn.Parameter(torch.tensor(1.0))
        self.body = nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def forward(self, features, labels):
        return {"loss": 3 * self.head + 4 * self.body + 0 * features.sum()}


def unfreezing(folder, library, **fields):
    """Train, with a callback that unfreezes ``body`` from the second step on; return the Trainer."""

    class Unfreezes(library.TrainerCallback):
        def on_step_begin(self, args, state, control, model, **kwargs):
            model.body.requires_grad_(state.global_step > 0)

    settings = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 3.0}
    settings |= {"max_steps": 3, "logging_steps": 1, "save_strategy": "no", **fields}
    trainer = trainers.new_trainer(folder, library=library, model=HalfFrozen(), callbacks=[Unfreezes()], **settings)
    trainer.train()
    return trainer


def test_a_parameter_that_a_callback_unfreezes(tmp_path):
    """It is not trained, as in transformers, while its gradient clips the others: 5 for 3. A warning says so once."""
    transformers = pytest.importorskip("transformers")
    with pytest.warns(HFCompatWarning, match="`body`.*never updated.*`BaseFinetuning`") as caught:
        ours = unfreezing(tmp_path, hf_compat)
    theirs = unfreezing(tmp_path, transformers)
    assert len(caught) == 1
    for trainer in (ours, theirs):
        norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
        assert norms == [3.0, 5.0, 5.0]
        assert trainer.model.body.item() == 1.0
    assert ours.model.head.item() == theirs.model.head.item() == pytest.approx(1 - 0.3 - 2 * 0.1 * 3 * 3 / 5)


def test_an_unfrozen_parameter_that_the_optimizer_has(tmp_path):
    """Nothing is said of one that the optimizer was given while it was frozen: it is trained."""

    class Gives(Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            return self.optimizer

    class Unfreezes(hf_compat.TrainerCallback):
        def on_step_begin(self, args, state, control, model, **kwargs):
            model.body.requires_grad_(True)

    trainer = new_trainer(tmp_path, Gives, model=HalfFrozen(), callbacks=[Unfreezes()])
    trainer.train()
    assert trainer.model.body.item() < 1.0


class Constant(nn.Module):
    """A model whose loss is always the same."""

    def __init__(self, loss):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.loss = loss

    def forward(self, features, labels):
        return {"loss": self.loss + 0 * self.weight}


@pytest.mark.parametrize(("loss", "mode", "rate"), [(1.0, "rel", 0.125), (-1.0, "rel", 1.0), (-1.0, "abs", 0.125)])
def test_a_plateau_below_zero(loss, mode, rate, tmp_path):
    """A loss that stays halves the rate at each evaluation but the first, not below zero: torch's, and a warning."""
    kwargs = {"patience": 0, "factor": 0.5, "threshold_mode": mode}
    fields = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": kwargs, "learning_rate": 1.0}
    trainer = new_trainer(tmp_path, model=Constant(loss), eval_strategy="steps", eval_steps=1, **fields)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HFCompatWarning)
        trainer.train()
    assert trainer.optimizer.param_groups[0]["lr"] == rate
    told = [str(w.message) for w in caught if "below 0" in str(w.message)]
    assert len(told) == (rate == 1.0)
    assert all("'threshold_mode': 'abs'" in text for text in told)


def with_norm(momentum):
    """Return a model of transformers with a layer of its own kind, which contains a BatchNorm."""
    transformers = pytest.importorskip("transformers")
    layers = pytest.importorskip("transformers.modeling_layers")

    class Layer(layers.GradientCheckpointingLayer):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.norm = nn.BatchNorm1d(16, momentum=momentum)

        def forward(self, features):
            return self.norm(self.linear(features))

    class Model(transformers.PreTrainedModel):
        config_class = transformers.PretrainedConfig
        supports_gradient_checkpointing = True
        _no_split_modules = ()
        main_input_name = "features"

        def __init__(self, config):
            super().__init__(config)
            self.layer = Layer()
            self.post_init()

        def _init_weights(self, module):
            pass

        def forward(self, features, labels):
            return {"loss": self.layer(features.requires_grad_()).square().sum(1).sub(labels).square().mean()}

        def get_input_embeddings(self):
            return nn.Embedding(1, 1)

    torch.manual_seed(0)
    return Model(transformers.PretrainedConfig())


@pytest.mark.parametrize(
    ("momentum", "checkpointing"),
    [
        pytest.param(0.19, True, id="counts twice"),
        pytest.param(0.19, False, id="counts once"),
        pytest.param(None, True, id="an average of all batches, which stays as it is"),
    ],
)
def test_a_norm_in_a_checkpointed_layer(momentum, checkpointing, tmp_path):
    """Its averages move twice for a batch, as in transformers, and a warning says so; 0.1 twice is 0.19 once."""
    transformers = pytest.importorskip("transformers")

    known = transformers.TrainingArguments.__dataclass_fields__
    field = "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"

    def trained(library, momentum, checkpointing=checkpointing):
        fields = {field: checkpointing, "logging_steps": 50, "save_strategy": "no", "max_steps": 3}
        trainer = trainers.new_trainer(tmp_path, library=library, model=with_norm(momentum), rows=16, **fields)
        trainer.train()
        norm = trainer.model.layer.norm
        return norm.running_mean, norm.running_var, trainer.model.layer.linear.weight, norm.num_batches_tracked

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HFCompatWarning)
        ours = trained(hf_compat, momentum)
    told = [str(w.message) for w in caught if "BatchNorm" in str(w.message)]
    assert [text for text in told if "`layer`" in text and "`norm`" in text] == told
    assert len(told) == (checkpointing and momentum is not None)
    assert ours[3] == (6 if checkpointing else 3)
    assert all(map(torch.equal, ours, trained(transformers, momentum)))
    if told:
        with pytest.warns(HFCompatWarning, match=r"1 - sqrt\(1 - momentum\)"):
            mended = trained(hf_compat, 0.1)
        assert all(map(torch.allclose, mended[:3], trained(hf_compat, 0.19, checkpointing=False)[:3]))


@pytest.mark.parametrize(
    ("enabled", "cached", "bf16", "told"),
    [
        pytest.param(True, True, False, True, id="around a run in float32"),
        pytest.param(True, True, True, True, id="around a run in bfloat16"),
        pytest.param(False, True, True, True, id="disabled, around a run in bfloat16"),
        pytest.param(False, True, False, False, id="disabled, around a run in float32"),
        pytest.param(True, False, False, False, id="without copies that are kept"),
        pytest.param(True, False, True, False, id="without copies that are kept, around a run in bfloat16"),
    ],
)
def test_a_run_inside_of_autocast(enabled, cached, bf16, told, tmp_path):
    """Its weights stay those of the first update step to linear layers, as in transformers, and a warning says so."""
    transformers = pytest.importorskip("transformers")

    def losses(library):
        torch.manual_seed(0)
        model = PlainModel()
        model.body = nn.Linear(WIDTH, CLASSES)
        trainer = new_trainer(tmp_path, library=library, model=model, bf16=bf16, rows=2, learning_rate=0.1)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=cached):
            trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HFCompatWarning)
        ours = losses(hf_compat)
    assert [("inside of `torch.autocast`" in str(w.message)) for w in caught] == [True] * told
    assert (ours[3] == pytest.approx(ours[0], rel=1e-4)) == told  # the same two rows in each batch
    assert ours == losses(transformers)


@pytest.mark.parametrize("bf16", [True, False])
def test_an_autocast_around_a_run_is_corrected(bf16, tmp_path):
    """Each update step makes new copies of the weights, as if the autocast kept none."""

    def losses(cached):
        torch.manual_seed(0)
        model = PlainModel()
        model.body = nn.Linear(WIDTH, CLASSES)
        fields = {"model": model, "bf16": bf16, "rows": 2, "learning_rate": 0.1, "semantics": "corrected"}
        trainer = new_trainer(tmp_path, **fields)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    assert losses(True) == losses(False)
    assert losses(True)[3] < losses(True)[0]


class EpochStream(torch.utils.data.IterableDataset):
    """Eight rows with the number of the epoch as their feature."""

    def __init__(self, is_shared):
        self.epoch = torch.zeros(())
        if is_shared:
            self.epoch.share_memory_()

    def set_epoch(self, epoch):
        self.epoch.fill_(epoch)

    def __iter__(self):
        for _ in range(8):
            yield {"features": self.epoch.expand(WIDTH).clone(), "labels": 0}


@pytest.mark.parametrize(
    ("keeps", "is_shared", "told"),
    [
        pytest.param(True, False, True, id="kept, with copies"),
        pytest.param(False, False, False, id="new ones in each epoch"),
        pytest.param(True, True, False, id="kept, with shared memory"),
    ],
)
def test_epochs_of_workers_that_are_kept(keeps, is_shared, told, tmp_path):
    """They do not learn of the next epoch, as in transformers, and a warning says so."""
    transformers = pytest.importorskip("transformers")

    def epochs(library):
        seen = []
        trainer = new_trainer(
            tmp_path,
            library=library,
            train_dataset=EpochStream(is_shared),
            per_device_train_batch_size=4,
            dataloader_num_workers=1,
            dataloader_persistent_workers=keeps,
        )
        trainer.model.register_forward_pre_hook(
            lambda _, given, named: seen.append((*given, *named.values())[0][0, 0].item()), with_kwargs=True
        )
        trainer.train()
        return seen

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HFCompatWarning)
        ours = epochs(hf_compat)
    assert [("dataloader_persistent_workers=False" in str(w.message)) for w in caught] == [True] * told
    assert (ours[0], ours[3]) == (0, 0 if told else 1)
    assert ours == epochs(transformers)


class RandomTransform:
    """A transform with a generator of its own, as those of the package that its module is said to be of."""

    def __init__(self):
        self.set_random_seed(0)

    def set_random_seed(self, seed):
        self.generator = np.random.default_rng(seed)

    set_random_state = set_random_seed


def transform_of(module, name):
    return type(name, (RandomTransform,), {"__module__": module})()


class Augmented(torch.utils.data.Dataset):
    """Sixteen rows, of what a transform draws."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 16

    def __getitem__(self, index):
        drawn = 0.0 if self.transform is None else self.transform.generator.random()
        return {"features": torch.full((WIDTH,), drawn), "labels": 0}


@pytest.mark.parametrize(
    ("module", "name", "workers", "told"),
    [
        pytest.param("albumentations.core.composition", "BaseCompose", 2, True, id="albumentations"),
        pytest.param("monai.transforms.transform", "Randomizable", 2, True, id="MONAI"),
        pytest.param("albumentations.core.composition", "BaseCompose", 0, False, id="no workers"),
        pytest.param("mine", "BaseCompose", 2, False, id="another package"),
    ],
)
def test_transforms_that_workers_copy(module, name, workers, told, tmp_path):
    """All workers and epochs draw the same numbers, as in transformers, with a warning; corrected all are different."""
    transformers = pytest.importorskip("transformers")

    def drawn(library, **fields):
        seen = []
        data = Augmented(transform_of(module, name))
        trainer = new_trainer(
            tmp_path,
            library=library,
            train_dataset=data,
            num_train_epochs=2,
            max_steps=-1,
            per_device_train_batch_size=4,
            dataloader_num_workers=workers,
            **fields,
        )
        trainer.model.register_forward_pre_hook(
            lambda _, given, named: seen.extend((*given, *named.values())[0][:, 0].tolist()), with_kwargs=True
        )
        trainer.train()
        return seen

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HFCompatWarning)
        ours = drawn(hf_compat)
    assert ["`transform` of `train_dataset`" in str(w.message) for w in caught] == [True] * told
    assert ours == drawn(transformers)
    assert len(set(ours)) == (8 if workers else 32)
    if told:
        assert len(set(drawn(hf_compat, semantics="corrected"))) == 32


class CastsInputs(PlainModel):
    def forward(self, features, labels=None):
        return super().forward(features.to(self.body[0].weight.dtype), labels)


@pytest.mark.parametrize("evaluates", [True, False], ids=["evaluated before", "trained alone"])
def test_a_model_that_an_evaluation_has_cast(evaluates, tmp_path):
    """With `bf16_full_eval` a run after an evaluation trains in bfloat16, as in transformers, and warns of it."""
    transformers = pytest.importorskip("transformers")

    def weights(library):
        torch.manual_seed(0)
        trainer = new_trainer(tmp_path, library=library, model=CastsInputs(), bf16_full_eval=True, max_steps=2)
        if evaluates:
            trainer.evaluate()
        trainer.train()
        return trainer.model.state_dict()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HFCompatWarning)
        ours = weights(hf_compat)
    assert ["has cast the model to bfloat16" in str(w.message) for w in caught] == [True] * evaluates
    theirs = weights(transformers)
    assert {each.dtype for each in ours.values()} == {torch.bfloat16 if evaluates else torch.float32}
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("library", [transformers, hf_compat], ids=lambda library: library.__name__)
def test_operations_of_a_model_that_has_grown(library, tmp_path):
    """A run counts the parameters that its model has as it begins, not those of the run before."""
    model, rows = gpt2(), [{"input_ids": torch.tensor([5, 6, 7, 8]), "labels": torch.tensor([5, 6, 7, 8])}] * 8
    fields = {"max_steps": 2, "per_device_train_batch_size": 2, "save_strategy": "no", "use_cpu": True}
    quiet = {"report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    args = library.TrainingArguments(str(tmp_path), **fields, **quiet)
    trainer = library.Trainer(model, args, train_dataset=rows)
    found = []
    for _ in range(2):
        before = trainer.model.num_parameters(exclude_embeddings=True)
        trainer.train()
        found.append(trainer.state.total_flos / before)
        trainer.model.added = nn.Linear(WIDTH, WIDTH)
    assert found == [6 * 4 * 2 * 2] * 2
