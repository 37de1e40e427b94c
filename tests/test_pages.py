"""The pages for users: what they show runs, and they can be built as a site."""

import importlib.util
import itertools
import re
import shlex
import subprocess
import sys

import pytest

import hf_compat
from hf_compat import cli
from tests.support.paths import ROOT
from tests.support.processes import finish, start

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = r"<!-- first\n(.*?)\n-->|```python\n(.*?)```"
"""What a page needs ahead of a block, which readers do not see, or a block of Python."""


LIBRARIES = {"ecosystem": ("trl", "sentence_transformers", "setfit"), "unmodified_scripts": ("trl",)}
"""Pages that call ``install()``, which a process does that has imported little before, with the libraries they need."""


def blocks_of(page):
    return ["".join(found) for found in re.findall(CODE, page.read_text(encoding="utf-8"), re.DOTALL)]


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


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason='mkdocs is missing: pip install "hf-compat[docs]"'
)
def test_the_site_is_built(tmp_path):
    """Every page is in the menu, every link leads somewhere, every object of the reference is found."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    menu = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(menu) == sorted(page.name for page in PAGES[1:])
    for page in PAGES[1:]:
        folder = tmp_path / "site" / (page.stem if page.stem != "index" else "")
        assert (folder / "index.html").is_file()
