"""``docs/lightning_keywords.md``, from the table in the code: ``python -m tests.support.lightning_keywords_page``."""

from pathlib import Path

from hf_compat.engine.keyword_table import KEYWORDS

PAGE = Path(__file__).parents[2] / "docs" / "lightning_keywords.md"
INTRODUCTION = """\
# Lightning's keywords

`Trainer(lightning={...})` takes the keywords of `lightning.Trainer`. One that says what a field of `TrainingArguments`
says sets that field, in a copy of the arguments; beside a field that you set to something else it is refused before
training, and both are named. Under `deepspeed` such fields have to be set in the arguments.

One update step is one Lightning batch: where Lightning counts training batches, update steps are counted.

This page is generated from `hf_compat/engine/keyword_table.py`.

| keyword | what it does here | refused |
|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    return INTRODUCTION + "".join(f"| `{name}` | {one.note} | {one.refuses} |\n" for name, one in KEYWORDS.items())


if __name__ == "__main__":
    PAGE.write_text(page())
