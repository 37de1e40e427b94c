"""``install``: unmodified scripts, and libraries that subclass transformers' Trainer, run with hf_compat's classes.

The names that transformers and hf_compat share are hf_compat's in every module of transformers, those imported later
among them; ``transformers.__version__`` and everything else is as it was. ``uninstall`` puts all back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from hf_compat.distributed.launch import LAUNCHERS
from hf_compat.errors import MissingPackageError, TrainerSetupError, is_installed
from hf_compat.installing.places import (
    BASES,
    ModulesOfTransformers,
    NameInModule,
    Replacement,
    modules_of_transformers,
    places_in,
    places_of,
)
from hf_compat.version import __version__

__all__ = ["install", "uninstall"]

_MOST_NAMED = 5

_in_place: ModulesOfTransformers | None = None


def install(*, announce: bool = True) -> None:
    """Have hf_compat's classes and functions stand in for those of transformers of the same names.

    Nothing is imported that is not imported anyway. Modules outside transformers that have imported such an object
    before, under whatever name, hold ours from here on too. A further call has no effect.

    Args:
        announce: Whether to say on stderr, in one line of the first process, what was done.

    Raises:
        MissingPackageError: If transformers is not installed.
        TrainerSetupError: If a class already derives from transformers' Trainer or arguments: it would keep using them.
    """
    global _in_place
    if _in_place is not None:
        return
    if not is_installed("transformers"):
        raise MissingPackageError(
            "hf_compat.install() replaces classes of transformers, which is not installed. Run: pip install "
            '"hf-compat[transformers]"'
        )
    modules = modules_of_transformers()
    theirs = [place for module in modules for place in places_in(module)]
    _refuse_if_too_late(theirs)
    replacement = Replacement()
    for module in modules:
        replacement.take_module(module)
    objects = {id(place.theirs): place.name for place in theirs}
    replacement.take(place for module in _other_modules() for place in places_of(objects, module))
    _in_place = ModulesOfTransformers(replacement)
    sys.meta_path.insert(0, _in_place)
    if announce and _is_first_process():
        sys.stderr.write(_announcement())


def uninstall() -> None:
    """Put transformers' own objects back in every module; without ``install`` before, it has no effect."""
    global _in_place
    if _in_place is not None:
        sys.meta_path.remove(_in_place)
        _in_place.replacement.restore()
        _in_place = None


def _other_modules() -> list[ModuleType]:
    """Return the loaded modules of all packages but these two."""
    return [
        module
        for name, module in list(sys.modules.items())
        if module is not None and name.partition(".")[0] not in ("transformers", "hf_compat")
    ]


def _refuse_if_too_late(places: list[NameInModule]) -> None:
    bases = {id(place.theirs): place.theirs for place in places if place.name in BASES}
    found = sorted({f"{kind.__module__}.{kind.__qualname__}" for base in bases.values() for kind in _derived(base)})
    if not found:
        return
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    libraries = sorted({name.partition(".")[0] for name in found})
    raise TrainerSetupError(
        f"hf_compat.install() was called too late: {', '.join(found[:_MOST_NAMED])}{more} already derive from "
        f"transformers' classes and would keep using its Trainer. Call it before importing {', '.join(libraries)}, at "
        "the top of the script: `import hf_compat; hf_compat.install()`, or run the unchanged script with `hf-compat "
        "run`."
    )


def _derived(base: type[Any]) -> Iterator[type[Any]]:
    """Yield the classes outside transformers and hf_compat that derive from ``base``, which is transformers'."""
    for kind in base.__subclasses__():
        if kind.__module__.partition(".")[0] not in ("transformers", "hf_compat"):
            yield kind
        yield from _derived(kind)


def _is_first_process() -> bool:
    return all(os.environ.get(variables.rank, "0") == "0" for variables in LAUNCHERS)


def _announcement() -> str:
    from importlib.metadata import version

    return (
        f"hf_compat {__version__} replaces the Trainer of transformers {version('transformers')}: {', '.join(BASES)}, "
        "the callbacks and related names.\n"
    )
