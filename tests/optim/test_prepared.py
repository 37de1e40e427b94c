"""The wrapper in which a run's optimizer is seen, as scripts for accelerate's take it off."""

import copy
import gc
import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch
import transformers
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import nn

import hf_compat
from hf_compat import Trainer, TrainingArguments
from hf_compat.optim.prepared import prepare_optimizer, scaled_step, set_mode, unwrap_optimizer
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import arguments

CPU = torch.device("cpu")


class Halving(torch.optim.SGD):
    """An optimizer of the script's, with an attribute of its own that its step changes."""

    factor = 1.0

    def step(self, closure=None):
        self.factor /= 2
        return super().step(closure)


def used(kind=Halving, **settings):
    """Return an optimizer that has made a step, and its parameter."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = kind([weight], lr=0.1, **settings)
    optimizer.step()
    return optimizer, weight


def test_there_is_one_wrapper():
    """A loop that takes wrappers off ends after one turn, at the optimizer itself; both are of its class."""
    optimizer, _ = used()
    wrapper = prepare_optimizer(optimizer, CPU)
    assert wrapper is not optimizer
    assert wrapper.optimizer is unwrap_optimizer(wrapper) is unwrap_optimizer(optimizer) is optimizer
    assert not hasattr(optimizer, "optimizer")
    assert isinstance(wrapper, Halving)
    assert (type(wrapper).__name__, type(wrapper).__module__) == ("Halving", __name__)
    assert prepare_optimizer(wrapper, CPU) is wrapper
    assert repr(wrapper) == repr(optimizer)


def test_the_wrapper_shares_everything():
    """What is read, assigned, patched or stepped by one of them is so by the other."""
    optimizer, weight = used(momentum=0.9)
    wrapper = prepare_optimizer(optimizer, CPU)
    assert wrapper.param_groups is optimizer.param_groups
    assert wrapper.state is optimizer.state
    wrapper.step()
    optimizer.step()
    assert wrapper.factor == optimizer.factor == 1 / 8
    assert weight.tolist() == pytest.approx([1 - 0.1 * (1 + 1.9 + 2.71)] * 2)
    seen = []
    wrapper.register_step_post_hook(lambda *_: seen.append("hook"))
    wrapper.step = lambda: seen.append("patched")
    optimizer.step()
    del optimizer.step
    wrapper.step()
    assert list(dict.fromkeys(seen)) == ["patched", "hook"]  # torch calls hooks for each class that has a step
    wrapper.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    wrapper.param_groups = wrapper.param_groups[1:]
    assert [group["params"][0].numel() for group in optimizer.param_groups] == [1]


@pytest.mark.parametrize("schedules_inner", [True, False])
def test_a_schedule_of_either(schedules_inner):
    """A schedule of one sets the rate of both, and finds that they have made a step."""
    wrapper = prepare_optimizer(used()[0], CPU)
    schedule = torch.optim.lr_scheduler.StepLR(wrapper.optimizer if schedules_inner else wrapper, 1, 0.5)
    wrapper.step()
    wrapper.optimizer.step()
    schedule.step()
    assert wrapper.optimizer.param_groups[0]["lr"] == wrapper.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("again", [copy.deepcopy, lambda wrapper: pickle.loads(pickle.dumps(wrapper))])
def test_copies_and_pickles_are_wrappers(again):
    """They have one wrapper too, and share nothing with what they were made of."""
    wrapper = prepare_optimizer(used(momentum=0.9)[0], CPU)
    other = again(wrapper)
    assert type(other.optimizer) is Halving
    assert not hasattr(other.optimizer, "optimizer")
    assert other.param_groups is other.optimizer.param_groups
    assert other.param_groups is not wrapper.param_groups
    assert type(again(wrapper.optimizer)) is Halving
    for state, copied in zip(wrapper.state.values(), other.state.values(), strict=True):
        assert torch.equal(state["momentum_buffer"], copied["momentum_buffer"])


def test_nothing_waits_for_the_collector():
    """The wrapper holds the optimizer and nothing holds it: both go with their last reference."""
    gc.collect()
    gc.disable()
    try:
        wrapper = prepare_optimizer(used()[0], CPU)
        outer, inner = weakref.ref(wrapper), weakref.ref(wrapper.optimizer)
        del wrapper
        assert outer() is inner() is None
        optimizer, _ = used()
        outer = weakref.ref(prepare_optimizer(optimizer, CPU))
        assert outer() is None
        optimizer.step()
    finally:
        gc.enable()


def test_lightning_wraps_it_as_any_optimizer():
    """Its own wrapper, of a class that derives from the one it is given, is none of these."""
    wrapper = prepare_optimizer(used()[0], CPU)
    lightnings = LightningOptimizer(wrapper)
    assert lightnings.optimizer is wrapper
    assert unwrap_optimizer(lightnings) is lightnings
    assert isinstance(lightnings, Halving)


def test_a_wrapper_of_the_script_keeps_what_it_shows():
    """An optimizer that has an attribute of that name is no one's to wrap; what is no optimizer is not either."""

    class Looking(Halving):
        def __init__(self, optimizer):
            super().__init__(optimizer.param_groups, lr=0.1)
            self.optimizer = optimizer

    inner, _ = used()
    looking = Looking(inner)
    assert prepare_optimizer(looking, CPU) is looking
    assert looking.optimizer is inner
    assert prepare_optimizer(None, CPU) is None


