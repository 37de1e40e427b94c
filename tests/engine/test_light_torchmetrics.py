"""Lightning gets its two classes of torchmetrics; the package is executed when something asks for more of it."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes import finish, start

LIGHT = """
import sys

import hf_compat.engine
import lightning.pytorch
import torchmetrics
from torchmetrics import Metric, MetricCollection
from torchmetrics.metric import Metric as Same

def loaded():
    return {name for name in sys.modules if name.startswith("torchmetrics.")}

few = loaded()
assert "torchmetrics.classification" not in few and len(few) < 20, few
assert Metric is Same
assert torchmetrics.__version__
assert not any(hasattr(torchmetrics, name) for name in ("no_such_name", "__wrapped__"))
assert loaded() == few
"""
WHOLE = """
assert "torchmetrics.classification" in loaded()
assert type(torchmetrics) is type(sys)
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("hf_compat")]
assert torchmetrics.Metric is Metric
metric = torchmetrics.Accuracy(task="binary")
assert isinstance(metric, Metric) and isinstance(MetricCollection([metric]), torchmetrics.MetricCollection)
"""
ASKING = {
    "a module within": "from torchmetrics.functional.text import bleu_score",
    "every name": "from torchmetrics import *; assert BLEUScore",
    "what there is": "assert 'BLEUScore' in dir(torchmetrics)",
    "several threads": """
from concurrent.futures import ThreadPoolExecutor

names = ["BLEUScore", "Accuracy", "MeanMetric", "functional", "text", "Metric"]
with ThreadPoolExecutor(len(names)) as pool:
    asked = list(pool.map(lambda name: getattr(torchmetrics, name), names))
assert asked == [vars(torchmetrics)[name] for name in names]
""",
}
EACH = """
import os

for name, asking in ASKING.items():
    child = os.fork()
    if child == 0:
        exec(asking + WHOLE)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


def run_python(script):
    (ended,) = finish([start([sys.executable, "-c", script])])
    assert ended.code == 0, ended.output


@pytest.mark.slow
def test_the_package_is_executed_when_it_is_asked_for():
    """Until then few of its modules are; from then on it is as ever, and its classes are those that Lightning has."""
    run_python(f"{LIGHT}\nASKING, WHOLE = {ASKING!r}, {WHOLE!r}\n{EACH}")


def test_nothing_is_done_where_it_is_imported_before():
    """A program that imported Lightning first has all of it."""
    run_python("import lightning.pytorch, torchmetrics, hf_compat.engine, sys; assert type(torchmetrics) is type(sys)")


@pytest.mark.slow
def test_another_release(tmp_path):
    """Where ``torchmetrics.metric`` needs more of the package, it is executed at once, as without hf_compat."""
    installed = Path(find_spec("torchmetrics").origin).parent
    shutil.copytree(installed, tmp_path / "torchmetrics")
    for name, before, newer in (
        ("metric.py", "import builtins\n", "from torchmetrics import _newer\n"),
        ("__init__.py", "import os\n", "_newer = 1\n"),
    ):
        source = (tmp_path / "torchmetrics" / name).read_text()
        assert before in source
        (tmp_path / "torchmetrics" / name).write_text(source.replace(before, before + newer, 1))
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    script += "import hf_compat.engine, torchmetrics\nfrom torchmetrics import Metric, MetricCollection\n"
    script += f"assert torchmetrics.__file__.startswith({str(tmp_path)!r})\n"
    script += "def loaded():\n    return sys.modules\n"
    run_python(script + WHOLE)
