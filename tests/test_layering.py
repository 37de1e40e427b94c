"""How the modules stand to one another: imports point one way, heavy packages stay where they belong."""

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hf_compat

ROOT = Path(hf_compat.__file__).parent
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
TESTS = Path(__file__).parent
PREFIX = "hf_compat."

LAYERS: tuple[tuple[str, ...], ...] = (
    ("environment", "errors", "version"),
    (
        "atomic_files",
        "nested",
        "memory",
        "overflow",
        "overriding",
        "upstream_names",
        "log_files",
        "masking",
        "distributed",
    ),
    ("arguments",),
    ("plan", "state", "callbacks", "metrics", "seeding", "model_facts", "special_tokens", "model_card"),
    ("optim",),
    ("data", "checkpoint", "hub"),
    ("accelerator", "engine"),
    ("trainer",),
    ("lightning", "installing"),
    ("tools",),
    ("cli", "__main__"),
)
"""From the bottom up: a module may import those of its own row and of the rows above it."""
LAYER_OF = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def part_of(module: Path) -> str:
    """Return the part of the package that a module belongs to."""
    return module.parts[0].removesuffix(".py")


def statements(tree: ast.AST, *, in_functions: bool):
    """Yield all nodes that run, those of function bodies if asked for; what only type checkers see is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if in_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from statements(node, in_functions=in_functions)


def imports(module: Path, *, top_level_only: bool):
    """Yield the dotted names that a module imports, with or without the imports inside functions."""
    tree = ast.parse((ROOT / module).read_text())
    for node in statements(tree, in_functions=not top_level_only):
        assert not getattr(node, "level", 0), f"{module}, line {node.lineno}: relative imports escape this check"
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "hf_compat")


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_point_one_way(module):
    """A module imports only from its own layer and the layers below."""
    if module == Path("__init__.py"):
        return
    own = LAYER_OF[part_of(module)]
    used = {name.split(".")[1] for name in imports(module, top_level_only=False) if name.startswith(PREFIX)}
    assert {name for name in used if LAYER_OF[name] > own} == set()


def test_layers_name_the_parts_that_there_are():
    """Each part has one layer, and no layer names a part that is gone."""
    assert set(LAYER_OF) == {part_of(module) for module in MODULES} - {"__init__"}


def test_parts_import_in_no_circle():
    """Parts of one row may use one another, but not each other: the whole can be sorted."""
    used = {part: set() for part in LAYER_OF}
    for module in MODULES:
        if module != Path("__init__.py"):
            names = {name.split(".")[1] for name in imports(module, top_level_only=False) if name.startswith(PREFIX)}
            used[part_of(module)] |= names & LAYER_OF.keys() - {part_of(module)}
    assert set(TopologicalSorter(used).static_order()) == LAYER_OF.keys()


def files_named(node: ast.ImportFrom) -> set[Path]:
    """Return the files of ours that ``from ... import ...`` is about."""
    folder = Path(*node.module.split(".")[1:])
    named = {folder / f"{alias.name}.py" for alias in node.names} & set(MODULES)
    return named or {folder.with_suffix(".py"), folder / "__init__.py"} & set(MODULES)


def files_imported(module: Path):
    """Yield the files that a module imports when it runs, those that its functions import too."""
    for node in statements(ast.parse((ROOT / module).read_text()), in_functions=True):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(PREFIX):
            yield from files_named(node)


def test_files_import_in_no_circle():
    """No two files import each other, nor by way of others: each can be read after those that it stands on."""
    used = {module: set(files_imported(module)) for module in MODULES}
    assert set(TopologicalSorter(used).static_order()) == set(MODULES)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_lightning_is_imported_by_the_engine_alone(module):
    """Only the engine and the public pieces import lightning; nobody imports transformers or accelerate at the top."""
    roots = {name.partition(".")[0] for name in imports(module, top_level_only=True)}
    assert not roots & {"accelerate", "peft", "pytorch_lightning", "transformers"}
    assert part_of(module) in ("engine", "lightning") or "lightning" not in roots


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("hf_compat", ("torch", "lightning", "transformers", "datasets", "accelerate")),
        ("hf_compat.arguments", ("torch", "lightning", "transformers", "accelerate")),
        ("hf_compat.plan", ("torch", "lightning", "transformers", "accelerate")),
        ("hf_compat.callbacks", ("torch", "lightning", "transformers", "accelerate")),
        ("hf_compat.cli", ("torch", "lightning", "transformers", "accelerate")),
        ("hf_compat.tools.checkpoints", ("torch", "lightning", "transformers", "accelerate")),
    ],
)
def test_imports_stay_light(imported, absent):
    """Importing the package, or its pure parts, loads none of the heavy packages."""
    script = f"import {imported}, sys; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.strip() == "[]"


def test_extras_are_imported_where_they_are_used(tmp_path):
    """Without the packages of the extras all is imported but what draws with rich and rewrites with libcst; it trains.

    The README's whole script prints the line that it has learned.
    """
    done = subprocess.run(
        [sys.executable, TESTS / "scripts" / "dependencies_alone.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT.parent)},
    )
    assert done.returncode == 0, done.stderr
    *refused, last = [line for line in done.stdout.splitlines() if "train_runtime" not in line]
    assert last == "{'layer.weight': 2.0, 'layer.bias': 1.0}"
    assert {line.partition(":")[0].rpartition(".")[0] for line in refused} == {"hf_compat.callbacks", "hf_compat.tools"}
    *_, rich, port = sorted(line.partition(": ")[2] for line in refused)
    assert rich == "No module named 'rich'"
    assert 'pip install "hf-compat[port]"' in port


def test_every_test_says_what_it_shows():
    """Each test function has a docstring that states the fact."""
    silent = [
        f"{path.relative_to(TESTS)}:{node.name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []


LARGEST_CIRCLE = 15
"""Files that know each other by their types: the Trainer and what its methods hand it to; the arguments."""


def test_few_files_know_each_other_by_types():
    """Counting what only type checkers see, no more than 15 files import each other, each by way of the others."""
    known: dict[Path, set[Path]] = {}
    for module in MODULES:
        known[module] = set()
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(PREFIX):
                known[module] |= files_named(node)

    def reached_from(start):
        seen, ahead = set(), [start]
        while ahead:
            ahead += (fresh := known[ahead.pop()] - seen)
            seen |= fresh
        return seen

    reached = {module: reached_from(module) for module in MODULES}
    circles = {frozenset(other for other in reached[module] if module in reached[other]) for module in MODULES}
    largest = max(circles, key=len)
    assert len(largest) <= LARGEST_CIRCLE, sorted(map(str, largest))
