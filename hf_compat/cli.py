"""The command ``hf-compat``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import hf_compat
from hf_compat.errors import HFCompatError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments``, those of the process by default, and return its exit status.

    The status is 0, or 1 if ``--verify`` found damage or ``explain`` a refused value. Wrong usage ends the process with
    2, as argparse has it.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except HFCompatError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf-compat", description="Tools for runs of the hf_compat Trainer.")
    parser.add_argument("--version", action="version", version=f"hf-compat {hf_compat.__version__}")
    commands = parser.add_subparsers(title="commands", required=True)
    checkpoints = commands.add_parser("checkpoints", help="list the checkpoints of a run", description=_CHECKPOINTS)
    checkpoints.add_argument("folder", metavar="DIR", help="the run's output folder, or one checkpoint in it")
    checkpoints.add_argument("--verify", action="store_true", help="read every file; exit with 1 if one is damaged")
    checkpoints.add_argument("--json", action="store_true", help="print a JSON list, sizes in bytes")
    checkpoints.set_defaults(run=_checkpoints)
    whole = commands.add_parser("consolidate", help="make sharded weights whole", description=_CONSOLIDATE)
    whole.add_argument("folder", metavar="DIR", help="a checkpoint with sharded weights")
    whole.add_argument("--output", metavar="DIR2", help="a new folder for the model; DIR itself by default")
    whole.set_defaults(run=_consolidate)
    explain = commands.add_parser("explain", help="say what becomes of training arguments", description=_EXPLAIN)
    explain.add_argument("--all", action="store_true", help="explain every field there is")
    shape = explain.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print a JSON list")
    shape.add_argument("--markdown", action="store_true", help="print a Markdown table")
    explain.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT.py ... | FILE", help=_EXPLAIN_WORDS)
    explain.set_defaults(run=_explain, usage_error=explain.error)
    return parser


_CHECKPOINTS = (
    "List checkpoints with their update step, epoch, metric (the best value so far of metric_for_best_model, else the "
    "last eval_loss), size, and whether they are complete. `best` is what the newest one names as the best of the run, "
    "`newest` is what resume_from_checkpoint=True goes on from."
)


_CONSOLIDATE = (
    "Write model.safetensors, for from_pretrained to read, from the weights that the processes of an FSDP run wrote "
    "together (pytorch_model_fsdp_0), one tensor at a time, without a GPU. Weights that are whole already stay as they "
    "are."
)


_EXPLAIN = (
    "Say what each training argument in use becomes in Lightning or in hf_compat, or why it is refused, which exits "
    "with 1. The script is not run: options that are no field of TrainingArguments are taken for its own."
)
_EXPLAIN_WORDS = "a script and its command line, or a .json, .yaml or .yml file of fields"


def _checkpoints(options: argparse.Namespace) -> int:
    from hf_compat.tools.checkpoints import as_json, as_table, describe_checkpoints

    found = describe_checkpoints(options.folder, verify=options.verify)
    if options.json:
        print(as_json(found))
    else:
        print(as_table(found) if found else f"There is no checkpoint in `{options.folder}`.")
    return int(options.verify and any(item.problems for item in found))


def _consolidate(options: argparse.Namespace) -> int:
    from hf_compat.tools.consolidate import consolidate, is_whole

    if options.output is None and is_whole(options.folder):
        print(f"The weights in `{options.folder}` are whole already.")
        return 0
    print(*consolidate(options.folder, options.output), sep="\n")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from hf_compat.tools.explain import as_json, as_markdown, as_table, explain_all, explain_words

    if options.all == bool(options.words):
        options.usage_error("give a script with its command line, or a file, or --all")
    explained = explain_all() if options.all else explain_words(options.words)
    show = as_json if options.json else as_markdown if options.markdown else as_table
    print(show(explained))
    return int(any(item.problems for item in explained))


if __name__ == "__main__":
    sys.exit(main())
