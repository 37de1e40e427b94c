"""``docs/lightning_strategies.md``, from the code's tables: ``python -m tests.support.lightning_strategies_page``."""

from pathlib import Path

from hf_compat.engine.fabric_variables import FABRIC_VARIABLES
from hf_compat.engine.strategy_table import CLASSES, ENVIRONMENTS, NAMES

PAGE = Path(__file__).parents[2] / "docs" / "lightning_strategies.md"
INTRODUCTION = """\
# Lightning's strategies and clusters

`Trainer(lightning={"strategy": ..., "plugins": [...]})` takes names and instances of strategies, and cluster
environments. Each that Lightning has works, or is refused before training, with the reason and what to use instead.
Without one a run is under the strategy that the training arguments say: `deepspeed`, `fsdp`, `parallelism_config`, else
DDP, or one device in one process.

This page is generated from `hf_compat/engine/strategy_table.py`.
"""
OF_INSTANCES = """\
Plugins that are handed to a strategy (`checkpoint_io`, `precision_plugin`, `cluster_environment`) are those of
`lightning={"plugins": [...]}`.
A name that you have registered in Lightning's `StrategyRegistry` stands for an instance.

A subclass of yours works if it defines a constructor and nothing else. A run's strategy is one of hf_compat's, which
would not call other methods of yours: a subclass with others is refused, and they are named.
"""
OF_ENVIRONMENTS = """\
Which process this is, of how many, is read from the variables of the launcher, as soon as training arguments are asked:
`args.process_index`, `args.device`, `args.main_process_first()`. Passing an environment is not needed then; one that is
passed has to agree with the variables. An environment that knows more than they do, or one of your own, comes first:

<!-- first
from hf_compat.distributed.launch import Launch
from hf_compat.engine.environments import LaunchedEnvironment


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

Passed to the Trainer alone it works from there on; until then the arguments take the process for the only one.
Processes of a node have to have consecutive ranks, as launchers give them by default.
"""
OF_VARIABLES = """\
`fabric run --strategy ddp --devices 2 script.py` starts the script with torchrun, and sets variables that
`lightning.Trainer` does not read. A Trainer takes them for the keywords that they stand for, and refuses what it would
refuse of these, with name and value of the variable. A keyword of the script's that says something else is refused too.
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


def page() -> str:
    """Return the text of the page."""
    variables = [f"| `{variable}` | `{keyword}` |" for variable, keyword in FABRIC_VARIABLES.items()]
    return "\n".join(
        [
            INTRODUCTION.rstrip(),
            *_section("Names", "name", NAMES),
            *_section("Instances", "class", CLASSES, OF_INSTANCES),
            *_section("Cluster environments", "environment", ENVIRONMENTS, OF_ENVIRONMENTS),
            f"\n## `fabric run`\n\n{OF_VARIABLES}",
            "| variable | keyword |\n|---|---|",
            *variables,
            "\n`LT_ACCELERATOR=cpu` is `use_cpu=True` for the training arguments.\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
