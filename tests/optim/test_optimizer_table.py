"""The page of optimizers: a row for each name of `optim`, which says what a run of today does."""

import importlib.util
import re
import subprocess
import sys
from importlib import metadata

import pytest

from hf_compat.arguments.enums import OptimizerNames
from tests.support.optimizer_table import CLASSES, PAGE, TO_THE_BIT, page, rows_of_page
from tests.support.paths import ROOT

ROWS = rows_of_page()
OF_PACKAGES = {"grokadamw": "grokadamw", "schedule_free": "schedulefree", "lomo": "lomo_optim", "stable": "optimi"}
OF_PACKAGES |= {"galore": "galore_torch", "apollo": "apollo_torch", "adamw_torch_": "torchao"}
OF_PACKAGES |= dict.fromkeys(("adamw_8bit", "adamw_bnb", "lion", "paged", "ademamix", "rmsprop_bnb"), "bitsandbytes")
"""How names of `optim` begin, and the package that they need."""
QUICK = {"schedule_free_sgd"}


def test_each_optimizer_has_a_row_that_says_something():
    """Names in upstream's order, classes in the script's; a run that ends has all cells, another its error."""
    every = [*(name.value for name in OptimizerNames), *CLASSES]
    assert every == list(ROWS)
    versions = re.search(r"with (torch .*?)\. Steps", PAGE.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(ROWS, versions[1])
    for row in ROWS.values():
        resumed, corrected, effects, evaluated = (cell.strip() for cell in row.split("|")[2:-1])
        assert re.search(rf"^{TO_THE_BIT}|^weights .* off|`\w+`|a crash|no end", resumed)
        if "-" in (corrected, effects, evaluated):
            assert (corrected, effects, evaluated) == ("-", "-", "-")
            assert "does not train" in resumed
        else:
            assert re.fullmatch(r"none|(`\w+`(, )?)+", effects)
            assert evaluated in ("others", "the trained")


def kind_of(row):
    """Return the row without its numbers, which differ between machines."""
    return re.sub(r"\d[\d.e+-]*(?= off)|(?<=loss )[\d.e+-]+", "#", row)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ROWS])
def test_a_row_is_what_runs_show(name):
    """Trained, resumed in a new process and compared again, by both libraries."""
    release = metadata.version("transformers")
    if f"transformers {release}," not in PAGE.read_text(encoding="utf-8"):
        pytest.skip(f"the page is of another transformers than {release}")
    begins = next((start for start in sorted(OF_PACKAGES, key=len, reverse=True) if name.startswith(start)), "torch")
    package = name.partition(".")[0] if "." in name else OF_PACKAGES.get(begins, "torch")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    code = f"from tests.support import optimizer_table as t; t.prepare(); print(t.cells({name!r}))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert kind_of(ran.stdout.strip().splitlines()[-1]) == kind_of(ROWS[name])
