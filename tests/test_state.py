"""The state of a run, its file, and the switches of its control."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
from transformers import trainer_callback as upstream

from hf_compat import state as ours
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.callbacks import EarlyStoppingCallback
from hf_compat.errors import CheckpointError, TrainerSetupError

FILLED = {
    "epoch": 1.3333333333333333,
    "global_step": 7,
    "max_steps": 12,
    "eval_steps": None,
    "train_batch_size": 8,
    "num_train_epochs": 3,
    "num_input_tokens_seen": 123,
    "total_flos": 1e15,
    "log_history": [{"loss": float("nan"), "grad_norm": float("inf"), "step": 1}, {"text": "ü", "step": 2}],
    "best_metric": 0.25,
    "best_global_step": 4,
    "best_model_checkpoint": "out/checkpoint-4",
    "is_hyper_param_search": True,
    "trial_params": {"learning_rate": 1e-4, "seed": 3},
}


def _stop_callbacks(library):
    """Return what a trainer saves: callbacks, two of them of one class, and the control."""
    first, second = library.EarlyStoppingCallback(2, 0.5), library.EarlyStoppingCallback(3)
    second.early_stopping_patience_counter = 1
    return [first, second, library.TrainerControl(should_log=True)]


@pytest.mark.parametrize("fields", [pytest.param({}, id="defaults"), pytest.param(FILLED, id="filled")])
def test_the_file_is_upstreams_byte_for_byte(fields, tmp_path):
    """Both libraries write the same bytes for the same state, callbacks' states included."""
    library = SimpleNamespace(EarlyStoppingCallback=EarlyStoppingCallback, TrainerControl=ours.TrainerControl)
    ours.TrainerState(**fields, stateful_callbacks=_stop_callbacks(library)).save_to_json(tmp_path / "ours.json")
    theirs = upstream.TrainerState(**fields, stateful_callbacks=_stop_callbacks(upstream))
    theirs.save_to_json(str(tmp_path / "theirs.json"))
    assert (tmp_path / "ours.json").read_bytes() == (tmp_path / "theirs.json").read_bytes()


def test_each_library_reads_what_the_other_wrote(tmp_path):
    """A file of ours is a state to transformers, and the other way round."""
    fields = {**FILLED, "log_history": [{"loss": 0.5, "step": 1}]}
    path = tmp_path / "trainer_state.json"
    ours.TrainerState(**fields).save_to_json(path)
    theirs = upstream.TrainerState.load_from_json(str(path))
    theirs.save_to_json(str(path))
    assert dataclasses.asdict(ours.TrainerState.load_from_json(path)) == dataclasses.asdict(theirs)


@pytest.mark.parametrize("name", ["TrainerState", "TrainerControl"])
def test_fields_and_their_values_at_the_start_are_upstreams(name):
    """Names, order and defaults of the fields are those of the installed release."""
    mine, theirs = getattr(ours, name)(), getattr(upstream, name)()
    assert list(dataclasses.asdict(mine).items()) == list(dataclasses.asdict(theirs).items())


@pytest.mark.parametrize(("release", "epoch"), [("4.57", None), ("5.2", None), ("5.3", 0), ("5.24", 0)])
def test_the_first_epoch_depends_on_the_release(release, epoch, monkeypatch):
    """Before training the epoch is None until 5.2 and 0 from 5.3, by the semantics asked for."""
    state = ours.TrainerState.initial(resolve_semantics(release), global_step=3)
    assert (state.epoch, type(state.epoch), state.global_step) == (epoch, type(epoch), 3)
    monkeypatch.setenv("HF_COMPAT_SEMANTICS", release)
    assert ours.TrainerState().epoch == epoch


def test_a_file_of_an_older_release_keeps_the_defaults_it_lacks(tmp_path):
    """Fields that a file does not have are at their defaults; null stands for an empty history."""
    path = tmp_path / "trainer_state.json"
    path.write_text('{"epoch": 2.0, "global_step": 4, "log_history": null}')
    assert ours.TrainerState.load_from_json(path) == ours.TrainerState(epoch=2.0, global_step=4)


def test_a_file_of_a_newer_release_loses_what_is_unknown_with_a_warning(tmp_path, caplog):
    """Unknown fields are left out and named in a warning, together with the file."""
    path = tmp_path / "trainer_state.json"
    path.write_text('{"global_step": 4, "moon_phase": 1, "a_field": 2}')
    assert ours.TrainerState.load_from_json(path).global_step == 4
    (record,) = caplog.records
    assert str(path) in record.message
    assert "a_field, moon_phase" in record.message


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"global_step": 4,', id="cut short"),
        pytest.param(b"", id="empty"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b"\xff\xfe", id="not text"),
        pytest.param(b'{"global_step": "4"}', id="a step that is no number"),
        pytest.param(b'{"log_history": {}}', id="a history that is no list"),
        pytest.param(b'{"stateful_callbacks": []}', id="callbacks that are no object"),
    ],
)
def test_a_malformed_file_is_an_error_that_names_it(content, tmp_path):
    """What is no trainer state raises CheckpointError with the path in it."""
    path = tmp_path / "trainer_state.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=str(path)):
        ours.TrainerState.load_from_json(path)


