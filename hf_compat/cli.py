"""The command ``hf-compat``."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import hf_compat
from hf_compat.errors import HFCompatError
from hf_compat.masking import masked_text, secrets_in

_LONGEST_LINE = 1000
"""Characters of a line that are shown of an error."""
_UNREAD = 141
"""Exit status if the reader of the output has closed it: a shell's for SIGPIPE, which Python ignores."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments``, by default ``sys.argv[1:]``, and return its exit status.

    Without any it prints a page of what the command can do. The status is 0, or 1 if ``--verify`` found damage,
    ``explain`` a value that is not supported or a misspelt field, or ``verify`` a difference. Wrong usage exits with 2,
    as in argparse, and output whose reader has closed it, as behind ``| head``, with 141.
    """
    try:
        try:
            result = _result_of(sys.argv[1:] if arguments is None else arguments)
        finally:
            print(end="", flush=True)  # at the exit it would be too late to catch that it is closed
    except BrokenPipeError:
        _discard_output()
        return _UNREAD
    # The errors of a program that is run are its own, not the command's.
    return int(result() or 0) if callable(result) else result


def _discard_output() -> None:
    """Discard what the standard streams hold for a closed reader: the interpreter writes it as it exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _result_of(words: Sequence[str]) -> int | Callable[[], int | None]:
    """Return the exit status of the command ``words``, or the program that it is to run."""
    if not words:
        print(_OVERVIEW)
        return 0
    parser = _parser()
    options, unknown = parser.parse_known_args(words)
    if unknown:
        told = f"unrecognized arguments: {' '.join(unknown)}{getattr(options, 'remedy', '')}"
        options.parser.error(told + _nearest(unknown[0], options.parser.options()))
    try:
        result: int | Callable[[], int | None] = options.run(options)
    except HFCompatError as error:
        told = str(error)
    except OSError as error:
        if error.filename is None:  # not what the file system says of a path, so perhaps a fault of hf_compat
            raise
        told = f"{error.strerror}: `{error.filename}`"
    else:
        return result
    parser.exit(2, f"{parser.prog}: {_printable(masked_text(told, secrets_in(words, os.environ)))}\n")


def _printable(text: str) -> str:
    """Return an error's text without control characters and in lines of some length: it may repeat a file's content."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)
    lines = shown.split("\n")
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in lines)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors suggest what was meant, and repeat no secret of the command line."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and ``message``, and exit with 2."""
        if wrong := _WRONG_CHOICE.search(message):
            message += _nearest(wrong[1], [word.strip("' ") for word in wrong[2].split(",")])
        super().error(_printable(masked_text(message)))

    def options(self) -> Iterable[str]:
        """Yield its options as they are written."""
        for action in self._actions:
            yield from action.option_strings


_WRONG_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
"""argparse's words: what was written, and what may be."""


