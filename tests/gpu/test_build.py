"""Where the fake GPU cannot be built its tests are skipped, with the reason."""

from __future__ import annotations

import pytest
import torch
from packaging.version import Version

from tests.gpu import build


@pytest.fixture
def capable(monkeypatch):
    """A machine on which the device can be built, whichever this one is."""
    monkeypatch.setattr(build.sys, "platform", "linux")
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(build, "WRITTEN_FOR", Version(".".join(map(str, Version(torch.__version__).release[:2]))))


def test_a_machine_with_all_that_is_needed(capable):
    """With a compiler, on Linux, for its release of torch, nothing is skipped."""
    assert build.reason_to_skip() is None


def test_a_machine_without_a_compiler(capable, monkeypatch):
    """The reason names the compiler that was looked for and is not installed."""
    asked = []
    monkeypatch.setattr(build.shutil, "which", asked.append)  # which returns None
    assert build.reason_to_skip() == "the fake GPU is compiled with g++, which is not installed"
    assert asked == ["g++"]


def test_another_system(capable, monkeypatch):
    """The reason says for which system the device is."""
    monkeypatch.setattr(build.sys, "platform", "darwin")
    assert build.reason_to_skip() == "the fake GPU is built for Linux alone"


def test_a_torch_with_cuda(capable, monkeypatch):
    """A torch that has CUDA keeps it."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert build.reason_to_skip() == "the fake GPU takes the place of CUDA in a build of torch without it"


def test_another_release_of_torch(capable, monkeypatch):
    """The reason names the release that the source is written for and the installed one."""
    monkeypatch.setattr(build, "WRITTEN_FOR", Version("1.9"))
    assert build.reason_to_skip() == f"the fake GPU is written for torch 1.9, not {torch.__version__}"
