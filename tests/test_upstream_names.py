"""An import from transformers' modules around its Trainer can be switched to hf_compat whole."""

import importlib
import inspect
import pickle
import subprocess
import sys

import pytest
import torch

import hf_compat
from hf_compat.trainer.searching import BestRun, best_run
from hf_compat.upstream_names import HANDED_ON

transformers = pytest.importorskip("transformers")

MODULES = (
    "trainer",
    "trainer_callback",
    "trainer_pt_utils",
    "trainer_seq2seq",
    "trainer_utils",
    "training_args",
    "training_args_seq2seq",
    "data.data_collator",
    "hf_argparser",
    "optimization",
)
NOT_THEIRS = {"TYPE_CHECKING", "annotations", "logger"}


def names_of(module):
    """Return the names that ``module`` offers: its own, those of transformers, and constants."""
    found = set()
    for name, value in vars(module).items():
        if name.startswith("_") or inspect.ismodule(value) or name in NOT_THEIRS:
            continue
        home = getattr(value, "__module__", None) or ""
        is_constant = name.isupper() or name in ("DataCollator", "log_levels", "trainer_log_levels")
        if home.startswith("transformers") or is_constant or name.startswith("is_"):
            found.add(name)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_name_can_be_imported_from_here(module):
    """Each public name of the installed release is ours or transformers' own object."""
    upstream = importlib.import_module(f"transformers.{module}")
    names = names_of(upstream)
    assert len(names) > 2
    missing = [name for name in names if not hasattr(hf_compat, name)]
    assert missing == []
    for name in names - set(hf_compat.__all__):
        assert name in HANDED_ON
        assert callable(getattr(hf_compat, name)) == callable(getattr(upstream, name)), name


def test_what_is_handed_on_is_not_ours():
    """A name is in one table alone, and none hides a module of the package."""
    assert not HANDED_ON & set(hf_compat.__all__)
    parts = {path.stem for path in importlib.resources.files("hf_compat").iterdir()}
    assert not HANDED_ON & parts


@pytest.mark.parametrize("name", ["AutoTokenizer", "AutoModelForSequenceClassification", "DataCollatorForSeq2Seq"])
def test_models_tokenizers_and_their_collators_are_transformers_own(name):
    """The rest of a script's import line is handed on."""
    assert getattr(hf_compat, name) is getattr(transformers, name)


def words_printed_by(script):
    """Return what ``script`` prints in a process of its own."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()


def test_importing_loads_nothing():
    """Neither the package, nor names of ours, nor asking for a name that nobody has, loads transformers or torch."""
    script = """
import sys
import hf_compat
from hf_compat import TrainingArguments, WEIGHTS_NAME
print(hasattr(hf_compat, "no_such_name"), *sorted({"torch", "transformers", "lightning"} & set(sys.modules)))
"""
    assert words_printed_by(script) == ["False"]


def test_without_transformers():
    """Ours work; a name of transformers' is an ImportError that says what to install; any other is unknown."""
    script = """
import sys
sys.modules["transformers"] = None
import torch
from hf_compat import Adafactor, GreedyLR, get_scheduler, string_to_bool
print(Adafactor.__module__, GreedyLR.__module__)
try:
    from hf_compat import DataCollatorForLanguageModeling
except ImportError as error:
    print("hf-compat[transformers]" in str(error), "DataCollatorForLanguageModeling" in str(error))
try:
    from hf_compat import NoSuchName
except ImportError as error:
    print("NoSuchName" in str(error))
from hf_compat.optim.optimizers import optimizer_class_and_kwargs
from hf_compat import TrainingArguments
print(optimizer_class_and_kwargs(TrainingArguments("out", optim="adafactor"))[0].__module__)
"""
    ours = ["hf_compat.optim.adafactor", "hf_compat.optim.greedy"]
    assert words_printed_by(script) == [*ours, "True", "True", "True", "hf_compat.optim.adafactor"]


