"""What the documents for contributors say of the code is so: paths, names, the layers, the strategies."""

import ast
import dataclasses
import re
from collections import defaultdict
from functools import cache

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.plugins import environments

from hf_compat.callbacks import TrainerCallback
from hf_compat.checkpoint import names
from hf_compat.engine.strategies.base import STRATEGIES
from hf_compat.engine.strategies.choice import STRATEGY_TRAITS, StrategyTraits
from hf_compat.trainer.loop import RunHooks
from tests.support.paths import ROOT
from tests.test_layering import LAYERS

ARCHITECTURE, CONTRIBUTING = ("docs/architecture.md", "docs/architecture_reference.md"), "CONTRIBUTING.md"
DOCUMENTS = (*ARCHITECTURE, CONTRIBUTING)
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
WITH_PATHS = (*PAGES, CONTRIBUTING, "README.md", "CHANGELOG.md", "tests/README.md")
FOLDERS = (ROOT, ROOT / "hf_compat", ROOT / "tests")
"""Where a path may begin: the documents leave ``hf_compat/`` out where no other folder can be meant."""

NO_NAMES = {"ddp_spawn", "elif", "Protocol", *STRATEGY_TRAITS}
"""Words in code style that are Python's, or values."""
ELSEWHERE = {"lightning": pl, "lightning.Trainer": pl.Trainer, "optimizer": torch.optim.Optimizer}
"""What is named of other packages."""
OF_LIGHTNING = (pl, pl.LightningModule, pl.Trainer, pl.callbacks, pl.strategies, environments)
"""Where a plain name may be, besides the package and its tests."""
VARIABLES = {"host": "Trainer", "trainer": "Trainer", "args": "TrainingArguments"}
"""Variable to the class of which it always is."""


def text_of(document):
    """Return a document without the table that ``hf-compat explain`` makes, which is tested by itself."""
    return re.sub(r"<!-- made by: .*?<!-- end -->", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.S)


def fences_of(document, language="text"):
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", text_of(document), re.S))


def words_of(document):
    """Yield what stands in backticks outside of blocks of code."""
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text_of(document), flags=re.S | re.M))


def section(marker):
    """Return what follows a marker of the architecture, up to the next empty line."""
    text = "\n\n".join(map(text_of, ARCHITECTURE))
    (found,) = re.findall(rf"<!-- {marker}: .*? -->\n(.*?)(?:\n\n|\Z)", text, re.S)
    return found


def rows(marker):
    """Return the cells of the table that follows a marker."""
    _, _, *lines = section(marker).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


# Names


class Names:
    """What the package and its tests define: names, the members of classes, the functions of modules."""

    def __init__(self):
        self.all, self.bases = set(), defaultdict(set)
        self.members, self.modules = defaultdict(set), defaultdict(set)
        for folder in ("hf_compat", "tests"):
            for path in sorted((ROOT / folder).rglob("*.py")):
                self._visit(ast.parse(path.read_text(encoding="utf-8")), None, path.stem)

    def _visit(self, node, kind, module, in_function=False):
        for child in ast.iter_child_nodes(node):
            name = self._defined_by(child, in_function=in_function)
            if name is not None:
                self.all.add(name)
                (self.modules[module] if kind is None else self.members[kind]).add(name)
            inside = kind
            if isinstance(child, ast.ClassDef):
                inside = child.name
                self.bases[inside] |= {ast.unparse(base).rpartition(".")[2] for base in child.bases}
            self._visit(child, inside, module, in_function or isinstance(child, ast.FunctionDef))

    @staticmethod
    def _defined_by(node, *, in_function):
        """Return the class, function, constant or attribute that ``node`` defines; None if it is a local variable."""
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            return node.name
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            return node.attr
        is_name = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        return node.id if is_name and not in_function else None

    def has_member(self, kind, member):
        return member in self.members[kind] or any(self.has_member(base, member) for base in self.bases[kind])


