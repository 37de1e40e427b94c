"""``ModulesOfTransformers``: what makes modules of transformers that are imported later hold hf_compat's classes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hf_compat.installing.places import Replacement
from hf_compat.installing.replaced_names import is_watched

__all__ = ["ModulesOfTransformers"]


class _WatchedLoader(Loader):
    """The loader of one module, which informs a ``Replacement`` when the module is executed.

    The module keeps its own loader, so that sources and resources are found as ever.
    """

    def __init__(self, own: Any, replacement: Replacement) -> None:
        self._own = own
        self._replacement = replacement

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        with self._replacement.executing(module.__name__):
            self._own.exec_module(module)


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
