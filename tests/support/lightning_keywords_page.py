"""``docs/lightning_keywords.md``, from the table in the code: ``python -m tests.support.lightning_keywords_page``."""

from pathlib import Path

from hf_compat.engine.keywords import KEYWORDS

PAGE = Path(__file__).parents[2] / "docs" / "lightning_keywords.md"
INTRODUCTION = """\
---
hide: [toc]
---

# Lightning's keywords

`Trainer(lightning={...})` takes the keywords of `lightning.Trainer`. A keyword that duplicates a field of
`TrainingArguments` sets that field in a copy of the arguments, and is refused before training if you set the field to a
different value; the error names both. With `deepspeed`, set such fields in the arguments instead.

One update step is one Lightning batch: where Lightning counts training batches, update steps are counted.

This page is generated from `hf_compat/engine/keywords.py`.

| keyword | what it does here | refused |
|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    return INTRODUCTION + "".join(f"| `{name}` | {one.note} | {one.refuses} |\n" for name, one in KEYWORDS.items())


if __name__ == "__main__":
    PAGE.write_text(page())
