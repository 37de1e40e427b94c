"""What ``import hf_compat`` offers."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import hf_compat


def test_names_are_sorted_and_each_once():
    """``__all__`` is in order, so that a reader finds a name and a change shows."""
    assert sorted(set(hf_compat.__all__)) == hf_compat.__all__


@pytest.mark.parametrize("name", hf_compat.__all__)
def test_each_name_resolves(name):
    """Every public name can be imported."""
    assert getattr(hf_compat, name) is not None


def test_nothing_else_is_public():
    """A name outside ``__all__`` is an AttributeError, and ``dir`` shows the public ones alone."""
    with pytest.raises(AttributeError, match="Trainr"):
        _ = hf_compat.Trainr
    assert dir(hf_compat) == hf_compat.__all__


def test_each_name_has_a_home():
    """The table of homes and ``__all__`` hold the same names, the version aside."""
    assert sorted([*hf_compat._HOMES, "__version__"]) == hf_compat.__all__


def test_version_is_the_installed_one():
    """The package says the version that its metadata says."""
    assert hf_compat.__version__ == metadata.version("hf-compat")


def test_types_are_shipped():
    """Type checkers are told that the package has types."""
    assert (Path(hf_compat.__file__).parent / "py.typed").exists()


def test_star_import_in_a_fresh_process():
    """``from hf_compat import *`` gives all names without error."""
    script = "from hf_compat import *; print(Trainer.__name__, TrainingArguments.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Trainer", "TrainingArguments"]
