"""``docs/lightning_strategies.md``, from the code's tables: ``python -m tests.support.lightning_strategies_page``."""

from pathlib import Path

from hf_compat.engine.keywords import FABRIC_VARIABLES
from hf_compat.engine.strategies.choice import OPTIONS
from hf_compat.engine.strategy_table import CLASSES, ENVIRONMENTS, NAMES

PAGE = Path(__file__).parents[2] / "docs" / "lightning_strategies.md"
INTRODUCTION = """\
# Lightning's strategies and clusters

`Trainer(lightning={"strategy": ..., "plugins": [...]})` takes names and instances of strategies, and cluster
environments. Each of Lightning's either works or is refused before training, with the reason and what to use instead.
By default the training arguments choose the strategy: `deepspeed`, `fsdp`, `parallelism_config`; otherwise DDP or, in
one process, `DataParallel` or a single device.

This page is generated from `hf_compat/engine/strategy_table.py` and `hf_compat/engine/strategies/choice.py`.
"""
OF_INSTANCES = """\
A name registered in Lightning's `StrategyRegistry` stands for an instance. A strategy named twice, here and by a field
of the training arguments, is refused.

A subclass of yours works if it overrides nothing but the constructor; it may define more, and libraries may mark it.
hf_compat uses its own strategy classes, so other overrides would never be called and are refused by name.
"""
OF_OPTIONS = """\
What each argument of a strategy's constructor becomes. A refused one is an error off its default.
"""
OF_ENVIRONMENTS = """\
Rank and world size are read from the launcher's environment variables as soon as the training arguments need them:
`args.process_index`, `args.device`, `args.main_process_first()`. You need not pass an environment then; one that you do
pass must agree with the variables. An environment that provides more information, or one of your own, must be
registered first:

<!-- first
from hf_compat.distributed.launch import Launch
from hf_compat.engine.process_layout import LaunchedEnvironment


class MyCluster(LaunchedEnvironment):
    def __init__(self):
        super().__init__(Launch())
-->
```python
from hf_compat import TrainingArguments
from hf_compat.lightning import use_cluster_environment

use_cluster_environment(MyCluster())  # before there are training arguments
args = TrainingArguments("out")
```

If it is only passed to the Trainer, it takes effect from then on; until then the arguments assume a single process.
The ranks on a node must be consecutive, which is the default of launchers.
"""
OF_VARIABLES = """\
`fabric run --strategy ddp --devices 2 script.py` starts the script with torchrun, and sets variables that
`lightning.Trainer` does not read. hf_compat's Trainer treats them as the keywords below, and refuses the same values,
with the name and value of the variable. If the script sets such a keyword to a different value, that is refused too.
"""


def _rows(table, works):
    chosen = sorted(
        ((name, one) for name, one in table.items() if one.works is works), key=lambda item: item[0].lower()
    )
    return [f"| `{name}` | {one.note} | {one.refuses if works else one.instead} |" for name, one in chosen]


def _section(title, what, table, text=""):
    lines = [f"\n## {title}\n"]
    if text:
        lines += [text]
    lines += [f"| {what} | what it does here | refused with |", "|---|---|---|", *_rows(table, works=True)]
    if refused := _rows(table, works=False):
        lines += [f"\n| refused {what} | reason | instead |", "|---|---|---|", *refused]
    return lines


def _options():
    lines = [f"\n## Options\n\n{OF_OPTIONS.rstrip()}"]
    for name, options in OPTIONS.items():
        lines += [f"\n### `{name}`\n", "| option | what it becomes |", "|---|---|"]
        lines += [
            f"| `{option}` | {one.note if one.works else f'Refused: {one.note}. Use {one.instead}.'} |"
            for option, one in sorted(options.items())
        ]
    return lines


def page() -> str:
    """Return the text of the page."""
    variables = [f"| `{variable}` | `{keyword}` |" for variable, keyword in FABRIC_VARIABLES.items()]
    return "\n".join(
        [
            INTRODUCTION.rstrip(),
            *_section("Names", "name", NAMES),
            *_section("Instances", "class", CLASSES, OF_INSTANCES),
            *_options(),
            *_section("Cluster environments", "environment", ENVIRONMENTS, OF_ENVIRONMENTS),
            f"\n## `fabric run`\n\n{OF_VARIABLES}",
            "| variable | keyword |\n|---|---|",
            *variables,
            "\n`LT_ACCELERATOR=cpu` is `use_cpu=True` for the training arguments.\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