@cache
def defined():
    return Names()


def is_known(name):
    """Return whether a plain or dotted name is defined, here or in Lightning."""
    head, _, member = name.rpartition(".")
    found = defined()
    if not head:
        return member in found.all or any(hasattr(one, member) for one in OF_LIGHTNING)
    if head in ELSEWHERE:
        return hasattr(ELSEWHERE[head], member)
    kind = VARIABLES.get(head, head)
    return found.has_member(kind, member) or member in found.modules[head]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_exist(document):
    """Each name in backticks, and each call in a call tree, is defined; hooks in a tree are hooks."""
    words = [re.sub(r"\(\)$", "", word) for word in words_of(document)]
    words += re.findall(r"([A-Za-z_][\w.]*)\(\)", fences_of(document))
    plain = {word.removeprefix("@") for word in words if re.fullmatch(r"@?[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", word)}
    plain -= NO_NAMES | {CONTRIBUTING, *file_names()}
    assert {word for word in plain if not is_known(word)} == set()
    events = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert set(re.findall(r"\bon_\w+", fences_of(document))) <= {*vars(RunHooks), *events}


# Paths


def file_names():
    """Return the names of the files in a checkpoint."""
    return [value for value in vars(names).values() if isinstance(value, str) and "." in value]


@pytest.mark.parametrize("document", WITH_PATHS)
def test_paths_exist(document):
    """Each path in backticks or in a call tree, and each link to a file, leads somewhere."""
    words = {word.partition("::")[0] for word in words_of(document)} | set(
        fences_of(document).replace(";", " ").split()
    )
    paths = {word for word in words if re.fullmatch(r"[\w.-]+(/[\w.-]+)*(/|\.(py|md|json|toml))", word)}
    paths -= {*file_names(), *(path for path in paths if path in OTHERS_PATHS)}
    folders = (*FOLDERS, (ROOT / document).parent)
    assert {path for path in paths if not any((folder / path).exists() for folder in folders)} == set()
    links = re.findall(r"\]\((?!https?://|\.\./\.\./actions/)([^)#]+)", text_of(document))
    assert {link for link in links if not ((ROOT / document).parent / link).exists()} == set()


OTHERS_PATHS = {"zero_to_fp32.py", "config.json", "train.py"}
"""Files of other packages, scripts of users, and what runs write."""


def test_tests_that_are_named_are_in_the_files_that_are_named():
    """Of the tests that fail until a change is complete, each is in the file behind it."""
    functions = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"((?:`test_\w+`(?:,| and)?\s+)+)\((`tests/[\w/]+\.py`)\)", text_of(CONTRIBUTING))
    assert len(named) >= 8
    for tests, file in named:
        text = functions[ROOT / file.strip("`")]
        assert [name for name in code(tests) if f"def {name}(" not in text] == []


# The picture and the tables


def test_the_picture_of_layers_is_that_of_the_test():
    """The rows of the picture, from the bottom up, are the layers that imports are checked against."""
    drawn = [tuple(line.strip("│ ").split()) for line in section("layers").splitlines() if line.startswith("│")]
    assert tuple(reversed(drawn)) == LAYERS


def test_the_table_of_strategies_is_that_of_the_code():
    """Each strategy has a row with its builder and those of its facts that are yes or no."""
    expected = {}
    for name, facts in STRATEGY_TRAITS.items():
        held = {item.name: getattr(facts, item.name) for item in dataclasses.fields(StrategyTraits)}
        places = held.pop("places_model")
        true = {fact for fact, value in held.items() if value is True}
        expected[name] = (STRATEGIES[name].rpartition(".")[2], true, places)
    listed = {}
    for name, builder, facts in rows("strategies"):
        true, _, rest = facts.partition("; ")
        listed[code(name)[0]] = (code(builder)[0], set(code(true)), rest != "not `places_model`")
    assert listed == expected