def test_state_and_rate_go_to_the_device():
    """The optimizer is given all tensors of its state dict there, ``step`` and a rate among them."""

    class Noting(torch.optim.AdamW):
        def load_state_dict(self, state_dict):
            self.loaded = state_dict

    optimizer, _ = used(Noting, foreach=False)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    prepare_optimizer(optimizer, torch.device("meta"))
    state, group = optimizer.loaded["state"][0], optimizer.loaded["param_groups"][0]
    assert {name: value.device.type for name, value in state.items()} == dict.fromkeys(
        ("step", "exp_avg", "exp_avg_sq"), "meta"
    )
    assert group["lr"].device.type == "meta"


def test_moments_are_cast_to_the_dtype_of_their_parameter():
    """As torch does when a state is loaded."""
    optimizer, weight = used(momentum=0.9)
    optimizer.state[weight]["momentum_buffer"] = torch.ones(2, dtype=torch.float64) / 3
    wrapper = prepare_optimizer(optimizer, CPU)
    assert wrapper.state[weight]["momentum_buffer"].dtype is torch.float32


@pytest.mark.parametrize("placed", [True, False])
def test_a_second_optimizer_is_placed_too(placed, tmp_path):
    """``accelerator.prepare`` has it load its state, unless it is asked not to."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    optimizer, weight = used(momentum=0.9)
    optimizer.state[weight]["momentum_buffer"] = torch.ones(2, dtype=torch.float64)
    accelerator = Trainer(PlainModel(), args).accelerator
    prepared = accelerator.prepare(optimizer, device_placement=[placed])
    assert prepared.optimizer is optimizer
    assert accelerator.prepare(prepared) is prepared
    assert prepared.state[weight]["momentum_buffer"].dtype is (torch.float32 if placed else torch.float64)


def test_the_runs_own_optimizer_gets_no_second_wrapper(tmp_path):
    """Prepared once more, it is in one wrapper too."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    wrapper = prepare_optimizer(used()[0], CPU)
    assert Trainer(PlainModel(), args).accelerator.prepare(wrapper).optimizer is wrapper.optimizer


def test_an_optimizer_outlives_its_trainer(tmp_path):
    """Handed over, it can be stepped and handed over again once the Trainer is gone."""
    model = PlainModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for steps in (1, 2):
        args = arguments(tmp_path, max_steps=steps, save_strategy="no")
        trainer = Trainer(model, args, train_dataset=ListDataset(vector_rows(16)), optimizers=(optimizer, None))
        trainer.train()
        assert trainer.optimizer.optimizer is trainer.lr_scheduler.optimizer is optimizer
        del trainer
        gc.collect()
        optimizer.step()


