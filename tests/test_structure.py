"""What keeps the architecture so: one Trainer, one owner and one writer of each piece of state, no back doors."""

import ast
import importlib
import json
import pkgutil
from collections import defaultdict
from pathlib import Path

import pytest

import hf_compat
from hf_compat import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from hf_compat.arguments.fields import declared
from hf_compat.tools.explain import fields_read, readers_of
from tests.support.helpers import PlainModel
from tests.support.paths import FACTS_FOLDER
from tests.support.trainers import arguments

ROOT = Path(hf_compat.__file__).parent
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
TREES = {module: ast.parse((ROOT / module).read_text()) for module in MODULES}
API = json.loads((FACTS_FOLDER / "trainer_api.json").read_text())
UPSTREAM = {*API["methods"], *API["seq2seq_methods"], *API["attributes"]}
OURS = {"semantics", "run_plan", "lightning_trainer", "lightning_module"}
"""What the Trainer has besides upstream's names."""
KEPT = {"lightning_backend", "training_run", "run_counters", "checkpoint_writer", "hub_pusher", "warn_once"}
"""What an instance keeps besides upstream's names."""


def every_class():
    """Yield each class that the package defines."""
    for info in pkgutil.walk_packages([str(ROOT)], "hf_compat."):
        module = importlib.import_module(info.name)
        yield from (item for item in vars(module).values() if isinstance(item, type) and item.__module__ == info.name)


def functions_of(tree):
    """Yield each function of a module with its qualified name, those of classes and nested ones included."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(tree, "")


def body_lines(function):
    """Return the lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


# One class


def test_the_trainer_has_no_bases():
    """The Trainer is one class, and Seq2SeqTrainer derives from it alone."""
    assert Trainer.__mro__ == (Trainer, object)
    assert Seq2SeqTrainer.__mro__ == (Seq2SeqTrainer, Trainer, object)


def test_no_class_has_two_bases_of_ours():
    """Nothing is mixed together."""
    mixed = [
        kind.__name__
        for kind in every_class()
        if sum(base.__module__.startswith("hf_compat.") for base in kind.__bases__) > 1
    ]
    assert mixed == ["EarlyStoppingCallback"]  # a callback and an ExportableState, as upstream defines it


def own_ancestry(kind):
    """Return how many classes of the package ``kind`` consists of, itself included."""
    return sum(base.__module__.startswith("hf_compat.") for base in kind.__mro__)


def test_classes_derive_once():
    """A class derives from one of ours that derives from none, but for exceptions."""
    longer = [kind.__name__ for kind in every_class() if own_ancestry(kind) > 2 and not issubclass(kind, Exception)]
    assert longer == ["EarlyStoppingCallback"]  # of two, see above


def test_the_arguments_have_no_bases():
    """TrainingArguments is one class, and Seq2SeqTrainingArguments derives from it alone."""
    assert TrainingArguments.__mro__ == (TrainingArguments, object)
    assert Seq2SeqTrainingArguments.__mro__ == (Seq2SeqTrainingArguments, TrainingArguments, object)


def test_no_class_name_means_two_things():
    """Each public class has a name of its own."""
    where = defaultdict(set)
    for kind in every_class():
        if not kind.__name__.startswith("_"):
            where[kind.__name__].add(kind.__module__)
    assert {name: modules for name, modules in where.items() if len(modules) > 1} == {}


def test_the_trainer_has_upstreams_names_alone():
    """Every member of the class is upstream's, in some release, or one of a handful of ours."""
    added = {name for name in vars(Trainer) if not (name.startswith("__") and name.endswith("__"))}
    assert added - UPSTREAM - OURS == {"training_run", "_abc_impl"}  # None before the first run; its metaclass's


@pytest.mark.parametrize("module", ["trainer/trainer.py", "arguments/training_arguments.py"])
def test_a_method_of_a_contract_is_short(module):
    """A method can be read at once; the Trainer's constructor alone is longer."""
    tree = next(node for node in TREES[Path(module)].body if isinstance(node, ast.ClassDef))
    sizes = {name: body_lines(function) for name, function in functions_of(tree)}
    assert sizes.pop("__init__", 0) <= 60
    assert {name: size for name, size in sizes.items() if size > 45} == {}


def test_what_an_instance_keeps_for_itself(tmp_path):
    """Besides upstream's attributes an instance has six objects, each with a job."""
    args = arguments(tmp_path)
    trainer = Trainer(PlainModel(), args)
    _ = trainer.current_flos
    assert {name for name in vars(trainer) if name not in UPSTREAM and name not in OURS} == KEPT


LONGEST = {Path("trainer/trainer.py"): 1600}
"""Upstream's class, with a body for each of its methods."""


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_files_hold_one_topic(module):
    """A file past 900 lines holds more than one topic, but for the Trainer, which is one contract."""
    assert len((ROOT / module).read_text().splitlines()) <= LONGEST.get(module, 900)


# Who writes what


def stores(tree, names):
    """Yield the function and the attribute of each assignment to an attribute of a variable among ``names``."""
    for where, function in functions_of(tree):
        for node in ast.walk(function):
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
                continue
            owner = node.value
            if isinstance(owner, ast.Attribute):  # self.host, self._host
                owner = ast.Name(owner.attr.lstrip("_"))
            if isinstance(owner, ast.Name) and owner.id in names:
                yield where, node.attr