def _nearest(wrong: str, known: Iterable[str]) -> str:
    """Return a question that suggests the one of ``known`` that ``wrong`` is close to; empty without one."""
    if wrong.endswith(".py") and "run" in known:
        return f". Did you mean `hf-compat run {wrong}`?"
    near = difflib.get_close_matches(wrong.partition("=")[0], list(known), n=1)
    return f". Did you mean `{near[0]}`?" if near else ""


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(prog="hf-compat", description="Tools for runs of the hf_compat Trainer.")
    parser.add_argument("--version", action="version", version=f"hf-compat {hf_compat.__version__}")
    commands = parser.add_subparsers(title="commands", required=True)
    checkpoints = commands.add_parser("checkpoints", help="list the checkpoints of a run", description=_CHECKPOINTS)
    checkpoints.add_argument("folder", metavar="DIR", help="the output folder of a run, or one checkpoint in it")
    told = "compare every file with what was saved; exit with 1 if one differs"
    checkpoints.add_argument("--verify", action="store_true", help=told)
    checkpoints.add_argument("--json", action="store_true", help="print JSON, with sizes in bytes")
    checkpoints.set_defaults(run=_checkpoints)
    consolidate = commands.add_parser("consolidate", help="consolidate sharded weights", description=_CONSOLIDATE)
    consolidate.add_argument("folder", metavar="DIR", help="a checkpoint with sharded weights")
    consolidate.add_argument("--output", metavar="DIR2", help="a new folder for the model; default: DIR")
    consolidate.set_defaults(run=_consolidate)
    _add_convert(commands)
    _add_plot(commands)
    _add_verify(commands)
    env = commands.add_parser("env", help="describe this environment for a bug report", description=_ENV)
    env.add_argument("--json", action="store_true", help="print JSON")
    env.set_defaults(run=_env)
    explain = commands.add_parser("explain", help="explain the effect of training arguments", description=_EXPLAIN)
    explain.add_argument("--all", action="store_true", help="explain every field")
    shape = explain.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print JSON")
    shape.add_argument("--markdown", action="store_true", help="print a Markdown table")
    explain.add_argument("arguments", nargs=argparse.REMAINDER, metavar="SCRIPT.py ... | FILE", help=_EXPLAIN_ARGUMENTS)
    explain.set_defaults(run=_explain, remedy=_EXPLAIN_ORDER)
    _add_run(commands)
    _add_port(commands)
    words = commands.add_parser("completion", help="print the completion for a shell", description=_COMPLETION)
    words.add_argument("shell", choices=("bash", "zsh"), help="the shell that reads it")
    words.set_defaults(run=_completion)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def _add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    convert = commands.add_parser("convert", help="convert from and to Lightning's checkpoints", description=_CONVERT)
    convert.add_argument("source", metavar="SOURCE", help="a checkpoint of Lightning, or a Hugging Face folder")
    convert.add_argument("target", metavar="TARGET", help="a new folder, or a new file; nothing is overwritten")
    convert.add_argument("--weights-only", action="store_true", help="convert the model without the training state")
    convert.add_argument("--model", "--config", metavar="PATH", help="the model's folder, or its config.json")
    convert.add_argument("--adapter", metavar="PATH", help="the adapters' folder, or its adapter_config.json")
    convert.add_argument("--prefix", help="what weight names start with in the LightningModule, such as model.")
    convert.add_argument("--architecture", metavar="CLASS", help="the model's class in transformers")
    convert.add_argument("--groups", choices=("decay", "one", "keep"), help=_CONVERT_GROUPS)
    convert.add_argument("--parameters", metavar="FILE", help="a JSON list of parameter names in the optimizer's order")
    convert.add_argument("--batch-size", type=int, metavar="N", help="samples per device in a batch of the run")
    numbers = ("LOGS", "EVALUATIONS", "SAVES")
    convert.add_argument("--steps-between", nargs=3, type=int, metavar=numbers, help=_CONVERT_STEPS)
    convert.add_argument("--max-shard-size", metavar="SIZE", help="maximum size of a weight file, such as 5GB")
    convert.set_defaults(run=_convert)


def _add_plot(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plot = commands.add_parser("plot", help="draw the curves of runs", description=_PLOT)
    plot.add_argument("places", nargs="+", metavar="DIR", help="a run's folder, a checkpoint, or a trainer_state.json")
    plot.add_argument("-o", "--output", default="curves.png", metavar="FILE", help=_PLOT_OUTPUT)
    plot.add_argument("--smooth", type=float, metavar="WEIGHT", help=_PLOT_SMOOTH)
    plot.add_argument("--force", action="store_true", help="overwrite FILE even if it was not written by hf-compat")
    plot.set_defaults(run=_plot)


def _add_port(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    port = commands.add_parser("port", help="change a script's imports to hf_compat's", description=_PORT)
    port.add_argument("--write", action="store_true", help="rewrite the script in place, instead of printing a diff")
    port.add_argument("script", metavar="SCRIPT.py", help="a script written for transformers' Trainer")
    port.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help=_PORT_WORDS)
    port.set_defaults(run=_port)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="run an unmodified script with hf_compat's Trainer", description=_RUN)
    kind = run.add_mutually_exclusive_group()
    kind.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    kind.add_argument("--cli", action="store_true", help="PROGRAM is a command that a package installs, such as trl")
    run.add_argument("--dry", action="store_true", help=_RUN_DRY)
    run.add_argument("program", metavar="PROGRAM", help="a script written for transformers' Trainer")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")
    run.set_defaults(run=_run)


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = commands.add_parser("verify", help="compare a script under both Trainers", description=_VERIFY)
    _add_verify_options(verify)
    verify.add_argument("script", metavar="SCRIPT.py", help="a script written for transformers' Trainer")
    verify.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help=_VERIFY_WORDS)
    verify.set_defaults(run=_verify)


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    options = parser.add_argument_group("how to compare")
    options.add_argument("--steps", type=int, default=argparse.SUPPRESS, metavar="N", help=_VERIFY_STEPS)
    options.add_argument("--processes", type=int, default=argparse.SUPPRESS, metavar="P", help="default: 1")
    options.add_argument("--noise", action="store_true", default=argparse.SUPPRESS, help=_VERIFY_NOISE)
    options.add_argument("--tolerance", type=float, default=argparse.SUPPRESS, metavar="X", help=_VERIFY_TOLERANCE)
    options.add_argument("--output", type=Path, default=argparse.SUPPRESS, metavar="DIR", help=_VERIFY_OUTPUT)
    options.add_argument("--no-copy", dest="copies", action="store_false", default=argparse.SUPPRESS, help=_VERIFY_COPY)
    told = "overwrite files not written by hf-compat"
    options.add_argument("--force", action="store_true", default=argparse.SUPPRESS, help=told)


