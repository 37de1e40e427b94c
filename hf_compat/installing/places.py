"""``Replacement``: the places where hf_compat's classes stand, with what stood there before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import RLock
from types import ModuleType
from typing import Any

import hf_compat
from hf_compat.upstream_names import ModuleWithDefaults

# The names of transformers that hf_compat replaces, and the modules that have them.


BASES = ("Trainer", "TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments")
"""The classes that a library's own derive from: one that derives from transformers' stays on it."""

NOT_REPLACED = {
    "Adafactor": "hf_compat hands on transformers' own",
    "DEFAULT_CALLBACKS": "the module that has it hands on hf_compat's list: `ModuleWithDefaults`",
    "DEFAULT_PROGRESS_CALLBACK": "as well",
    "ExplicitEnum": "the base of many enums of transformers that have nothing to do with its Trainer",
    "GreedyLR": "hf_compat hands on transformers' own",
}
"""Names that hf_compat has too, but that stay transformers', and why."""

_NOT_REPLACED_IN = {
    # A table there has transformers' members for keys; another library's equal them, but have another hash.
    "transformers.optimization": frozenset({"SchedulerType"}),
    "transformers.trainer_optimizer": frozenset({"OptimizerNames"}),
}
"""Names that a module of transformers needs its own of."""


@cache
def _names() -> frozenset[str]:
    return frozenset(hf_compat.__all__) - NOT_REPLACED.keys()


def is_watched(module: str) -> bool:
    """Return whether ``module``, a dotted name, is of transformers and may have the names; its models have none."""
    return module == "transformers" or (
        module.startswith("transformers.") and not module.startswith("transformers.models.")
    )


def names_in(module: ModuleType) -> frozenset[str]:
    """Return the names that ``module`` has and that hf_compat may stand in for there."""
    content = getattr(module, "__dict__", None)
    if not isinstance(content, dict):  # what some libraries put into `sys.modules`
        return frozenset()
    return (_names() & content.keys()) - _NOT_REPLACED_IN.get(content.get("__name__", ""), frozenset())


def is_theirs(value: Any) -> bool:
    """Return whether ``value`` is a class or function of transformers; constants are equal in both libraries."""
    home = getattr(value, "__module__", None)
    return isinstance(home, str) and home.startswith("transformers.")


_WITH_DEFAULTS = "transformers.trainer"
"""The module in which scripts read and assign the default callbacks."""


@dataclass(frozen=True, slots=True)
class NameInModule:
    """A name in a module."""

    module: ModuleType
    name: str
    theirs: Any
    """transformers' object, which is there unless hf_compat stands in for it."""
    shared_name: str
    """What both libraries call it, whatever the module calls it."""

    def put_ours(self) -> None:
        """Put hf_compat's object there."""
        vars(self.module)[self.name] = getattr(hf_compat, self.shared_name)

    def put_theirs(self) -> None:
        """Put transformers' object there."""
        vars(self.module)[self.name] = self.theirs

    def is_ours(self) -> bool:
        """Return whether hf_compat's object is there; a script may have put another one."""
        return vars(self.module).get(self.name) is getattr(hf_compat, self.shared_name)


def places_in(module: ModuleType) -> list[NameInModule]:
    """Return the names in ``module``, of transformers, that both libraries have."""
    found = ((name, vars(module)[name]) for name in sorted(names_in(module)))
    return [NameInModule(module, name, value, name) for name, value in found if is_theirs(value)]


def places_of(objects: Mapping[int, str], module: ModuleType) -> list[NameInModule]:
    """Return the names under which ``module`` has some of ``objects``, by their ``id`` with what both call them."""
    content = list(vars(module).items()) if isinstance(getattr(module, "__dict__", None), dict) else []
    return [NameInModule(module, name, value, objects[id(value)]) for name, value in content if id(value) in objects]


