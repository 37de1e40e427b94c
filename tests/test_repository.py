"""The repository's workflows, forms and hooks run the commands that CI and the README name."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from hf_compat import __version__
from tests.support.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def stages():
    listed = subprocess.run([ROOT / ".ci" / "run", "--list"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def matrix_stages(job):
    matrix = job.get("strategy", {}).get("matrix", {})
    return [*matrix.get("stage", ()), *(row["stage"] for row in matrix.get("include", ()))]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_stages_of_ci_alone(path):
    """Each command of a workflow is a stage that `.ci/run` has, so that workflows and CI cannot drift apart."""
    known = stages()
    for job in read(path)["jobs"].values():
        assert set(matrix_stages(job)) <= set(known)
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if "run" in step:
                command, stage = step["run"].split(maxsplit=1)
                assert command == ".ci/run"
                assert stage in (*known, "${{ matrix.stage }}")


def test_every_stage_is_in_a_workflow():
    """What `.ci/run` can do is run by a workflow; the newer Python of one machine is the matrix of Pythons there."""
    run = set()
    for path in WORKFLOWS:
        for job in read(path)["jobs"].values():
            run |= {*matrix_stages(job), *(step["run"].split()[1] for step in job["steps"] if "run" in step)}
    assert set(stages()) - {"newer-python"} <= run


@pytest.mark.parametrize("words", [["tests", "nonsense"], ["nonsense"]], ids=" ".join)
def test_an_unknown_stage_is_refused(words):
    """`.ci/run` names a stage that it does not have, and those that it has, before it runs anything."""
    done = subprocess.run([ROOT / ".ci" / "run", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no stage nonsense; the stages are: quickstart tests" in done.stderr


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_forms_can_be_filled_in(path):
    """Each form has a name, a description and fields with labels."""
    form = read(path)
    assert form["name"]
    assert form["description"]
    for field in form["body"]:
        assert field["type"] == "markdown" or field["attributes"]["label"]


@pytest.mark.parametrize(("form", "wanted"), [("bug", "hf-compat env"), ("difference", "verify.json")])
def test_forms_ask_for_what_is_needed(form, wanted):
    """A bug asks for `hf-compat env` and a script, a port that differs for `verify.json`."""
    fields = read(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml")["body"]
    (found,) = (field for field in fields if field["attributes"].get("label") == wanted)
    assert found["validations"]["required"]
    assert any("script" in field["attributes"].get("label", "") for field in fields)


def test_hooks_are_the_commands_of_lint():
    """`.pre-commit-config.yaml` runs the lint, format and type commands of the README's test command."""
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert " && ".join(hook["entry"] for hook in hooks) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_citation_names_the_version():
    """CITATION.cff cites the version of the package."""
    assert read(ROOT / "CITATION.cff")["version"] == __version__


def test_the_changelog_has_the_version():
    """The changelog has a section of the version of the package, for which the release workflow takes a tag."""
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def metadata_of(**variables):
    """The package's metadata as a build in this checkout has it."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    command = [sys.executable, "-m", "hatchling", "metadata"]
    built = subprocess.run(command, cwd=ROOT, env=known | variables, capture_output=True, text=True, check=True)
    return json.loads(built.stdout)


def test_a_release_has_the_addresses_of_the_repository_it_is_built_in():
    """Source, issues, pages and changelog; no link of the README is relative, as the package index has no files."""
    pytest.importorskip("hatchling")
    metadata = metadata_of(GITHUB_SERVER_URL="https://github.com", GITHUB_REPOSITORY="Owner/project")
    home, tag = "https://github.com/Owner/project", f"v{__version__}"
    assert metadata["urls"] == {
        "Documentation": "https://owner.github.io/project/",
        "Source": home,
        "Issues": f"{home}/issues",
        "Changelog": f"{home}/blob/{tag}/CHANGELOG.md",
    }
    links = re.findall(r"\]\(([^)\s]+)\)", metadata["readme"]["text"])
    assert links
    assert all(link.startswith("https://") for link in links)
    pages = {link.removeprefix(f"{home}/blob/{tag}/") for link in links if link.startswith(f"{home}/blob/")}
    pictures = {link.removeprefix(f"{home}/raw/{tag}/") for link in links if link.startswith(f"{home}/raw/")}
    assert pictures == {"docs/images/verify.png"}
    assert all((ROOT / page).is_file() for page in pages | pictures)
    badges = {link for link in links if link.startswith(f"{home}/actions/workflows/")}
    workflows = {re.sub(r".*/workflows/|/badge\.svg", "", badge) for badge in badges}
    assert workflows == {"ci.yml", "docs.yml"} <= {path.name for path in WORKFLOWS}


def test_a_build_elsewhere_names_no_repository():
    """Without a workflow's variables there are no addresses; the README is as written, the version the package's."""
    pytest.importorskip("hatchling")
    metadata = metadata_of()
    assert metadata["version"] == __version__
    assert not metadata.get("urls")
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")


FINDINGS = sorted(path for path in (ROOT / "findings").glob("*.sh") if path.stem != "common")


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_a_finding_has_the_form_of_all(path):
    """Its head says what was seen, with what and when; its packages have one version, and none is hf_compat."""
    text = path.read_text(encoding="utf-8")
    head, _, program = text.partition('\n. "$(dirname "$0")/common.sh"\n')
    assert [label for label in ("Versions:", "Behaviour:", "Seen:", "Date:") if f"\n# {label}" not in head] == []
    (packages,) = re.findall(r"^install (.*)$", program, re.MULTILINE)
    assert all(re.fullmatch(r"[a-z0-9-]+==[\d.]+", package) for package in packages.split())
    assert all(package.replace("==", " ") in head.replace("\n#", "").replace("  ", "") for package in packages.split())
    assert re.search("assert|SystemExit", program)
    assert "hf_compat" not in program


def test_the_page_lists_every_finding():
    """Each script has one row of the page, and each row a script."""
    rows = re.findall(
        r"^\| .* \| `(\w+)` \|$", (ROOT / "docs" / "surprises.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(rows) == [path.stem for path in FINDINGS]
