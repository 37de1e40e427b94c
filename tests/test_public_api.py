"""What ``import hf_compat`` offers."""

import ast
import enum
import functools
import importlib
import inspect
import random
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import hf_compat


def test_names_are_sorted_and_each_once():
    """``__all__`` is in order, constants first, so that a reader finds a name and a change shows."""
    assert sorted(set(hf_compat.__all__), key=lambda name: (not name.isupper(), name)) == hf_compat.__all__


@pytest.mark.parametrize("name", hf_compat.__all__)
def test_each_name_resolves(name):
    """Every public name can be imported."""
    assert getattr(hf_compat, name) is not None


def test_nothing_else_is_public():
    """A name outside ``__all__`` is an AttributeError, and ``dir`` shows the public ones alone."""
    with pytest.raises(AttributeError, match="Trainr"):
        _ = hf_compat.Trainr
    assert dir(hf_compat) == sorted(hf_compat.__all__)


def test_type_checkers_find_each_name():
    """What is imported for type checkers alone, each name as itself, is what there is."""
    (block,) = [node for node in ast.parse(Path(hf_compat.__file__).read_text()).body if isinstance(node, ast.If)]
    shown = [(alias.name, alias.asname) for node in block.body for alias in node.names]
    assert sorted([*shown, ("__version__", "__version__")]) == sorted((name, name) for name in hf_compat.__all__)


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


DIFFERENT = {
    "EvaluationStrategy": "gone since 5.0",
    "HFCheckpointIO": "a plugin of Lightning's, which transformers does not have",
    "RichProgressCallback": "the bars with Rich, which transformers does not have",
    "Seq2SeqTrainer": "compared method by method in test_trainer_api.py",
    "Seq2SeqTrainingArguments": "compared field by field in test_training_arguments.py",
    "Trainer": "compared method by method in test_trainer_api.py",
    "TrainerState": "compared field by field in test_state.py",
    "TrainingArguments": "compared field by field in test_training_arguments.py",
    "install": "hf_compat in the place of transformers",
    "lightning_keywords": "keywords of Lightning's, which transformers does not have",
    "to_lightning": "transformers has no pieces to take a run apart into",
    "seed_worker": "the number of the worker is enough, as it was before 4.52",
    "uninstall": "as `install`",
}
"""Public names whose parameters are not the installed release's alone, and why."""

PARTS = ("hf_argparser", "trainer_utils", "trainer_pt_utils", "trainer_callback", "training_args", "debug_utils")
PARTS += ("integrations.deepspeed", "utils.notebook", "data.data_collator", "trainer")
UPSTREAM = ("", *(f".{part}" for part in PARTS))


def upstreams(name):
    """Return what transformers has under ``name`` where scripts import it from, None if nothing."""
    modules = [importlib.import_module(f"transformers{module}") for module in UPSTREAM]
    return next((getattr(module, name) for module in modules if hasattr(module, name)), None)


NEWER_THAN_4_57 = ("BatchRebalanceSampler", "GreedyLR")
"""Public names that the older of the two tested releases lacks."""

COMPARED = [name for name in hf_compat.__all__ if not name.startswith(("HFCompat", "__", "DEFAULT_"))]
"""All but our own names, and the default callbacks: those are compared in callbacks/test_default_callbacks.py."""


@pytest.mark.parametrize("name", COMPARED)
def test_each_name_is_called_as_upstreams(name):
    """What can be called takes upstream's parameters, with the same names, order and defaults; the rest is equal."""
    pytest.importorskip("transformers")
    ours, theirs = getattr(hf_compat, name), upstreams(name)
    if theirs is None and name in NEWER_THAN_4_57:
        pytest.skip("not in this release of transformers")
    if name in DIFFERENT:
        assert theirs is None or callable(theirs)
    elif isinstance(ours, list):
        assert [item.__name__ for item in ours] == [item.__name__ for item in theirs]
    elif not callable(ours):
        assert ours == theirs
    elif issubclass(type(ours), enum.EnumMeta) or name == "ExplicitEnum":
        assert {item.name for item in theirs} <= {item.name for item in ours}
    else:
        left, right = (list(inspect.signature(item).parameters.values()) for item in (theirs, ours))
        expected = [(item.name, item.default) for item in left]
        assert [(item.name, item.default) for item in right][: len(left)] == expected


SCRIPTS_IMPORT = (
    "EvalLoopOutput",
    "EvalPrediction",
    "PredictionOutput",
    "Seq2SeqTrainer",
    "Seq2SeqTrainingArguments",
    "Trainer",
    "TrainingArguments",
    "default_data_collator",
    "get_last_checkpoint",
    "is_main_process",
    "set_seed",
    "speed_metrics",
)
"""What upstream's example scripts import of the Trainer's side."""


def test_what_scripts_import_is_public():
    """A script's imports from the Trainer's modules can all be taken from here."""
    assert set(SCRIPTS_IMPORT) <= set(hf_compat.__all__)


def test_small_helpers_answer_as_upstreams():
    """The helpers that scripts call give what upstream's give."""
    trainer_utils = pytest.importorskip("transformers.trainer_utils")
    bound = functools.partial(sorted, reverse=True)
    for rank in (-1, 0, 1):
        assert hf_compat.is_main_process(rank) == trainer_utils.is_main_process(rank)
    assert hf_compat.total_processes_number(-1) == trainer_utils.total_processes_number(-1) == 1
    for function in (lambda: 0, lambda trial: 0, lambda a, b=1, *c: 0, bound):
        assert hf_compat.number_of_arguments(function) == trainer_utils.number_of_arguments(function)
    metrics = {"a": np.float32(0.5), "b": [np.int64(3)], "c": (torch.tensor(2),), "d": "x"}
    assert hf_compat.denumpify_detensorize(metrics) == trainer_utils.denumpify_detensorize(metrics)
    for sized in ([1], range(3), iter([1]), object()):
        assert hf_compat.has_length(sized) == trainer_utils.has_length(sized)
    assert set(hf_compat.speed_metrics("eval", 0.0, 4, 2)) == set(trainer_utils.speed_metrics("eval", 0.0, 4, 2))


def test_a_worker_is_seeded_as_upstreams():
    """The seed of a worker follows from torch's, the workers and the process."""
    trainer_utils = pytest.importorskip("transformers.trainer_utils")
    drawn = []
    for seed_worker in (trainer_utils.seed_worker, hf_compat.seed_worker):
        torch.manual_seed(7)
        seed_worker(1, num_workers=2, rank=3)
        drawn.append((torch.rand(1).item(), np.random.rand(), random.random()))
    assert drawn[0] == drawn[1]
