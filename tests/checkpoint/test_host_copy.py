"""Copies of a checkpoint in host memory, and those that are made beside the next forward and backward pass."""

from __future__ import annotations

import logging
import pickle
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hf_compat import TrainerCallback
from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.checkpoint.host_copy import HostBuffers, LateCopies, clones_on_host, to_host
from tests.checkpoint.test_background import files, run
from tests.support.held_copies import HeldCopies


def test_copy_in_host_memory():
    """A copy shares nothing with its source, and within it what shared memory still does, in the same shapes."""
    base = torch.arange(12.0).reshape(3, 4)
    state = OrderedDict(
        whole=base,
        part=base[1:, ::2],
        turned=base.T,
        parameter=nn.Parameter(base),
        empty=torch.empty(0),
        none=torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True),
        nested=[{"step": torch.tensor(3), "betas": (0.9, 0.99)}, "text"],
    )
    state._metadata = {"version": 1}
    expected = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    twin = to_host(state)
    base.add_(1)
    assert type(twin) is OrderedDict
    assert twin._metadata == {"version": 1}
    for name, value in expected.items():
        assert torch.equal(twin[name].to_dense() if name == "none" else twin[name], value.to_dense())
    assert twin["part"].stride() == state["part"].stride()
    assert twin["part"].untyped_storage().data_ptr() == twin["whole"].untyped_storage().data_ptr()
    assert type(twin["parameter"]) is nn.Parameter
    assert twin["nested"][0]["betas"] == (0.9, 0.99)
    assert twin["nested"] is not state["nested"]


def test_memory_of_a_snapshot_is_used_again():
    """The next snapshot is written into the memory of the last one, once that is given back; a shared one once."""
    buffers = HostBuffers()
    state = {"weight": torch.arange(4.0), "counts": torch.arange(3)}
    state["tied"] = state["weight"]

    def places(copies):
        return {name: copy.data_ptr() for name, copy in copies.items()}

    first = to_host(state, buffers=buffers)
    second = to_host(state, buffers=buffers)
    assert not {*places(first).values()} & {*places(second).values()}
    kept = places(first)
    buffers.give_back()
    state["weight"] += 1
    third, fourth = to_host(state, buffers=buffers), to_host(state, buffers=buffers)
    assert {*places(third).values(), *places(fourth).values()} == {*kept.values(), *places(second).values()}
    assert all(torch.equal(copies[name], value) for copies in (third, fourth) for name, value in state.items())
    assert third["tied"].data_ptr() == third["weight"].data_ptr()


class Model(nn.Module):
    """Drops units, and has buffers that each forward pass changes."""

    def __init__(self):
        super().__init__()
        self.inside, self.norm, self.outside = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)

    def forward(self, x, labels=None):
        hidden = nn.functional.dropout(self.norm(self.inside(x)), 0.2, self.training)
        loss = (self.outside(hidden).squeeze(-1) - labels).square().mean()
        return {"loss": loss}


class Halving(Model):
    """Changes its weights in every forward pass, past their counters."""

    def forward(self, x, labels=None):
        if self.training:
            self.inside.weight.data.mul_(0.5)
        return super().forward(x, labels)


def both(tmp_path, model=Model, **settings):
    """The files of a run that saves at once, those of one that copies as late as possible, and its late copies."""
    run(tmp_path / "at once", model=model, **settings).train()
    trainer = run(tmp_path / "later", model=model, save_async=True, **settings)
    late = trainer._checkpoint_writer.writes.late = HeldCopies()
    trainer.train()
    return files(tmp_path / "at once"), files(tmp_path / "later"), late


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"save_steps": 1}, 4),  # not the first, nor the last of an epoch or of the run
        ({"save_steps": 1, "gradient_accumulation_steps": 2, "num_train_epochs": 4, "max_steps": -1}, 7),
        ({"save_strategy": "epoch", "num_train_epochs": 5, "max_steps": -1}, 3),
        ({"save_steps": 2, "optim": "adafactor", "max_steps": 12, "eval_strategy": "steps", "eval_steps": 2}, 3),
    ],
)
def test_copies_beside_the_next_step(tmp_path, settings, count):
    """A checkpoint holds what there was after its update step, though it is copied right before the next update."""
    at_once, later, late = both(tmp_path, **{"max_steps": 6, **settings})
    assert later == at_once
    assert late.count == count