class Replacement:
    """hf_compat's objects in the place of transformers', in every module that has those.

    While a module of transformers is executed, transformers' own are back in its modules. So what is loaded later
    derives from them, as it would without hf_compat, and can be left as it is when all is restored.
    """

    def __init__(self) -> None:
        self._places: list[NameInModule] = []
        self._defaults: ModuleType | None = None
        self._loaded: list[ModuleType] = []  # of transformers, to be taken when none is being executed
        self._lazy: dict[int, ModuleType] = {}  # transformers makes a second module `transformers`, and both are in use
        self._executing = 0
        self._lock = RLock()

    def take(self, places: Iterable[NameInModule]) -> None:
        """Put ours into ``places``, for as long as this lasts."""
        with self._lock:
            for place in places:
                place.put_ours()
                self._places.append(place)

    def take_module(self, module: ModuleType) -> None:
        """Put ours into a module of transformers."""
        if _is_lazy(module):
            self._lazy[id(module)] = module
        self.take(places_in(module))
        if module.__name__ == _WITH_DEFAULTS and type(module) is ModuleType:
            module.__class__ = ModuleWithDefaults
            self._defaults = module

    @contextmanager
    def executing(self, name: str) -> Iterator[None]:
        """Have transformers' own in its modules while its module ``name`` is executed; then put ours there as well."""
        with self._lock:
            self._executing += 1
            self._note("transformers")
            if self._executing == 1:
                self._put_theirs(place for place in self._places if is_watched(place.module.__name__))
        try:
            yield
        finally:
            with self._lock:
                self._executing -= 1
                self._note("transformers")
                self._note(name)
                is_last = not self._executing
            if is_last:
                self._replace_again()

    def restore(self) -> None:
        """Put transformers' objects back wherever ours are."""
        with self._lock:
            self._put_theirs(reversed(self._places))
            self._places.clear()
            if self._defaults is not None:
                self._defaults.__class__ = ModuleType
                self._defaults = None
            for module in self._lazy.values():
                for name in names_in(module):
                    # It kept what it found in a module of its own; it will look there again.
                    if NameInModule(module, name, None, name).is_ours():
                        del vars(module)[name]

    @staticmethod
    def _put_theirs(places: Iterable[NameInModule]) -> None:
        for place in places:
            if place.is_ours():
                place.put_theirs()

    def _replace_again(self) -> None:
        for module in (*self._loaded, *self._lazy.copy().values()):
            for place in places_in(module):
                # Imports it, without the lock: another thread may be importing as well.
                getattr(hf_compat, place.shared_name)
        with self._lock:
            if self._executing:  # there, or by what was imported here; that goes on when it is done
                return
            for place in self._places:
                if vars(place.module).get(place.name) is place.theirs:
                    place.put_ours()
            for module in (*self._loaded, *self._lazy.copy().values()):
                self.take_module(module)
            self._loaded.clear()

    def _note(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is None:
            return
        if _is_lazy(module):
            self._lazy[id(module)] = module
        else:
            self._loaded.append(module)


def modules_of_transformers() -> list[ModuleType]:
    """Return the modules of transformers that are loaded and may have the names."""
    loaded = {id(module): module for name, module in list(sys.modules.items()) if module and is_watched(name)}
    kinds = {type(module) for module in loaded.values() if _is_lazy(module)}
    # Its second module `transformers` took the place of the first, which modules hold that imported it before.
    held = (value for module in list(sys.modules.values()) for value in _content(module) if type(value) in kinds)
    return list((loaded | {id(module): module for module in held if is_watched(module.__name__)}).values())


def _content(module: ModuleType | None) -> list[Any]:
    content = getattr(module, "__dict__", None)
    return list(content.values()) if isinstance(content, dict) else []


def _is_lazy(module: ModuleType) -> bool:
    """Return whether ``module`` looks a name up on first use, and keeps it."""
    return "_class_to_module" in getattr(module, "__dict__", ())


# `ModulesOfTransformers`: what makes modules of transformers that are imported later hold hf_compat's classes.


class _WatchedLoader(Loader):
    """The loader of one module, which informs a ``Replacement`` when the module is executed.

    The module keeps its own loader, so that sources and resources are found as ever.
    """

    def __init__(self, loader: Any, replacement: Replacement) -> None:
        self._loader = loader
        self._replacement = replacement

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._replacement.executing(module.__name__):
            self._loader.exec_module(module)


class ModulesOfTransformers(MetaPathFinder):
    """Finds modules of transformers as Python's other finders do, and has a ``Replacement`` watch them."""

    def __init__(self, replacement: Replacement) -> None:
        self.replacement = replacement
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have of ``fullname``; None if it is none of transformers' modules."""
        if not is_watched(fullname) or getattr(self._asking, "others", False):
            return None
        self._asking.others = True  # another such finder may ask this one in turn
        try:
            others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
            found = (finder.find_spec(fullname, path, target) for finder in others)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._asking.others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _WatchedLoader(spec.loader, self.replacement)
        return spec
