"""``Replacement``: the places where hf_compat's classes stand, with what stood there before."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from types import ModuleType
from typing import Any

import hf_compat
from hf_compat.installing.replaced_names import is_theirs, is_watched, names_in
from hf_compat.upstream_names import ModuleWithDefaults

__all__ = ["NameInModule", "Replacement", "modules_of_transformers", "places_in", "places_of"]

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