def test_weights_that_the_model_changes_are_copied_at_once(tmp_path, caplog):
    """Where the first checkpoint is no longer what there is before the next update, none is copied late."""
    caplog.set_level(logging.INFO, "hf_compat.checkpoint.host_copy")
    at_once, later, late = both(tmp_path, Halving, save_steps=1)
    assert later == at_once
    assert late.count == 0
    assert "so checkpoints are copied before training continues" in caplog.text


def test_a_schedule_free_optimizer_is_copied_at_once(tmp_path):
    """Its weights change when training goes on after an evaluation."""
    pytest.importorskip("schedulefree")
    settings = {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant", "eval_strategy": "steps"}
    at_once, later, late = both(tmp_path, save_steps=1, eval_steps=2, **settings)
    assert later == at_once
    assert late.count == 0


class Adds(TrainerCallback):
    """Changes a weight before the fifth update."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 4:
            with torch.no_grad():
                model.outside.bias.add_(100)


class Slow(LateCopies):
    """Has copied half when the weights change."""

    def _make_all(self):
        is_first = not self._is_update_due.is_set()
        for index, one in enumerate(self._pending):
            if is_first and index == len(self._pending) // 2:
                self._is_update_due.wait(60)
            one.make()


class Early(LateCopies):
    """Has copied all when the weights change."""

    def start(self):
        super().start()
        self.make()


@pytest.mark.parametrize("kind", [Slow, Early])
def test_a_weight_that_is_changed_once(tmp_path, caplog, kind):
    """A change while copies are made is told, and no checkpoint holds a part of it; later ones are not at risk."""
    trainer = run(tmp_path, model=Model, callbacks=[Adds()], save_async=True, save_steps=2, max_steps=12)
    trainer.train_dataset.values = torch.randn(60, 8)
    trainer._checkpoint_writer.writes.late = kind()
    trainer.train()
    biases = [load_file(item.path / "model.safetensors")["outside.bias"] for item in list_checkpoints(tmp_path)]
    is_slow = kind is Slow
    assert [bool(bias > 50) for bias in biases] == [False, is_slow, True, True, True, True]
    assert caplog.text.count("Tensors were modified in place") == is_slow


class Fails(LateCopies):
    def _make_all(self):
        if self._pending:
            raise MemoryError("no more")


def test_an_error_of_a_late_copy_ends_the_run(tmp_path):
    """It is raised where the next save waits, and the checkpoint does not appear."""
    trainer = run(tmp_path, model=Model, save_async=True, save_steps=1)
    trainer._checkpoint_writer.writes.late = Fails()
    with pytest.raises(MemoryError, match="no more"):
        trainer.train()
    assert [item.step for item in list_checkpoints(tmp_path)] == [1]


class Stops(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise KeyboardInterrupt


def test_an_interrupted_run_leaves_the_checkpoint_under_way(tmp_path):
    """What ends a run before the next update does not lose the checkpoint that was being copied."""
    trainer = run(tmp_path, model=Model, callbacks=[Stops()], save_async=True, save_steps=2)
    trainer.train_dataset.values = torch.randn(60, 8)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [item.step for item in list_checkpoints(tmp_path)] == [2, 4]


def begun(late, value):
    """Return a copy of ``value`` whose late part may be made."""
    late.begin(is_allowed=True)
    twin = to_host(value, late=late)
    late.start()
    return twin


def tried(value):
    """Late copies that ``value`` has passed the trial of."""
    late = LateCopies()
    begun(late, value)
    late.before_update()
    return late


def test_late_copies_belong_to_one_process():
    """Pickled before they are made, they are new ones."""
    value = torch.zeros(3)
    late = tried(value)
    twin = begun(late, value)
    value.data.add_(1)  # not counted
    pickle.loads(pickle.dumps(late)).before_update()
    late.make()
    late.before_update()
    assert torch.equal(twin, value)


def test_every_tensor_of_shared_memory_is_watched():
    """Parameters that were moved into one flat buffer count their changes apart."""
    memory = torch.zeros(4)
    state = {"one": nn.Parameter(torch.empty(2)), "other": nn.Parameter(torch.empty(2))}
    state["one"].data, state["other"].data = memory[:2], memory[2:]
    late = tried(state)
    twins = []
    for _ in range(2):
        twins.append(begun(late, state)["other"])
        with torch.no_grad():
            state["other"].add_(1)
        late.release()
        late.make()
    assert torch.equal(twins[0], torch.ones(2))
    assert torch.equal(twins[1], torch.ones(2))  # copied at once from then on, before it changed again


def test_clones_of_parts_of_a_buffer():
    """Each has memory of its own, late and in the memory of the last snapshot, with the strides of torch's clone."""
    memory = torch.arange(12.0)
    state = {"one": memory[:6].view(2, 3), "turned": memory[6:].view(2, 3).T, "tied": memory[:6].view(2, 3)}
    expected = {name: value.clone() for name, value in state.items()}
    late, buffers, places = tried(memory), HostBuffers(), []
    for _ in range(2):
        late.begin(is_allowed=True)
        twins = clones_on_host({**state, "extra": {"step": 1}}, buffers=buffers, late=late)
        late.start()
        late.make()
        assert twins.pop("extra") == {"step": 1}
        for name, twin in twins.items():
            assert torch.equal(twin, expected[name])
            assert twin.stride() == expected[name].stride()
            assert twin.untyped_storage().nbytes() == 24
        places.append({twin.data_ptr() for twin in twins.values()})
        buffers.give_back()
    assert len(places[0]) == 3
    assert places[0] == places[1]


def test_weights_that_are_nan_have_not_changed():
    """A model that has diverged is copied late too."""
    state, late, buffers = {"weight": torch.tensor([float("nan"), 1.0])}, LateCopies(), HostBuffers()
    for is_late in (False, True):
        late.begin(is_allowed=True)
        twin = clones_on_host(state, buffers=buffers, late=late)["weight"]
        late.start()
        if is_late:
            state["weight"].data.add_(1)  # seen by a copy that is made later
        late.make()
        late.before_update()
        assert twin[1] == 1 + is_late
        buffers.give_back()


def test_what_a_failed_save_left_is_not_copied_again(caplog):
    """Copies of a save that never came to be written are dropped."""
    value = torch.zeros(3)
    late = tried(value)
    late.begin(is_allowed=True)
    dropped = to_host(value, late=late).fill_(7)
    value += 1
    twin = begun(late, value)
    late.release()
    late.make()
    assert torch.equal(twin, value)
    assert torch.equal(dropped, torch.full((3,), 7.0))
    assert "changed in place" not in caplog.text


def test_buffers_are_copied_at_once():
    """A forward pass changes them; a sparse one is copied at once anyway."""
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True)
    state = {"weight": torch.zeros(3), "buffer": torch.zeros(3), "graph": sparse}
    late = tried(state["weight"])
    late.begin(is_allowed=True, changing=[state["buffer"], sparse])
    twin = to_host(state, late=late)
    state["buffer"] += 1
    late.start()
    late.make()
    assert torch.equal(twin["buffer"], torch.zeros(3))
    assert torch.equal(twin["graph"].to_dense(), sparse.to_dense())
    assert torch.equal(twin["weight"], state["weight"])
