"""Runs a program as Python itself would, with hf_compat's classes in the place of transformers'."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from hf_compat.errors import HFCompatError
from hf_compat.installing import install
from hf_compat.installing.children import is_asked_for, pass_on

_OURS = str(Path(__file__).parents[1]) + os.sep


class ProgramError(HFCompatError):
    """A program that is not there."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is run as ``__main__``."""

    compiled: Callable[[], CodeType]
    """Its code; called where errors in it are the program's own."""
    attributes: dict[str, Any]
    """What Python gives its module ``__main__``."""
    words: list[str]
    """Its ``sys.argv``."""
    folder: str
    """The first place where it looks for modules."""


def script(path: str, words: Sequence[str]) -> Program:
    """Return the program ``python path words…``.

    Raises:
        ProgramError: If there is no such file.
    """
    full = os.path.abspath(path)
    if not os.path.isfile(full):
        raise ProgramError(f"can't open file '{full}': no such script.")
    attributes = {"__file__": full, "__loader__": SourceFileLoader("__main__", full), "__cached__": None}
    folder = os.path.dirname(os.path.realpath(full))
    return Program(lambda: _compile(full), attributes, [path, *words], folder)


def module(name: str, words: Sequence[str]) -> Program:
    """Return the program ``python -m name words…``.

    Raises:
        ProgramError: If there is no such module, or none that can be run.
    """
    folder = os.getcwd()
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec = importlib.util.find_spec(name) if all(name.split(".")) else None
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise ProgramError(f"no module named '{name}' that can be run.")
    loader: Any = spec.loader
    attributes = {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return Program(lambda: loader.get_code(spec.name), attributes, [spec.origin, *words], folder)


def command(name: str, words: Sequence[str]) -> Program:
    """Return the program that is installed as the command ``name`` in this environment, such as ``trl``.

    Raises:
        ProgramError: If no package here installs such a command.
    """
    found = list(entry_points(group="console_scripts", name=name))
    if not found:
        raise ProgramError(f"no package in {sys.prefix} has a command '{name}'.")
    home, function = found[0].module, found[0].attr
    source = f"import sys\nfrom {home} import {function.partition('.')[0]}\nsys.exit({function}())\n"
    folder = os.path.dirname(sys.executable)
    return Program(
        lambda: compile(source, f"<command {name}>", "exec"), {}, [os.path.join(folder, name), *words], folder
    )


def dry_run(program: Program) -> tuple[str, bool]:
    """Return what is known of a run of ``program`` from reading it, and whether something will not work.

    The text has the names that are replaced, those that stay transformers', overrides and uses that will not work, and
    the effect of each training argument in the code and on the command line.

    Raises:
        MissingPackageError: If libcst is not installed.
        ProgramError: If it is an installed command, whose code is in packages.
        ReportError: If its file cannot be read, or is not Python.
    """
    from hf_compat.tools.port.command import port_script

    if "__file__" not in program.attributes:
        raise ProgramError(
            f"`--dry` reads a script, and {program.words[0]} is only a call into a package. Pass the script that uses "
            "the package, or `hf-compat explain FILE` with the arguments as YAML or JSON."
        )
    path = os.path.relpath(program.attributes["__file__"])
    port = port_script(path, program.words[1:], installs=True)
    told = [f"`{path}` was not run. A run takes from hf_compat, in the Python processes that it starts too:"]
    if not port.diff:
        told.append("Nothing of its own: it imports nothing Trainer-related from transformers.")
    return "\n".join([*told, *port.remarks]), port.has_problems


def install_here_and_in_children() -> None:
    """Install hf_compat in this process, and in Python processes that are started from here on.

    Raises:
        MissingPackageError: If transformers is not installed.
    """
    install()
    if is_asked_for():
        pass_on()


def run_program(program: Program) -> None:
    """Run ``program`` as ``__main__``; tracebacks start at the program's own frames."""
    if not sys.flags.safe_path:
        sys.path[0] = program.folder
    sys.argv[:] = program.words
    main = ModuleType("__main__")
    vars(main).update({"__annotations__": {}, "__builtins__": __builtins__, **program.attributes})
    sys.modules["__main__"] = main
    try:
        exec(program.compiled(), vars(main))
    except SystemExit:
        raise
    except BaseException as error:
        _show_without_us(error)
        raise


def _compile(path: str) -> CodeType:
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)


def _show_without_us(error: BaseException) -> None:
    """Have the traceback of ``error``, which is on its way out, begin with the program's own frames."""
    shown = _of_the_program(error.__traceback__)
    hook = sys.excepthook  # the program's own, if it has one

    def show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        if value is error:
            value, traceback = error.with_traceback(shown), shown
        hook(kind, value, traceback)

    sys.excepthook = show


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OURS):
        traceback = traceback.tb_next
    return traceback
