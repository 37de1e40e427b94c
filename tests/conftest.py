"""One thread, no hub, and no test that leaves the process other than it found it."""

import contextlib
import gc
import importlib
import os
import sys
import threading

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start, too: two of theirs wait for one core otherwise
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

pytest.register_assert_rewrite("tests.support")  # a helper's assert tells both sides, as a test's does

library_logging = None
with contextlib.suppress(ImportError):
    from transformers.utils import logging as library_logging

    library_logging.enable_propagation()  # so that `caplog` hears what is logged below transformers' logger

torch.set_num_threads(1)  # sums are then made in one order, so that equal can mean equal to the last bit


def pytest_addoption(parser):
    """Add the option by which results go into the table of combinations."""
    text = "record which comparisons of tests/support/combinations.py have passed"
    parser.addoption("--record-combinations", action="store_true", help=text)


def pytest_configure(config):
    """Record results if asked to."""
    if config.getoption("record_combinations"):
        config.pluginmanager.register(importlib.import_module("tests.support.recording"))


def pytest_collection_modifyitems(items):
    """Let slow tests take their time, up to an hour: one that hangs must not keep the others from running."""
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(3600))


WRITTEN_BY_UPSTREAM = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_")
"""Beginnings of what the arguments of transformers 4.57 write, and every later run would read."""
SET_ONCE = ("ACCELERATE_", "CUDA_", "DS_ACCELERATOR", "KMP_", "PYTORCH_", "RAY_", "TORCHINDUCTOR_")


def _surroundings():
    return {
        "working directory": os.getcwd(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch threads": torch.get_num_threads(),
        "process group": torch.distributed.is_initialized(),
    }


@pytest.fixture(autouse=True)
def keeps_verbosity():
    """Undo a level that a run's ``log_level`` has set for all of transformers' loggers."""
    before = None if library_logging is None else library_logging.get_verbosity()
    yield
    if library_logging is not None:
        library_logging.set_verbosity(before)


@pytest.fixture(scope="session")
def frozen_modules():
    """Names of the modules whose objects the garbage collector passes over."""
    return set()


@pytest.fixture(autouse=True)
def collects_only_what_tests_make(frozen_modules):
    """Keep each collection short: every run of either library makes some, and all that was imported takes a second."""
    if not sys.modules.keys() <= frozen_modules:
        frozen_modules.update(sys.modules)
        gc.collect()
        gc.freeze()


def _forget_upstreams_arguments():
    for name in [name for name in os.environ if name.startswith(WRITTEN_BY_UPSTREAM)]:
        del os.environ[name]


@pytest.fixture(autouse=True)
def leaves_no_trace():
    """Fail a test that changes environment variables or torch's global settings, or leaves a thread running."""
    before, variables, threads = _surroundings(), dict(os.environ), set(threading.enumerate())
    _forget_upstreams_arguments()
    yield
    _forget_upstreams_arguments()
    after, changed = _surroundings(), {}
    for name in os.environ.keys() | variables.keys():
        if os.environ.get(name) != variables.get(name) and name != "PYTEST_CURRENT_TEST":
            changed[name] = os.environ.get(name)
    # What loading the optional packages sets, once a process; not what tells every later run how to train.
    lasting = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
    assert {name for name in changed if not name.startswith(SET_ONCE) or name.startswith(lasting)} == set()
    assert after == before
    new = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    # transformers reads weights in a pool of threads that goes when it is garbage-collected; ours has no pools.
    assert [thread for thread in new if not thread.name.startswith("ThreadPoolExecutor")] == []
