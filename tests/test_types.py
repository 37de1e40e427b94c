"""A user's script with types passes strict type checkers, and the public API says what it takes."""

import ast
import dataclasses
import enum
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

import hf_compat
from tests.support.paths import ROOT
from tests.support.processes import PATIENCE, forked

SCRIPT = ROOT / "tests" / "scripts" / "typed_script.py"
SETTINGS = "--max_steps 6 --logging_steps 2 --eval_strategy steps --eval_steps 3 --save_steps 3"
BEST = "--metric_for_best_model accuracy --load_best_model_at_end"
QUIET = "--use_cpu --report_to none --disable_tqdm true --output_dir out"
FIELDS = f"{SETTINGS} {BEST} {QUIET}".split()


def ended(command, folder):
    """Run ``command`` in ``folder``, which sees this checkout; return the process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_the_typed_script_trains_the_same(tmp_path, monkeypatch):
    """The script that is checked runs under transformers' Trainer and ours, with the same results."""
    results = []
    for library in ("transformers", "hf_compat"):
        (tmp_path / library).mkdir()
        path = tmp_path / library / "script.py"
        path.write_text(SCRIPT.read_text().replace("from hf_compat import", f"from {library} import"))
        monkeypatch.chdir(tmp_path / library)
        done = forked(path, *FIELDS)
        assert done.code == 0, done.output
        results.append(done.output.splitlines()[-2:])
    assert results[0] == results[1]
    assert any(line.startswith("6 ") for line in results[0])


@pytest.mark.slow
def test_mypy_accepts_the_typed_script(tmp_path):
    """Nothing is untyped for ``mypy --strict``, with no setting of ours."""
    shutil.copy(SCRIPT, tmp_path / "script.py")
    done = ended([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is missing: pip install pyright")
def test_pyright_accepts_the_typed_script(tmp_path):
    """Nothing is untyped for pyright's strict mode; upstream's Trainer leaves 16 errors in the same script."""
    shutil.copy(SCRIPT, tmp_path / "script.py")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = ended([sys.executable, "-m", "pyright", "--pythonpath", sys.executable], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def ours(value):
    return (getattr(value, "__module__", None) or "").startswith("hf_compat")


def described():
    """Yield each public class, function and method of ours with all that ``help`` shows of it beside its own text."""
    for name in hf_compat.__all__:
        value = getattr(hf_compat, name)
        if inspect.isfunction(value) and ours(value):
            yield name, value, ""
        elif inspect.isclass(value) and ours(value):
            around = " ".join(kind.__doc__ or "" for kind in value.__mro__ if ours(kind))
            yield name, value, around
            if "__init__" in vars(value) and not dataclasses.is_dataclass(value) and not issubclass(value, enum.Enum):
                yield f"{name}.__init__", value.__init__, around
            for method, found in vars(value).items():
                function = getattr(found, "__func__", found)  # of a class method or static method
                if not method.startswith("_") and inspect.isfunction(function) and ours(function):
                    yield f"{name}.{method}", function, around


def with_references(kind, text):
    """Return a docstring with those of the methods of the same class that it refers to, and so on."""
    told = re.findall(r"\b(?:see|what) (``\w+``(?: and ``\w+``)*)", text)
    methods = [name for name in re.findall(r"\w+", " ".join(told).replace(" and ", " ")) if hasattr(kind, name)]
    return " ".join([text, *(with_references(kind, inspect.getdoc(getattr(kind, name)) or "") for name in methods)])


def raised(function):
    """Return the names of the errors in a function's own ``raise`` statements."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    errors = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return {ast.unparse(error.func if isinstance(error, ast.Call) else error) for error in errors}


PASSED_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@pytest.mark.parametrize(("name", "value", "around"), [pytest.param(*item, id=item[0]) for item in described()])
def test_help_names_arguments_results_and_errors(name, value, around):
    """What ``help`` shows names each argument, what is returned and each error that is raised."""
    kind = getattr(hf_compat, name.partition(".")[0])
    text = f"{with_references(kind, inspect.getdoc(value) or '')} {around}"
    assert text.strip()
    if inspect.isclass(value):
        return
    signature = inspect.signature(inspect.unwrap(value))
    names = [item.name for item in signature.parameters.values() if item.kind not in PASSED_ON]
    named = [item for item in names if item not in ("self", "cls") and not item.startswith("_")]
    missing = [item for item in named if not re.search(rf"\b{item}\b", text)]
    assert missing == []
    if signature.return_annotation not in (None, "None", inspect.Signature.empty):
        assert re.search(r"\b(return|yield)", text, re.IGNORECASE)
    assert {error for error in raised(value) if error.partition(".also(")[0] not in text} == set()
