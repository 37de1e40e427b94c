"""The pages for users: what they show runs, and they can be built as a site."""

import builtins
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

import hf_compat
from hf_compat import cli, errors
from tests.support import performance_page
from tests.support.launchers import slurm_job
from tests.support.paths import ROOT
from tests.support.processes import finish, start

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
CODE = r"<!-- first\n(.*?)\n-->|```python\n(.*?)```"
"""What a page needs ahead of a block, which readers do not see, or a block of Python."""
NOTE = r"<!-- (?P<word>[a-z ]+?)(?:: (?P<rest>[^\n]*))? -->\n *"
BLOCK = re.compile(rf"(?:{NOTE})?```(?P<language>\w*)\n(?P<content>.*?)```", re.DOTALL)
"""A block with the note above it: ``run by`` a test of its own, or ``shown`` only and why."""


LIBRARIES = {"ecosystem": ("trl", "sentence_transformers", "setfit"), "unmodified_scripts": ("trl",)}
"""Pages that call ``install()``, which a process does that has imported little before, with the libraries they need."""
OF_OTHER_TESTS = {
    "command": "tests/test_docs.py",
    "launcher": "tests/distributed/test_restarts.py",
    "layers": "tests/test_architecture_docs.py",
    "runs": "tests/test_docs.py",
}
"""Notes by which a test finds its block."""


def blocks_of(page):
    """Return the blocks that a test here runs, and what is ahead of them: those without a note."""
    text = BLOCK.sub(lambda block: "" if block["word"] else block[0], page.read_text(encoding="utf-8"))
    return ["".join(found) for found in re.findall(CODE, text, re.DOTALL)]


def is_run_here(page, block):
    """Return whether a test here runs a block, or compares each of its lines with the command that it names."""
    if block["language"] == "bash":
        lines = block["content"].replace("\\\n", " ").splitlines()
        return all(line.startswith(("hf-compat ", "pip install ")) for line in lines)
    return (block["language"] == "python" and page in PAGES[1:]) or (block["language"], page.stem) == (
        "pycon",
        "errors",
    )


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_block_is_run_or_says_why_not(page):
    """A block that no test here runs has a note above it: the test that does, or why none does."""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        word, rest = block["word"], block["rest"] or ""
        if word in OF_OTHER_TESTS:
            assert word in (ROOT / OF_OTHER_TESTS[word]).read_text(encoding="utf-8")
        else:
            assert word in ("run by", "shown") or is_run_here(page, block), block["content"]
        for path in re.findall(r"tests/[\w/]+\.py", rest):
            assert (ROOT / path).is_file()


def pages_to_run():
    """Yield each page that has blocks of Python and does not need a process of its own."""
    for page in PAGES[1:]:
        if blocks_of(page) and page.stem not in LIBRARIES:
            yield pytest.param(page, id=page.stem)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
@pytest.mark.filterwarnings(r"ignore:`?isinstance\(treespec, LeafSpec\):FutureWarning")  # Lightning's
@pytest.mark.parametrize("page", list(pages_to_run()))
def test_blocks_of_python_run(page, tmp_path, monkeypatch):
    """The blocks of a page run in their order, as one script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hf_compat, "DEFAULT_PROGRESS_CALLBACK", hf_compat.DEFAULT_PROGRESS_CALLBACK)
    names = {"__name__": "__page__"}
    for block in blocks_of(page):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("name", list(LIBRARIES))
def test_blocks_with_libraries_run(name, tmp_path):
    """The blocks of a page run in their order, as one script, and the libraries train on hf_compat's Trainer."""
    missing = [library for library in LIBRARIES[name] if importlib.util.find_spec(library) is None]
    if missing:
        pytest.skip(f'{", ".join(missing)} missing: pip install "hf-compat[ecosystem]"')
    (page,) = (page for page in PAGES if page.stem == name)
    ours = "assert hf_compat.Trainer in SFTTrainer.__mro__"
    (tmp_path / "page.py").write_text("\n".join([*blocks_of(page), ours]), encoding="utf-8")
    (ended,) = finish([start([sys.executable, "page.py"], tmp_path)])
    assert ended.code == 0, ended.output


