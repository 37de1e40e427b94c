"""``hf-compat port``: what becomes of a script's imports, and what it says of the rest."""

import ast
import importlib
import io
import os
import subprocess
import sys
import tokenize
from contextlib import redirect_stderr, redirect_stdout

import pytest
from hypothesis import given, settings, strategies as st

import hf_compat.tools.port
from hf_compat.cli import main
from hf_compat.errors import MissingPackageError, ReportError
from hf_compat.tools.port.command import port_script

pytest.importorskip("libcst")

MOVED = ("Trainer", "TrainingArguments", "TrainerCallback", "set_seed", "EvalPrediction")
STAYING = ("AutoModel", "AutoTokenizer", "pipeline", "WEIGHTS_NAME", "BertConfig")


def ported(tmp_path, text, name="script.py"):
    """Return ``text`` after the port."""
    script = tmp_path / name
    script.write_bytes(text.encode())
    return port_script(str(script)).after.decode()


def port(*words):
    """Run the command, and return its status, stdout and stderr."""
    out, told = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(told):
        status = main(["port", *map(str, words)])
    return status, out.getvalue(), told.getvalue()


CASES = {
    "whole line": ("from transformers import Trainer\n", "from hf_compat import Trainer\n"),
    "another module of transformers": (
        "from transformers.trainer_utils import get_last_checkpoint as last, EvalPrediction  # both\n",
        "from hf_compat import get_last_checkpoint as last, EvalPrediction  # both\n",
    ),
    "one line in two": (
        "from transformers import AutoModel, Trainer, pipeline, set_seed\n",
        "from transformers import AutoModel, pipeline\nfrom hf_compat import Trainer, set_seed\n",
    ),
    "a line for each name": (
        "from transformers import (\n    # models\n    AutoModel,  # base\n    # training\n    Trainer,  # loop\n"
        "    pipeline,\n)\n",
        "from transformers import (\n    # models\n    AutoModel,  # base\n    pipeline,\n)\n"
        "from hf_compat import (\n    # training\n    Trainer,  # loop\n)\n",
    ),
    "several names in a line of brackets": (
        "from transformers import (AutoModel, Trainer,\n                          pipeline, set_seed)\n",
        "from transformers import (AutoModel,\n                          pipeline)\n"
        "from hf_compat import Trainer, set_seed\n",
    ),
    "continued lines": (
        "from transformers import Trainer, \\\n    AutoModel\n",
        "from transformers import AutoModel\nfrom hf_compat import Trainer\n",
    ),
    "a comment for a tool": (
        "from transformers import AutoModel, Trainer  # noqa: E402\n",
        "from transformers import AutoModel  # noqa: E402\nfrom hf_compat import Trainer  # noqa: E402\n",
    ),
    "another comment": (
        "from transformers import AutoModel, Trainer  # what we need\n",
        "from transformers import AutoModel  # what we need\nfrom hf_compat import Trainer\n",
    ),
    "the package": (
        "import transformers\n\nclass A(transformers.Trainer): ...\n",
        "import hf_compat\n\nclass A(hf_compat.Trainer): ...\n",
    ),
    "the package for both": (
        "import transformers as tf\n\nprint(tf.__version__, tf.trainer_utils.get_last_checkpoint)\n",
        "import transformers as tf\nimport hf_compat\n\nprint(tf.__version__, hf_compat.get_last_checkpoint)\n",
    ),
    "two imports of the package": (
        "import transformers\nimport transformers.trainer_utils\ntransformers.trainer_utils.set_seed(transformers.x)\n",
        "import transformers\nimport hf_compat\nhf_compat.set_seed(transformers.x)\n",
    ),
    "a module of the package": (
        "from transformers import trainer_utils as utils\nutils.set_seed(utils.other)\n",
        "from transformers import trainer_utils as utils\nimport hf_compat\nhf_compat.set_seed(utils.other)\n",
    ),
    "inside a function": (
        "def f():\n    from transformers import AutoModel, Trainer\n    return Trainer\n",
        "def f():\n    from transformers import AutoModel\n    from hf_compat import Trainer\n    return Trainer\n",
    ),
    "statements on one line": (
        "try: from transformers import Trainer, pipeline; a = 1\nexcept ImportError: pass\n",
        "try: from transformers import pipeline; from hf_compat import Trainer; a = 1\nexcept ImportError: pass\n",
    ),
    "a star": (
        "from transformers.trainer_utils import *\nset_seed(0)\nother()\n",
        "from transformers.trainer_utils import *\nfrom hf_compat import set_seed\nset_seed(0)\nother()\n",
    ),
    "a star after a name": (
        "from transformers import Trainer, set_seed as seed\nfrom transformers import *\nTrainer, TrainingArguments\n",
        "from hf_compat import Trainer, set_seed as seed\nfrom transformers import *\n"
        "from hf_compat import Trainer, TrainingArguments\nTrainer, TrainingArguments\n",
    ),
    "a star after a ported name": (
        "from hf_compat import Trainer\nfrom transformers import *\nTrainer\n",
        "from hf_compat import Trainer\nfrom transformers import *\nfrom hf_compat import Trainer\nTrainer\n",
    ),
    "a star before a name": (
        "from transformers import *\nfrom transformers import Trainer\nTrainer\n",
        "from transformers import *\nfrom hf_compat import Trainer\nTrainer\n",
    ),
    "the default callbacks": (
        "import transformers.trainer\ntransformers.trainer.DEFAULT_PROGRESS_CALLBACK = Mine\n",
        "import hf_compat\nhf_compat.DEFAULT_PROGRESS_CALLBACK = Mine\n",
    ),
    "a name of the script's own": (
        "def f(transformers):\n    return transformers.Trainer\n",
        "def f(transformers):\n    return transformers.Trainer\n",
    ),
    "a module beside it": ("from .transformers import Trainer\n", "from .transformers import Trainer\n"),
    "an attribute of a class": (
        "from transformers import IntervalStrategy\nIntervalStrategy.NO\n",
        "from hf_compat import IntervalStrategy\nIntervalStrategy.NO\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_imports(tmp_path, case):
    """Each form of import takes the Trainer's names from hf_compat, and all else from where it was."""
    before, after = CASES[case]
    assert ported(tmp_path, before) == after
    assert ported(tmp_path, after) == after


def test_a_long_line_gets_a_line_for_each_name(tmp_path):
    """A new line is no longer than 88 columns."""
    names = "Trainer, TrainingArguments, TrainerCallback, EarlyStoppingCallback, HfArgumentParser, EvalPrediction"
    after = ported(tmp_path, f"if True:\n    from transformers import AutoModel, {names}\n")
    listed = "".join(f"        {name},\n" for name in names.split(", "))
    assert after == f"if True:\n    from transformers import AutoModel\n    from hf_compat import (\n{listed}    )\n"


def test_a_comment_behind_a_moved_name_goes_with_it_alone(tmp_path):
    """It does not stay behind the opening bracket, too, where a comment above the first name that stays begins."""
    before = (
        "from transformers import (Trainer,  # moves\n    TrainingArguments,\n    # stays\n    AutoModel)\n"
        "AutoModel, Trainer, TrainingArguments\n"
    )
    after = ported(tmp_path, before)
    assert after.startswith("from transformers import (\n    # stays\n    AutoModel)\n")
    assert comments(after) == ["# moves", "# stays"]


names = st.lists(st.sampled_from(MOVED + STAYING), min_size=1, max_size=8, unique=True)
layouts = st.sampled_from(("{}", "({})", "(\n    {}\n)", "(\n    {},\n)", "(  # why\n    {})"))
joints = st.sampled_from((", ", ",\n    ", ",  # {}\n    ", ",\n    # {}\n    ", ",\n\n    "))


@settings(max_examples=50, deadline=None)
@given(names, layouts, st.lists(joints, min_size=8, max_size=8), st.sampled_from(("\n", "\r\n")))
def test_any_layout(tmp_path_factory, names, layout, between, newline):
    """However it is laid out, each name is imported once, from the right package, and no comment is lost."""
    flat = layout == "{}"
    listed = names[0]
    for index, name in enumerate(names[1:]):
        listed += (", " if flat else between[index].format(f"note {index}")) + name
    before = f"# first\nfrom transformers import {layout.format(listed)}\nprint({names[0]})\n".replace("\n", newline)
    after = ported(tmp_path_factory.mktemp("layout"), before)
    found = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(after))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert found == {("hf_compat" if name in MOVED else "transformers", name) for name in names}
    assert after.count("import") == len({module for module, _ in found})
    assert comments(after) == comments(before)
    assert after.count("\n") == after.count(newline)


def comments(text):
    """Return the comments in a script, sorted."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sorted(token.string for token in tokens if token.type == tokenize.COMMENT)


def test_the_command_prints_a_diff_and_changes_nothing(tmp_path, monkeypatch):
    """The diff goes to stdout, what is to be known to stderr; `patch` applies the one."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("from transformers import AutoModel, Trainer\n\nprint(Trainer)")
    before = script.read_bytes()
    status, diff, told = port("train.py")
    assert (status, script.read_bytes()) == (0, before)
    assert told == "From hf_compat now: Trainer.\nFrom transformers as before: AutoModel.\n"
    subprocess.run(["patch", "-p1"], input=diff, text=True, check=True, capture_output=True)
    assert script.read_text() == "from transformers import AutoModel\nfrom hf_compat import Trainer\n\nprint(Trainer)"


def test_write(tmp_path):
    """`--write` changes the file, through a link too; permissions, newlines and the encoding stay. It is done once."""
    script = tmp_path / "train.py"
    script.write_bytes("# coding: latin-1\r\nfrom transformers import Trainer  # é\r\n".encode("latin-1"))
    script.chmod(0o750)
    link = tmp_path / "link.py"
    link.symlink_to(script)
    status, diff, told = port(link, "--write")
    assert status == 0
    assert "+from hf_compat import Trainer  # é" in diff
    assert told.endswith(f"Wrote `{link}`.\n")
    assert script.read_bytes() == "# coding: latin-1\r\nfrom hf_compat import Trainer  # é\r\n".encode("latin-1")
    assert script.stat().st_mode & 0o777 == 0o750
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.py", "train.py"]
    status, diff, told = port("--write", script)
    assert (status, diff) == (0, "")
    assert told.startswith("Nothing to change")


def test_a_script_that_changed_is_not_overwritten(tmp_path):
    """What was edited after it was read stays."""
    script = tmp_path / "train.py"
    script.write_text("from transformers import Trainer\n")
    planned = port_script(str(script))
    script.write_text("edited\n")
    with pytest.raises(ReportError, match="has changed in the meantime"):
        planned.write()
    assert script.read_text() == "edited\n"


def test_what_cannot_be_ported(tmp_path):
    """Overrides that no run calls, changed modules of transformers and classes of other libraries are named by line."""
    (tmp_path / "own_trainer.py").write_text("from transformers import Trainer\n")
    (tmp_path / "unrelated.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text(
        "import own_trainer, unrelated, trl\n"
        "import transformers\n"
        "import lightning as pl\n"
        "class Base(transformers.Trainer):\n"
        "    def _run_epoch(self): ...\n"
        "class Mine(Base):\n"
        "    def _nested_gather(self): ...\n"
        "    def compute_loss(self): ...\n"
        "transformers.trainer.is_torch_xla_available = None\n"
        "trl.SFTTrainer(pl.Trainer())\n"
    )
    status, diff, told = port(script)
    assert status == 1
    assert "+class Base(hf_compat.Trainer):" in diff
    lines = [line for line in told.splitlines() if line.startswith("Line")]
    assert [line.split(":")[0] for line in lines] == ["Line 1", "Line 5", "Line 7", "Line 9", "Line 10"]
    told_of = ("own_trainer.py", "Base._run_epoch", "Mine._nested_gather", "no effect", "trl")
    assert all(words in line for words, line in zip(told_of, lines, strict=True))


def test_training_arguments_are_explained(tmp_path):
    """Calls of TrainingArguments or a class derived from it, and the command line; a wrong value exits with 1."""
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import TrainingArguments\n"
        "class Mine(TrainingArguments): ...\n"
        "Mine('out', learning_rate=2e-5, seed=seed(), load_best_model_at_end=True, **more)\n"
    )
    status, _, told = port(script)
    assert status == 0
    assert "Line 3: training arguments. It passes further ones as `**`" in told
    assert "2e-05" in told
    assert "seed()" in told
    script.write_text("from transformers import TrainingArguments as A\nA('out', tpu_num_cores=8, seed=seed())\n")
    assert port(script)[0] == 1
    script.write_text("from transformers import TrainingArguments as A\nA('out', learning_rate=-1)\n")
    status, _, told = port(script, "--weight_decay", "0.1")
    assert "error: `learning_rate" in told
    assert "weight_decay" in told.partition("Its arguments on the command line:")[2]
    assert status == 1


def test_what_is_no_script(tmp_path, monkeypatch):
    """A missing file, one that is not Python, and a missing libcst are errors that say so."""
    with pytest.raises(ReportError, match="cannot be read"):
        port_script(str(tmp_path / "none.py"))
    (tmp_path / "bad.py").write_text("from transformers import (\n")
    with pytest.raises(ReportError, match="is not Python"):
        port_script(str(tmp_path / "bad.py"))
    (tmp_path / "bad.py").write_bytes(b"# \xff\n")
    with pytest.raises(ReportError, match="is not Python"):
        port_script(str(tmp_path / "bad.py"))
    for nested in ("[" * 50_000, "x" + ".a" * 1000, "lambda:" * 3000 + "x", "\0"):
        (tmp_path / "bad.py").write_text(nested)
        with pytest.raises(ReportError, match=r"bad\.py` is not Python: [^\n]+$"):
            port_script(str(tmp_path / "bad.py"))
    with pytest.raises(SystemExit):
        port(os.fspath(tmp_path / "none.py"))
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(MissingPackageError, match=r"hf-compat\[port\]"):
        importlib.reload(hf_compat.tools.port)