_OVERVIEW = """\
hf_compat: scripts for the Hugging Face Trainer, on a PyTorch Lightning Trainer.

Try a script
  hf-compat run train.py --output_dir out      run it unchanged, with hf_compat's Trainer
  hf-compat verify train.py --output_dir out   run it with both Trainers; a picture of every difference

Switch a script
  hf-compat port train.py                      print the changed imports as a diff, and what will not work
  hf-compat explain train.py --bf16 true       what each training argument does

Look at a run
  hf-compat plot out                           draw its curves; several runs are overlaid
  hf-compat checkpoints out                    list its checkpoints; --verify compares every file with what was saved

Take a checkpoint elsewhere
  hf-compat convert last.ckpt new-folder       convert a Lightning checkpoint to a Hugging Face folder, or back
  hf-compat consolidate out/checkpoint-9       make model.safetensors from sharded weights

Report a bug, set up a shell
  hf-compat env                                versions, devices and launcher variables, without secrets
  hf-compat completion bash                    a script for ~/.bashrc that completes commands and arguments

In a script, change one import: from hf_compat import Trainer, TrainingArguments
`hf-compat COMMAND --help` lists a command's options."""

_CHECKPOINTS = (
    "List checkpoints with update step, epoch, metric (the best value so far of metric_for_best_model, or the last "
    "eval_loss), size, and whether they are complete. `best` is the best checkpoint of the run, `newest` the one that "
    "resume_from_checkpoint=True resumes from."
)
_CONSOLIDATE = (
    "Consolidate the sharded weights of an FSDP checkpoint (pytorch_model_fsdp_0) into model.safetensors for "
    "from_pretrained, one tensor at a time, without a GPU. Full weights are not changed."
)
_COMPLETION = (
    "Print a script that completes commands, options, files and, after the name of a script, fields of "
    "TrainingArguments. `source <(hf-compat completion bash)` in ~/.bashrc, or with zsh in ~/.zshrc, reads it."
)
_CONVERT = (
    "Convert the checkpoint of a Lightning run, a .ckpt file or a folder of FSDP or ModelParallelStrategy, into a "
    "Hugging Face folder that from_pretrained reads and a Trainer resumes from; or such a folder into a .ckpt file. "
    "Anything that cannot be converted is listed, one line each. No code from a file is executed."
)
_CONVERT_GROUPS = (
    "the optimizer's groups: decay (with and without weight decay, as in a Trainer; default for a folder), one, or "
    "keep (unchanged; default for a file)"
)
_CONVERT_STEPS = "update steps between logs, evaluations and saves of the Trainer that resumes"
_PORT = (
    "Print the import changes that make a script run on hf_compat, as a diff for `patch -p1`. Comments and layout are "
    "kept. On stderr: what still comes from transformers, what will not work and why, and the effect of its training "
    "arguments. The exit status is 1 if anything will not work."
)
_PORT_WORDS = "the script's own arguments, to explain them too; --write may also be among them"
_ENV = (
    "Print versions, devices and launcher variables, for a bug report. Variables that may be secrets are left out; "
    "read the lines before you publish them."
)
_EXPLAIN = (
    "Explain the effect of each given training argument in Lightning or in hf_compat; exit with 1 if a value is "
    "invalid or not supported, or an option nearly has the name of a field. The script is not run: other options that "
    "are not fields of TrainingArguments are treated as the script's own."
)
_EXPLAIN_ARGUMENTS = "a script and its arguments, or a .json, .yaml or .yml file of fields"
_EXPLAIN_ORDER = "; pass the script first, then its options"
_PLOT = (
    "Draw loss, evaluation metrics, learning rate and gradient norm from the logs in trainer_state.json, of one run, "
    "or of several overlaid, including runs of transformers' own Trainer. Marks the best step and, as far as it can "
    "be inferred from the logs, where a run was resumed."
)
_PLOT_OUTPUT = "a .png, .svg or .html file; .html is a self-contained page; default: curves.png"
_PLOT_SMOOTH = "weight of the past in smoothed curves, from 0 to below 1; default: more for longer curves"
_VERIFY = (
    "Run a script in fresh processes, with transformers' Trainer and with hf_compat's, and compare losses, gradient "
    "norms, learning rates, metrics, events, weights, files, time and memory. Writes verify.json, verify.png and "
    "verify.html. The exit status is 0 if nothing differs by more than the tolerance, 1 if something does, 2 if the "
    "script fails. Your folders are not changed: each run works in a copy of the working directory, and its "
    "output_dir is redirected."
)
_VERIFY_WORDS = "the script's own arguments; options of verify may also follow them, unless they begin with --"
_VERIFY_STEPS = "stop each `train` call after N update steps; the schedule is unchanged; default: 20"
_VERIFY_NOISE = "run transformers' Trainer twice, and report how much these two runs differ"
_VERIFY_TOLERANCE = "largest relative difference that counts as equal; default: by precision"
_VERIFY_OUTPUT = "folder of the three files, made if it is not there; default: the working directory"
_VERIFY_COPY = "run in the working directory itself, without writing there"
_RUN = (
    "Run a program written for transformers' Trainer unchanged: hf_compat's classes replace those of transformers, in "
    "the program and in the Python processes that it starts. HF_COMPAT_INSTALL=0 leaves those processes alone."
)
_RUN_DRY = "run nothing: print what would be replaced, what will not work, and the effect of each training argument"


