"""Lightning's strategies on two processes: what a name or an argument says is done."""

import json
import sys

import pytest

from hf_compat.engine.strategies.choice import STRATEGY_NAMES
from tests.support.paths import SCRIPTS
from tests.support.processes import TORCHRUN, finish, start

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="forks")]

SCRIPT = SCRIPTS / "strategies_script.py"
UNUSED = {"": 4, "_find_unused_parameters_true": 4, "_find_unused_parameters_false": True}
"""End of a name → update steps of a model with an unused parameter; True if torch says what is missing."""
NAMES_OF_DDP = [name for name in STRATEGY_NAMES if name.startswith("ddp")]


@pytest.mark.parametrize(
    "names",
    [
        *([name] for name in NAMES_OF_DDP if name.split("_find")[0] == "ddp"),
        [name for name in NAMES_OF_DDP if name.startswith(("ddp_fork", "ddp_notebook"))],
        [name for name in NAMES_OF_DDP if name.startswith("ddp_spawn")],
    ],
    ids=lambda names: names[0],
)
def test_names(tmp_path, names):
    """Each name starts processes in its way, and looks for unused parameters or not."""
    (ended,) = finish([start([sys.executable, SCRIPT, tmp_path, *names])])
    assert ended.code == 0, ended.output
    expected = {name: UNUSED[name[len(name.split("_find")[0]) :]] for name in names}
    assert json.loads((tmp_path / "outcome.json").read_text()) == expected


def test_arguments(tmp_path):
    """Keywords of torch's wrapper, communication hooks and the averaging of models do their work."""
    (ended,) = finish([start([*TORCHRUN, "--nproc-per-node=2", SCRIPT, tmp_path, "instances"])])
    assert ended.code == 0, ended.output
    told = json.loads((tmp_path / "outcome.json").read_text())
    assert told["views"] is True
    assert told["static"] is True
    assert told["hook"] == told["wrapper"] >= 4
    assert told["apart"] == [False, False, True, False]  # after a step of their own the ranks are averaged
    hook, size = told["refused"]  # by torch, as it wraps the model
    assert "torch does not accept `ddp_comm_hook` of `DDPStrategy` on this device: BF16 all reduce" in hook
    assert "torch does not accept the keywords of `DDPStrategy`" in size
