"""Names of runs in trackers."""

import os
import re
import socket

import pytest

from hf_compat.arguments.derived import event_folder, group_of_trials, has_name_of_its_own
from tests.support.trainers import arguments


def test_the_folder_of_events(monkeypatch):
    """The environment names it in newer releases, in the home folder perhaps; else it is a new one of this machine."""
    args = arguments("./out/", semantics="5.24")
    parent, name = os.path.split(event_folder(args))
    assert parent == os.path.join("out", "runs")
    assert re.fullmatch(rf"\w{{3}}\d\d_\d\d-\d\d-\d\d_{re.escape(socket.gethostname())}", name)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", os.path.join("~", "events"))
    assert event_folder(args) == os.path.join(os.path.expanduser("~"), "events")
    assert os.path.split(os.path.dirname(arguments(semantics="4.57").logging_dir)) == ("out", "runs")


@pytest.mark.parametrize(
    ("name", "is_own", "group"), [(None, False, "out"), ("out", False, "out"), ("mine", True, "mine")]
)
def test_names_of_runs(name, is_own, group):
    """A run that has none, or the output folder's, as older releases give it, shares that with other trials."""
    args = arguments(run_name=name)
    assert (has_name_of_its_own(args), group_of_trials(args)) == (is_own, group)