def _checkpoints(options: argparse.Namespace) -> int:
    from hf_compat.tools.checkpoints import as_json, as_table, describe_checkpoints, verdict

    found = describe_checkpoints(options.folder, verify=options.verify)
    if options.json:
        print(as_json(found))
    else:
        print(as_table(found) if found else f"No checkpoints in `{options.folder}`.")
        if options.verify and (told := verdict(found)):
            print(told)
    return int(options.verify and any(item.problems for item in found))


def _completion(options: argparse.Namespace) -> int:
    from hf_compat.tools.completion import completion

    print(completion(_parser(), options.shell, hf_compat.__version__), end="")
    return 0


def _consolidate(options: argparse.Namespace) -> int:
    from hf_compat.tools.consolidate import consolidate, has_full_weights

    if options.output is None and has_full_weights(options.folder):
        print(f"`{options.folder}` already has full weights.")
        return 0
    print(*consolidate(options.folder, options.output), sep="\n")
    return 0


def _convert(options: argparse.Namespace) -> int:
    from hf_compat.tools.convert.conversion import convert
    from hf_compat.tools.convert.options import options_of

    made = convert(options.source, options.target, options_of(options))
    print(made.target)
    if made.notes:
        print("Worth knowing:", *(f"- {note}" for note in made.notes), sep="\n")
    return 0


def _env(options: argparse.Namespace) -> int:
    from hf_compat.tools.env import as_json, as_text, describe_environment

    described = describe_environment()
    print(as_json(described) if options.json else as_text(described))
    return 0


def _explain(options: argparse.Namespace) -> int:
    from hf_compat.tools.explain import as_json, as_markdown, as_table, explain_all, explain_command_line, is_misspelt

    if options.all == bool(options.arguments):
        options.parser.error("pass a script with its arguments, a file of fields, or --all")
    explained = explain_all() if options.all else explain_command_line(options.arguments)
    show = as_json if options.json else as_markdown if options.markdown else as_table
    if explained or show is not as_table:
        print(show(explained))
    if not explained:
        told = "No training arguments were given. `hf-compat port` explains those in the script's own code."
        print(told, file=sys.stderr)
    return int(any(item.problems or is_misspelt(item) for item in explained))


def _plot(options: argparse.Namespace) -> int:
    from hf_compat.tools.plot.command import plot

    print(*plot(options.places, options.output, weight=options.smooth, force=options.force), sep="\n")
    return 0


def _run(options: argparse.Namespace) -> int | Callable[[], None]:
    from hf_compat.tools.run_script import command, dry_run, install_here_and_in_children, module, run_program, script

    kind = module if options.module else command if options.cli else script
    if options.dry:
        told, has_problems = dry_run(kind(options.program, options.words))
        print(told)
        return int(has_problems)
    install_here_and_in_children()  # before a module is looked for, which imports its package
    program = kind(options.program, options.words)
    return lambda: run_program(program)


def _port(options: argparse.Namespace) -> int:
    from hf_compat.tools.port.command import port_script

    words = [word for word in options.words if word != "--write"]
    writes = options.write or len(words) < len(options.words)
    port = port_script(options.script, words)
    sys.stdout.write(port.diff)
    sys.stdout.flush()
    told = [*port.remarks]
    if not port.diff:
        told.insert(0, "Nothing to change: the script imports nothing Trainer-related from transformers.")
    elif writes:
        port.write()
        told.append(f"Wrote `{options.script}`.")
    print("\n".join(told), file=sys.stderr)
    return int(port.has_problems)


def _verify(options: argparse.Namespace) -> int:
    from hf_compat.tools.verify.command import VerifyOptions, split_words, verify

    words, behind = split_words(options.words)
    parser = _Parser(prog="hf-compat verify", allow_abbrev=False)
    _add_verify_options(parser)
    chosen = vars(parser.parse_args(behind, options))
    known = {item.name for item in fields(VerifyOptions)}
    told, is_equal = verify(options.script, words, VerifyOptions(**{n: v for n, v in chosen.items() if n in known}))
    print(told)
    return int(not is_equal)


if __name__ == "__main__":
    sys.exit(main())
