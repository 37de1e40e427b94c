"""Processes that this one starts: whether they have hf_compat's classes in place too.

Python imports a module ``sitecustomize``, if there is one, whenever it starts. The one in ``startup/`` installs
hf_compat; ``pass_on`` puts that folder first on the children's ``PYTHONPATH``. A ``sitecustomize`` that would have been
found without is run as well. Children started with ``-I``, ``-E`` or ``-S``, or with an environment of their own, are
not reached.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from hf_compat.environment import is_switched_on

VARIABLE = "HF_COMPAT_INSTALL"
"""Environment variable: whether a process that finds ``startup/`` on its path installs hf_compat."""

_STARTUP = Path(__file__).resolve().parent / "startup"
_MODULE = "sitecustomize"


def is_asked_for() -> bool:
    """Return whether child processes should install hf_compat (the default)."""
    return VARIABLE not in os.environ or is_switched_on(VARIABLE)


def pass_on() -> None:
    """Have every Python process that is started from here on install hf_compat when it starts."""
    os.environ[VARIABLE] = "1"
    given = os.environ.get("PYTHONPATH")
    others = [folder for folder in given.split(os.pathsep) if folder != str(_STARTUP)] if given else []
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *others])


def start_child() -> None:
    """Entry point of ``startup/sitecustomize.py``. An error is printed as one line; the process continues."""
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != _STARTUP]
    _run_the_other()
    if not is_switched_on(VARIABLE) or importlib.util.find_spec("transformers") is None:
        return
    from hf_compat.installing import install

    install(announce=False)


def _run_the_other() -> None:
    """Run the module of that name that Python would have found."""
    spec = PathFinder.find_spec(_MODULE, sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