def test_optimizers_and_schedules_are_of_the_classes_that_people_test_for(tmp_path):
    """`optim="adafactor"` makes transformers' Adafactor, and a greedy schedule is transformers' where it has one."""
    from tests.support.helpers import PlainModel

    fields = {"optim": "adafactor", "use_cpu": True, "report_to": "none"}
    kinds = []
    for library in (transformers, hf_compat):
        trainer = library.Trainer(PlainModel(), library.TrainingArguments(str(tmp_path), **fields))
        trainer.create_optimizer_and_scheduler(10)
        kinds.append((type(getattr(trainer.optimizer, "optimizer", trainer.optimizer)), type(trainer.lr_scheduler)))
    assert kinds[0] == kinds[1]
    assert hf_compat.Adafactor is transformers.Adafactor
    greedy = getattr(transformers.optimization, "GreedyLR", None)
    assert hf_compat.GreedyLR is (greedy or importlib.import_module("hf_compat.optim.greedy").GreedyLR)
    optimizer = torch.optim.SGD(PlainModel().parameters(), lr=0.1)
    assert isinstance(hf_compat.get_scheduler("greedy", optimizer), hf_compat.GreedyLR)


SCHEDULES = {
    "constant": {},
    "linear": {"num_warmup_steps": 2, "num_training_steps": 7},
    "cosine": {"num_warmup_steps": 2, "num_training_steps": 7, "scheduler_specific_kwargs": {"num_cycles": 2}},
    "constant_with_warmup": {"num_warmup_steps": 3},
    "inverse_sqrt": {"num_warmup_steps": 3},
    "polynomial": {"num_warmup_steps": 1, "num_training_steps": 5},
    "reduce_lr_on_plateau": {"scheduler_specific_kwargs": {"patience": 1}},
    "cosine without warm-up": {"num_training_steps": 5},
    "linear without an end": {"num_warmup_steps": 2},
    "warmup_stable_decay": {
        "num_warmup_steps": 2,
        "num_training_steps": 9,
        "scheduler_specific_kwargs": {"num_decay_steps": 3},
    },
}


@pytest.mark.parametrize("row", SCHEDULES)
def test_get_scheduler_gives_upstreams_rates(row):
    """The same class, the same rates and the same state; what is missing is an error of the same type."""
    outcomes = []
    for library in (transformers, hf_compat):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
        try:
            schedule = library.get_scheduler(row.split()[0], optimizer, **SCHEDULES[row])
        except ValueError:
            outcomes.append("ValueError")
            continue
        rates = []
        for _ in range(9):
            optimizer.step()
            schedule.step(*([1.0] if "plateau" in row else []))
            rates.append(optimizer.param_groups[0]["lr"])
        outcomes.append((type(schedule), rates, {k: v for k, v in schedule.state_dict().items() if "lambda" not in k}))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("word", ["yes", "True", "t", "1", "no", "FALSE", "f", "0", True, False, "perhaps"])
def test_words_mean_what_they_mean_upstream(word):
    """`string_to_bool` answers and refuses as upstream's."""
    results = []
    for library in (transformers.hf_argparser, hf_compat):
        try:
            results.append(library.string_to_bool(word))
        except Exception as error:
            results.append(type(error))
    assert results[0] == results[1]


def test_a_search_returns_a_best_run_of_both():
    """What a search returns is a BestRun of ours and of transformers', equal to a tuple, and can be pickled."""
    best = best_run("3", 0.5, {"learning_rate": 0.1})
    assert isinstance(best, BestRun)
    assert isinstance(best, transformers.trainer_utils.BestRun)
    assert best == ("3", 0.5, {"learning_rate": 0.1}, None)
    assert (best.run_id, best.objective, best._replace(run_id="4").run_id) == ("3", 0.5, "4")
    assert pickle.loads(pickle.dumps(best)) == best
