"""hf_compat's classes in the place of transformers'."""

import json
import sys

import pytest

import hf_compat
from hf_compat.installing.places import BASES, NOT_REPLACED
from tests.support import processes
from tests.support.paths import SCRIPTS

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def ended():
    """What `installed_facts.py` prints: what it finds cannot be tried in a process that other tests use."""
    return processes.finish([processes.start([sys.executable, SCRIPTS / "installed_facts.py"])])[0]


@pytest.fixture(scope="module")
def facts(ended):
    assert ended.code == 0, ended.output
    return json.loads(ended.output.splitlines()[-1])


def test_install_imports_nothing_heavy(facts):
    """Neither installing nor importing transformers afterwards loads Lightning; a second install adds nothing."""
    assert (facts["loaded by install"], facts["loaded with transformers"], facts["finders"]) == ([], [], 1)


def test_every_shared_name_is_ours_wherever_it_is_imported_from(facts):
    """In `transformers` and in its modules, those that copied the name among them; the version stays theirs."""
    assert facts["not ours"] == []
    assert facts["ours"] == ["hf_compat"] * 3
    assert facts["a copied name is ours"]
    assert facts["version"]


def test_callbacks_of_transformers_count_as_ours(facts):
    """A script that tests for `TrainerCallback` finds transformers' own integrations, and nothing else more."""
    assert facts["their callback is one of ours"] == [True, True]
    assert not facts["it is none of a script's own"]
    assert not facts["an integer is none"]
    assert facts["their classes derive from theirs"] == ["transformers.trainer_callback"]


def test_defaults_pickles_and_sources(facts):
    """Default callbacks are assigned to ours, a pickled reference leads to ours, and modules keep their loaders."""
    assert facts["an assigned default is ours"]
    assert facts["a pickled reference is ours"]
    assert facts["source is found"]


def test_uninstall_leaves_nothing_behind(facts):
    """Every module of transformers holds its own objects again, whose bases are its own."""
    assert facts["left behind"] == []
    assert facts["finders after"] == 0
    homes = ["trainer", "trainer_seq2seq", "trainer_callback"]
    assert facts["theirs again"] == [f"transformers.{home}" for home in homes]
    assert facts["their class as it was"]
    assert facts["their defaults"] == "transformers.trainer_callback"


def test_too_late_for_a_library_is_an_error(facts):
    """A class that derives from transformers' Trainer already is named, with what to do; nothing is replaced."""
    message, name = facts["late"]
    assert f"some_library.training.{name}" in message
    assert "hf_compat.install()" in message
    assert "hf-compat run" in message
    assert facts["nothing done when late"] == [[], True]


def test_names_imported_before(facts):
    """A module that imported a class, under whatever name, gets ours; one in a list stays, and counts as ours."""
    assert facts["imported before"] == [True] * 5
    assert facts["all put back"] == [[], True]


def test_one_line_says_so(ended):
    """Of two installs in a row the first says on stderr what was done, with both versions."""
    said = [line for line in ended.output.splitlines() if line.startswith("hf_compat ")]
    assert len(said) == 1
    assert hf_compat.__version__ in said[0]
    assert transformers.__version__ in said[0]
    assert all(name in said[0] for name in BASES)


def test_what_stays_transformers_is_there():
    """Each name of the table of those that are left is one of ours, with a reason."""
    assert set(NOT_REPLACED) <= set(hf_compat.__all__)
    assert all(NOT_REPLACED.values())


def test_what_is_assigned_without_effect_is_told(facts):
    """Functions, constants and classes that transformers' Trainer uses: a warning each, not for what works."""
    names = ("get_scheduler", "PREFIX_CHECKPOINT_DIR", "RandomSampler")
    told = [["HFCompatWarning", f"transformers.trainer.{name}"] for name in names]
    assert facts["assigned without effect"] == told