def test_errors_are_raised_as_shown(tmp_path, monkeypatch):
    """Each statement of the page of errors raises the error below it, and each error class has a row."""
    monkeypatch.chdir(tmp_path)
    (page,) = (page for page in PAGES if page.stem == "errors")
    text = page.read_text(encoding="utf-8")
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    kinds = {kind.__name__ for kind in classes if kind.__name__[0].isupper()} - {"HFCompatError", "HFCompatWarning"}
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
    assert set(rows) == kinds
    for name, parents in rows.items():
        for parent in re.findall(r"`(\w+)`", parents):
            assert issubclass(getattr(errors, name), getattr(builtins, parent))
    names = {"__name__": "__page__"}
    exec(compile("".join(blocks_of(page)), page.name, "exec"), names)
    shown = re.findall(r"^>>> (.*)\n((?:(?!>>>|```).*\n)*)", text, re.MULTILINE)
    assert len(shown) > 15
    for statement, message in shown:
        with pytest.raises(errors.HFCompatError) as raised:
            eval(statement, names)
        said = f"hf_compat.errors.{raised.type.__name__}: {raised.value}"
        assert said.split() == message.split()


@pytest.mark.skipif(sys.platform != "linux", reason="runs a script for bash")
def test_the_slurm_job_trains_on_all_tasks(tmp_path):
    """The batch script of the page starts its `train.py` as two tasks, which train together."""
    text = next(page for page in PAGES if page.stem == "slurm").read_text(encoding="utf-8")
    train, batch = (re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)[0] for language in ("python", "bash"))
    for name, content in {"train.py": train, "train.sbatch": batch}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (ended,) = finish([start(["bash", "train.sbatch"], tmp_path, **slurm_job(tmp_path / "bin"))])
    assert ended.code == 0, ended.output
    assert ended.output.count("finished at update step 20 on 2 processes") == 1
    assert (tmp_path / "out" / "checkpoint-20").is_dir()


def test_extras_that_pages_install_exist():
    """Each `pip install` of a document names extras of the package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for page in DOCUMENTS:
        for named in re.findall(r"(?:hf-compat|\.)\[([a-z,]+)\]\"", page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= extras.keys()


def commands():
    """Yield each command of ours that stands in a block for a shell."""
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["hf-compat"]:
                    yield pytest.param(words[1:], id=f"{page.stem}: {' '.join(words)}")


@pytest.mark.parametrize("words", list(commands()))
def test_commands_are_known(words, capsys):
    """A command that a page shows is there, and so are its options; those behind a script are the script's."""
    with pytest.raises(SystemExit) as ended:
        cli.main([words[0], "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    own = itertools.takewhile(lambda word: not word.endswith(".py"), words)
    assert [word for word in own if word.startswith("--") and word not in told] == []


def test_figures_of_performance_are_those_of_the_results():
    """The page of performance and the landing page have the figures of the last benchmarks."""
    made = {performance_page.PAGE: performance_page.page(), performance_page.INDEX: performance_page.index()}
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m tests.support.performance_page"


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason='mkdocs is missing: pip install "hf-compat[docs]"'
)
def test_the_site_is_built(tmp_path):
    """Every page is in the menu, every link leads somewhere, every object of the reference is found.

    With the repository's address, as a workflow has it, each page leads there; docstrings are in what is rendered.
    """
    home = "https://example.org/owner/project"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"SITE_REPOSITORY": home, "SITE_EDIT": "edit/main/docs/"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    menu = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    sources = {page.stem: f"docs/{page.name}" for page in PAGES[1:]}
    sources |= {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
    assert sorted(menu) == sorted(f"{name}.md" for name in sources)
    for name, source in sources.items():
        text = (tmp_path / "site" / (name if name != "index" else "") / "index.html").read_text(encoding="utf-8")
        assert f'href="{home}/edit/main/{source}"' in text
        assert not re.search(r":(class|data|func|meth|mod|ref):|<p>::", text), name
    for name, target in {"examples": "examples/lora.py", "contributing": "tests/README.md"}.items():
        assert f'href="{home}/blob/main/{target}"' in (tmp_path / "site" / name / "index.html").read_text(
            encoding="utf-8"
        )


def test_examples_end_as_their_table_says():
    """The last line of each output of the page of examples is that of the table's row."""
    text = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"`hf-compat run (examples/\w+\.py)`.*?\n\n?    ([^\n]+)\n    ```\n", text, re.DOTALL))
    rows = dict(re.findall(r"^\| `(examples/\w+\.py)` \| .* \| (.*) \|$", text, re.MULTILINE))
    assert len(shown) == 6
    assert shown.items() <= rows.items()