def test_a_missing_file_is_the_built_in_error(tmp_path):
    """As upstream, so that scripts that look for a state go on working."""
    with pytest.raises(FileNotFoundError):
        ours.TrainerState.load_from_json(tmp_path / "trainer_state.json")


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    """A value that cannot be written raises, and neither spoils the file nor leaves another beside it."""
    path = tmp_path / "trainer_state.json"
    state = ours.TrainerState(global_step=1)
    state.save_to_json(path)
    before = path.read_bytes()
    state.log_history.append({"loss": object()})
    with pytest.raises(TypeError, match="object is not JSON serializable"):
        state.save_to_json(path)
    assert {item: item.read_bytes() for item in tmp_path.iterdir()} == {path: before}


@pytest.mark.parametrize("interval", [1, 3, 500, 0.1, 0.34, None], ids=str)
def test_intervals_below_one_are_shares_of_the_run(interval):
    """The three intervals come out as upstream computes them; None leaves the state's own."""
    args = SimpleNamespace(logging_steps=interval, eval_steps=interval, save_steps=interval)
    mine, theirs = ours.TrainerState(), upstream.TrainerState()
    mine.compute_steps(args, 17)
    theirs.compute_steps(args, 17)
    assert dataclasses.asdict(mine) == dataclasses.asdict(theirs)


def _trainer(**given):
    zero = {"is_local_process_zero": lambda: True, "is_world_process_zero": lambda: False}
    return SimpleNamespace(**{"hp_name": None, "_trial": None, "hp_search_backend": None, **zero, **given})


def test_training_references_are_set():
    """Lengths and process flags are entered, and values of an earlier trial are gone."""
    mine, theirs = (library.TrainerState(trial_params={"seed": 1}) for library in (ours, upstream))
    for state in (mine, theirs):
        state.init_training_references(_trainer(), 12, 3, None)
    assert dataclasses.asdict(mine) == dataclasses.asdict(theirs)
    assert (mine.max_steps, mine.num_train_epochs, mine.is_world_process_zero) == (12, 3, False)


def test_a_trial_is_named_and_its_values_kept():
    """Values come from an optuna trial's ``params`` or from a dict, the name from the trainer's trial."""
    trial = SimpleNamespace(params={"seed": 2})
    state = ours.TrainerState()
    state.init_training_references(_trainer(hp_name=lambda named: f"run {named.params}", _trial=trial), 1, 1, trial)
    assert (state.trial_name, state.trial_params) == ("run {'seed': 2}", {"seed": 2})
    state.init_training_references(_trainer(), 1, 1, {"seed": 3})
    assert state.trial_params == {"seed": 3}
    with pytest.raises(TrainerSetupError, match="`trial` is a object"):
        state.init_training_references(_trainer(), 1, 1, object())


def test_transformers_callbacks_are_saved_too():
    """An ``ExportableState`` of transformers is one here, and the control is called TrainerControl."""
    theirs = upstream.EarlyStoppingCallback(4)
    state = ours.TrainerState(stateful_callbacks=[theirs, ours.TrainerControl()])
    assert state.stateful_callbacks == {
        "EarlyStoppingCallback": theirs.state(),
        "TrainerControl": upstream.TrainerControl().state(),
    }


def test_what_has_no_state_cannot_be_saved():
    """A plain callback among the ones to save is an error that names its class, a TypeError as upstream's."""
    assert not ours.is_exportable(upstream.ProgressCallback())
    assert issubclass(ours.NotExportableError, TypeError)
    with pytest.raises(ours.NotExportableError, match="ProgressCallback"):
        ours.TrainerState(stateful_callbacks=[upstream.ProgressCallback()])


def test_an_exportable_state_is_rebuilt():
    """``from_state`` undoes ``state``: arguments through the constructor, attributes afterwards."""
    callback = EarlyStoppingCallback(3, 0.5)
    callback.early_stopping_patience_counter = 2
    assert vars(EarlyStoppingCallback.from_state(callback.state())) == vars(callback)
    control = ours.TrainerControl(should_save=True)
    assert ours.TrainerControl.from_state(json.loads(json.dumps(control.state()))) == control
    with pytest.raises(NotImplementedError, match="ExportableState"):
        ours.ExportableState().state()


def test_the_control_clears_its_switches():
    """Training, epoch and step each clear the switches that upstream's clear."""
    everything = {item.name: True for item in dataclasses.fields(ours.TrainerControl)}
    for name in ("_new_training", "_new_epoch", "_new_step"):
        mine, theirs = ours.TrainerControl(**everything), upstream.TrainerControl(**everything)
        getattr(mine, name)()
        getattr(theirs, name)()
        assert mine.state() == theirs.state()


def test_the_attributes_of_a_state_are_its_fields(tmp_path):
    """As transformers', one that was read from a file makes another of its attributes, and JSON of them."""
    path = tmp_path / "trainer_state.json"
    ours.TrainerState(global_step=3, log_history=[{"loss": 1.5, "step": 3}]).save_to_json(path)
    state = ours.TrainerState.load_from_json(path)
    assert vars(state).keys() == vars(upstream.TrainerState.load_from_json(path)).keys()
    assert ours.TrainerState(**vars(state)) == state
    assert json.loads(json.dumps(vars(state)))["global_step"] == 3


def test_the_file_of_an_older_release_leaves_no_other_attribute(tmp_path):
    """One without what transformers 4.31 brought is the state that upstream reads, with its attributes alone."""
    path = tmp_path / "trainer_state.json"
    path.write_text('{"epoch": 1.0, "global_step": 3, "max_steps": 6, "num_train_epochs": 2, "log_history": []}')
    state, theirs = ours.TrainerState.load_from_json(path), upstream.TrainerState.load_from_json(path)
    assert vars(state) == vars(theirs)
    assert ours.TrainerState(**vars(state)) == state
