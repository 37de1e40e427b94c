"""Whatever is in a checkpoint's files, only our own errors come out, and they come out before anything is trained."""

import copy
import json
import math
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hf_compat.checkpoint.completeness import incomplete_reason, write_marker
from hf_compat.checkpoint.finding import get_last_checkpoint
from hf_compat.checkpoint.rotation import OwnedCheckpoints
from hf_compat.checkpoint.weights import load_weights
from hf_compat.errors import CheckpointError
from hf_compat.state import TrainerState
from hf_compat.tools.checkpoints import as_json, as_table, describe_checkpoints
from tests.support import trainers
from tests.support.checkpoints import small_checkpoint
from tests.support.helpers import PlainModel

new_trainer = partial(
    trainers.new_trainer,
    rows=4,
    max_steps=2,
    save_strategy="no",
    per_device_train_batch_size=2,
    restore_callback_states_from_checkpoint=True,
)

FILES = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
RUNS = settings(FILES, max_examples=120)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["..", "../../x", "checkpoint-1", "/etc/passwd", "a\0b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def attempt(action):
    """Return what ``action`` returns, or our own error if it refuses. Any other error fails the test."""
    try:
        return action()
    except CheckpointError as error:
        return error


@pytest.fixture
def checkpoint(tmp_path):
    return small_checkpoint(tmp_path / "checkpoint-1")


def look_at(folder: Path):
    """Ask everything of ``folder`` that is asked of checkpoints without training."""
    reason = incomplete_reason(folder)
    assert reason is None or reason
    assert (get_last_checkpoint(folder.parent) is None) == (reason is not None)
    attempt(lambda: OwnedCheckpoints.resume(folder))
    summaries = describe_checkpoints(folder.parent, verify=True)
    assert len(as_table(summaries).splitlines()) > 1
    json.loads(as_json(summaries))


@FILES
@given(content=st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors.index.json", "lightning.json"])
def test_any_content_of_a_json_file(name, content, checkpoint):
    """Bytes or JSON of any kind in place of a file: it is read, or a CheckpointError says what is wrong."""
    (checkpoint / name).write_bytes(content)
    look_at(checkpoint)
    attempt(lambda: TrainerState.load_from_json(checkpoint / "trainer_state.json"))
    attempt(lambda: load_weights(PlainModel(), checkpoint))


@FILES
@given(
    weight_map=st.dictionaries(st.text(max_size=5), VALUES, max_size=3) | VALUES,
    metadata=VALUES,
)
def test_any_index_of_shards(weight_map, metadata, checkpoint):
    """An index that points anywhere: no file but one of the folder is read."""
    (checkpoint / "model.safetensors").unlink(missing_ok=True)
    index = {"weight_map": weight_map, "metadata": metadata}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    look_at(checkpoint)
    attempt(lambda: load_weights(PlainModel(), checkpoint))


@FILES
@given(files=st.dictionaries(st.text(max_size=8), VALUES, max_size=3), step=VALUES, run_id=VALUES)
def test_any_marker(files, step, run_id, checkpoint):
    """A marker that lists anything: the checkpoint is complete only if it says so of files that are there."""
    write_marker(checkpoint, step=1)
    marker = json.loads((checkpoint / "lightning.json").read_text())
    marker.update(step=step, run_id=run_id, files={**marker["files"], **files})
    (checkpoint / "lightning.json").write_text(json.dumps(marker))
    look_at(checkpoint)


@FILES
@given(length=st.floats(0, 1), position=st.floats(0, 1), byte=st.integers(0, 255))
def test_cut_and_scrambled_weights(length, position, byte, tmp_path):
    """A safetensors file that is cut, or has a byte changed, is read or refused by its name."""
    checkpoint = small_checkpoint(tmp_path / "checkpoint-1")
    path = checkpoint / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[math.floor(position * (len(content) - 1))] = byte
    path.write_bytes(bytes(content[: math.ceil(length * len(content))]))
    look_at(checkpoint)
    outcome = attempt(lambda: load_weights(PlainModel(), checkpoint))
    assert not isinstance(outcome, CheckpointError) or path.name in str(outcome)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint of a real run, and its state."""
    folder = tmp_path_factory.mktemp("run")
    trainer = new_trainer(folder)
    trainer.args.save_strategy = "steps"
    trainer.args.max_steps = 1
    trainer.train()
    checkpoint = folder / "checkpoint-1"
    return checkpoint, json.loads((checkpoint / "trainer_state.json").read_text())


STATE_FIELDS = sorted(TrainerState.__dataclass_fields__)


@RUNS
@given(
    name=st.sampled_from(STATE_FIELDS),
    value=VALUES | st.integers(0) | st.floats(0) | st.fixed_dictionaries({"TrainerControl": VALUES}),
)
@pytest.mark.filterwarnings("ignore:All `max_steps")
@pytest.mark.filterwarnings("ignore:.*after an epoch that a callback had ended early")
def test_a_run_with_any_value_in_its_state(name, value, written):
    """Resuming with any value of any field trains on, or is refused with our own error."""
    checkpoint, state = written
    changed = copy.deepcopy(state)
    changed[name] = value
    (checkpoint / "trainer_state.json").write_text(json.dumps(changed))
    trainer = new_trainer(checkpoint.parent / "next")
    output = attempt(lambda: trainer.train(resume_from_checkpoint=str(checkpoint)))
    assert isinstance(output, CheckpointError) or output.global_step >= 1