def private_reads(tree):
    """Yield each underscore attribute read off something that is not the object itself or its class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                yield node.attr, ast.unparse(owner)


def test_no_private_name_crosses_packages():
    """An underscore name of the package is used in the folder that defines it, unless it is one of upstream's."""
    defined = defaultdict(set)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                defined[node.name].add(module.parts[0])
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr.startswith("_"):
                defined[node.attr].add(module.parts[0])
    crossing = [
        f"{module}: {owner}.{name}"
        for module, tree in TREES.items()
        for name, owner in private_reads(tree)
        if name in defined and module.parts[0] not in defined[name] and name not in UPSTREAM
    ]
    assert crossing == []


# Who reads what

FIELDS = declared(Seq2SeqTrainingArguments)

BEHIND_A_FLAG = {
    ("progress.py", "count_train_tokens", "include_tokens_per_second"),
    ("trainer.py", "Trainer.__init__", "use_cache"),
}
"""Functions that read a field in releases alone that have it."""


def test_a_field_that_may_be_the_scripts_is_read_as_the_run_has_it():
    """Who reads a field that some release lacks, and so may be a script's own, reads it of ``effective_args``."""
    found = set()
    for module, tree in TREES.items():
        for name, function in functions_of(tree) if module.parts[0] != "arguments" else ():
            if not any(isinstance(node, ast.Name) and node.id == "effective_args" for node in ast.walk(function)):
                found |= {(module.name, name, field) for field in fields_read(function) if FIELDS[field].may_be_lacking}
    assert {row for row in found if not FIELDS[row[2]].is_ours} == BEHIND_A_FLAG


def fields_that_are(handling):
    fields = [item for item in FIELDS.values() if item.effect.handling == handling]
    return pytest.mark.parametrize("field", fields, ids=lambda field: field.name)


@fields_that_are("plan")
def test_the_main_file_of_a_field_reads_it(field):
    """The file that does a field's main work reads the field; in ``arguments/`` it may also set it."""
    file = field.effect.target
    tree = TREES[Path(file)]
    sets = {attribute for _, attribute in stores(tree, {"self", "args"})}
    in_arguments = file.startswith("arguments/")
    assert field.name in (fields_read(tree, "self") | sets if in_arguments else fields_read(tree))


@fields_that_are("unsupported")
def test_a_refused_field_is_read_nowhere(field):
    """What is refused off its default has no code outside ``arguments/``."""
    assert readers_of(field.name) == ()


# The engine


@pytest.mark.parametrize("name", ["is_deepspeed_enabled", "is_fsdp_enabled", "is_tp_enabled"])
def test_flags_of_strategies_are_for_users(name):
    """Upstream's flags are assigned once and read nowhere: what a strategy does is its own."""
    uses = [
        (str(module), isinstance(node.ctx, ast.Store))
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == name
    ]
    assert uses == [("trainer/trainer.py", True)]


def test_private_names_of_lightning_are_in_one_folder():
    """Imports of Lightning's private names are in ``engine/internals``."""
    found = [
        f"{module}: {alias.name}"
        for module, tree in TREES.items()
        if module.parts[:2] != ("engine", "internals")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning")
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert found == []


# The run


RUN = {f"trainer/{name}.py" for name in ("loop", "preemption", "progress", "resume", "saving")}
"""The files of a run's objects."""


def test_a_run_uses_upstreams_names_alone():
    """What a run reads, assigns or calls of the Trainer is upstream's, but for the semantics and the plan."""
    used = set()
    for module, tree in TREES.items():
        for node in ast.walk(tree) if str(module) in RUN else ():
            if isinstance(node, ast.Attribute):
                owner = node.value
                name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                if name.lstrip("_") == "trainer":
                    used.add(node.attr)
    assert used - UPSTREAM == {"semantics", "run_plan"}


# Files of checkpoints

WRITES_STATES = {
    "accelerator/accelerator.py",  # what a script saves beside the checkpoints
    "checkpoint",
    "engine/strategies",
    "engine/checkpoint_io.py",  # hands the writer its parts
    "metrics.py",  # save_state()
    "trainer/saving.py",  # hands the writer its parts
    "state.py",
    "trainer/launching.py",  # what goes to started processes and back
    "tools",
}


def test_checkpoints_are_written_in_one_place():
    """States are written by the checkpoint folder and the strategies, by way of the one writer."""
    found = []
    for module, tree in TREES.items():
        if any(str(module).startswith(allowed) for allowed in WRITES_STATES):
            continue
        for node in ast.walk(tree):
            if (isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.save", "publish.staging")) or (
                isinstance(node, ast.Attribute) and node.attr == "save_to_json"
            ):
                found.append(f"{module}: {ast.unparse(node)}")
    assert found == []


def test_no_torch_distributed_in_arguments():
    """Which processes there are is the business of ``distributed/``."""
    found = [
        str(module)
        for module, tree in TREES.items()
        if module.parts[0] == "arguments"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.distributed")
    ]
    assert found == []