def test_it_has_the_members_of_accelerates(tmp_path):
    """A script may switch the mode of any optimizer, and ask whether the last step was skipped."""

    class Minded(Halving):
        scaler = "its own"

        def __getattr__(self, name):
            if name == "imagined":
                return 7
            raise AttributeError(name)

    upstream, mine = {}, {}
    for package, found in ((transformers, upstream), (hf_compat, mine)):
        args = package.TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
        trainer = package.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(16)))
        trainer.train()
        optimizer = trainer.optimizer
        names = ("step_was_skipped", "scaler", "device_placement")
        found |= {name: getattr(optimizer, name) for name in names}
        found["modes"] = optimizer.train(), optimizer.eval()
        found["ends"] = optimizer.gradient_state.sync_gradients
        found["state"] = optimizer.accelerator_state.mixed_precision
        found["others"] = [hasattr(optimizer, name) for name in ("mode", "fused_backward")]
    assert mine == upstream
    wrapper = prepare_optimizer(used(Minded)[0], CPU, trainer.accelerator)
    assert (wrapper.scaler, wrapper.imagined) == ("its own", 7)
    assert not hasattr(wrapper, "nowhere")
    assert copy.deepcopy(wrapper).imagined == 7


@pytest.mark.parametrize("wrappers", [0, 1, 2])
def test_the_mode_of_an_optimizer_in_others(wrappers):
    """It is that of the innermost: DeepSpeed has the optimizer in two others, which have no modes."""
    modes: list[str] = []
    optimizer = SimpleNamespace(train=lambda: modes.append("train"), eval=lambda: modes.append("eval"))
    for _ in range(wrappers):
        optimizer = SimpleNamespace(optimizer=optimizer)
    set_mode(optimizer, training=True)
    set_mode(optimizer, training=False)
    set_mode(SimpleNamespace(optimizer=used()[0]), training=True)
    assert modes == ["train", "eval"]


def test_a_schedule_made_between_update_steps():
    """It finds the optimizer's own step, which comes at the end of the update step."""

    class Accumulating:
        sync_gradients, scaler = False, None

    optimizer, weight = used()
    accelerator = Accumulating()
    wrapper = prepare_optimizer(optimizer, CPU, accelerator)
    schedule = torch.optim.lr_scheduler.StepLR(wrapper, 1, 0.5)
    before = weight.tolist()
    wrapper.step()
    wrapper.zero_grad()
    assert (weight.tolist(), weight.grad.tolist()) == (before, [1, 1])
    accelerator.sync_gradients = True
    wrapper.step()
    schedule.step()
    assert weight.tolist() == pytest.approx([value - 0.1 for value in before])
    assert optimizer.param_groups[0]["lr"] == 0.05


class Around(torch.optim.Optimizer):
    """An optimizer around another, as ``Lookahead`` of packages is: torch's constructor is not called."""

    def __init__(self, inner):
        self.inner, self.defaults = inner, inner.defaults
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self, closure=None):
        return self.inner.step(closure)


@pytest.mark.parametrize("patched", [False, True], ids=["its method", "patched by a schedule"])
@pytest.mark.parametrize("make", [Around, lambda inner: inner], ids=["around another", "torch's"])
def test_a_scaled_step_is_counted_and_leaves_no_trace(make, patched):
    """It says whether the scaler has called the optimizer, of any class, and puts back what is called as its step."""
    inner, weight = used(torch.optim.SGD)
    optimizer, scaler = make(inner), torch.amp.GradScaler("cpu", init_scale=2.0)
    if patched:
        torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    before, skipped = vars(optimizer).get("step"), []
    for gradient in (2.0, float("inf"), 4.0):
        scaler.scale(torch.ones(()))  # which makes the scale
        weight.grad = torch.full((2,), gradient)
        skipped.append(scaled_step(scaler, optimizer)[1])
    assert skipped == [False, True, False]
    # By 0.1 as it was made, by 0.1 times 2 / 2, not at all, by 0.1 times 4 / 1, as the scale is halved.
    assert torch.allclose(weight, torch.full((2,), 0.4))
    assert vars(optimizer).get("step") is before
