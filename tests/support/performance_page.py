"""``docs/performance.md`` and the numbers of ``docs/index.md``, from the results of the benchmarks.

``python -m tests.support.performance_page`` writes both.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
INDEX = ROOT / "docs" / "index.md"
RESULTS = ROOT / "tests" / "benchmarks" / "RESULTS.md"

BEGIN = """\
# Performance and memory

What the Trainer costs beside transformers', a plain `lightning.Trainer` and a loop written by hand. In all tables, a
ratio below 1 means that hf_compat needs less. This page is generated from `tests/benchmarks/RESULTS.md`, which also has
the CPU times and how each row was measured. To measure on your machine, in a checkout:

<!-- shown: takes the better part of an hour; CI runs it at night -->
```bash
python -m tests.benchmarks
```

{how}
No row was measured on a GPU; `python -m tests.gpu.acceptance speed` measures one.

For your own script, [`hf-compat verify`](verify.md) prints time and peak memory under both Trainers.

## Update steps

The tiny model shows what the Trainer adds, since it computes next to nothing. The larger a model, the less this
matters: see the last row. At every step accelerate searches the import path for a package, which takes longer with a
longer path; *without its search* it is told that there is none.

"""
SAVES = """
## Saves

*Stands still* is how long nothing is computed. hf_compat flushes a checkpoint to the disk, transformers does not; with
*flushed by all*, its files were flushed after it had written them. `save_async=True` is a switch of hf_compat;
transformers' column has an ordinary save there.

"""
RANKS = """
With two ranks:

"""
LOOPS = """
## Start, evaluation and prediction

"""
CALLS = """
## Calls

Calls of Python and C functions in an update step or an evaluated batch, which do not depend on the machine.

"""
MEMORY = """
## Memory

The most memory of a process over what it held before the work.
{about}

"""
END = """
Several processes: [what scale costs](scale.md) has the bytes sent and held by DDP, FSDP and ZeRO.
"""
NUMBERS = """\
- **{step[hf_compat]:.0f} µs**

    is an update step of a tiny model; transformers takes {step[transformers]:.0f} µs, a plain `lightning.Trainer`
    {step[Lightning]:.0f} µs, a loop by hand {step[by hand]:.0f} µs, all on a shared CPU.

    `python -m tests.benchmarks`, [performance](performance.md)

- **{save[hf_compat]:.0f} ms**

    training stands still for a checkpoint of 415 MB with `save_async=True`, {sync[hf_compat]:.0f} ms without,
    flushed to the disk; with transformers, which does not flush, {sync[transformers]:.0f} ms. On a shared CPU.

    `python -m tests.benchmarks`, [saves](performance.md#saves)

"""


def tables(text: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each section's table, by the section's title; a row is its cells by column."""
    found = {}
    for section in text.split("\n## ")[1:]:
        lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in re.findall(r"^\|.*\|$", section, re.M)]
        if lines:
            names, _, *rows = lines
            # Of two columns with one name the first counts.
            found[section.partition("\n")[0]] = [dict(reversed([*zip(names, row, strict=True)])) for row in rows]
    return found


def table(rows: list[dict[str, str]], *columns: str) -> str:
    """Return a table of ``rows``: what was measured, ``columns`` in the row's unit, if it has one, and the ratio."""
    ratios = [name for name in ("ratio", "to transformers") if name in rows[0]]
    titles = [name.partition(",")[0].removeprefix("transformers ") for name in columns]
    lines = [["what", *titles, *["ratio"] * len(ratios)], ["---", *["---:"] * len([*columns, *ratios])]]
    for row in rows:
        unit = " MB" if columns[0].endswith(", MB") else f" {row.get('unit', '')}".rstrip()
        values = [row[name] and row[name] + unit for name in columns]
        lines.append([row["what"], *values, *(row[name] for name in ratios)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def paragraph(pattern: str, text: str) -> str:
    """Return the part of ``text`` that matches ``pattern``, as lines of a page."""
    (found,) = re.findall(pattern, text, re.S)
    return textwrap.fill(" ".join(found.split()), 120)


def page() -> str:
    """Return the page."""
    text = RESULTS.read_text(encoding="utf-8")
    found = tables(text)
    wall, both = found["Wall time"], ("hf_compat", "transformers")
    steps = [row for row in wall if row["by hand"] and row["Lightning"]]
    saves = [row for row in wall if row["what"].startswith("save")]
    ranks = [row for row in saves if "two ranks" in row["what"]]
    rest = [row for row in wall if row not in (*steps, *saves) and row["hf_compat"]]
    all_four = (*both, "transformers without its search", "Lightning", "by hand")
    parts = (
        BEGIN.format(how="The figures are " + paragraph(r"medians of .*?\.\n", text)),
        table(steps, *all_four),
        SAVES,
        table([row for row in saves if row not in ranks], *both),
        RANKS,
        table(ranks, *both),
        LOOPS,
        table(rest, *both),
        CALLS,
        table(found["Calls"], *all_four),
        MEMORY.format(about=paragraph(r"A GPT-2 of .*?(?=\n\n)", text)),
        table(found["Memory"], "hf_compat, MB", "transformers, MB"),
        END,
    )
    return "".join(parts)


def index() -> str:
    """Return the landing page with the numbers of the results."""
    rows = {row["what"]: row for row in tables(RESULTS.read_text(encoding="utf-8"))["Wall time"]}
    named = {
        "step": "update step, tiny model",
        "save": "save of 415 MB, `save_async=True`: stands still",
        "sync": "save of 415 MB: stands still",
    }
    values = {
        name: {column: float(cell) for column, cell in rows[what].items() if re.fullmatch(r"[\d.]+", cell)}
        for name, what in named.items()
    }
    text = INDEX.read_text(encoding="utf-8")
    begin, end = text.index("- **", text.index("test_parity.py")), text.index("</div>")
    return text[:begin] + NUMBERS.format(**values) + text[end:]


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
