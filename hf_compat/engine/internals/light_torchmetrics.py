"""Lightning needs two classes of torchmetrics: the rest of that package is executed on first use.

All of it takes about a quarter of the time to the first update step, for it imports models of transformers, and scipy,
where they are installed.

What this relies on: to be imported, ``torchmetrics.metric`` and ``torchmetrics.collections`` need nothing of the
package but its ``_logger``, and Lightning nothing more but its ``__version__``. Where they do, all is executed at once.
"""

from __future__ import annotations

import ast
import logging
import pkgutil
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_PACKAGE = "torchmetrics"
_NEEDED = {"Metric": f"{_PACKAGE}.metric", "MetricCollection": f"{_PACKAGE}.collections"}


def execute_when_needed() -> None:
    """From here on an import of torchmetrics executes what Lightning needs of it."""
    if _PACKAGE not in sys.modules and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(MetaPathFinder, Loader):
    """Imports the package, and executes the rest of it before a module in it is imported that is not yet."""

    def __init__(self) -> None:
        self._loader: Loader | None = None  # Python's own
        self._lock = threading.RLock()
        self._executing: int | None = None  # the thread that executes the rest

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = sys.modules.get(_PACKAGE)
        if fullname == _PACKAGE:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._loader, spec.loader = spec.loader, self
            return spec
        if fullname.startswith(f"{_PACKAGE}.") and isinstance(package, _Package) and self._executing is None:
            self.execute_rest(package)
        return None

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None, "the package has been found"
        assert module.__spec__ is not None, "it is being imported"
        module.__loader__ = module.__spec__.loader = self._loader
        try:
            _execute_needed(module)
        except Exception:  # of another release
            for name in [name for name in sys.modules if name.startswith(f"{_PACKAGE}.")]:
                del sys.modules[name]
            self._execute(module)
        else:
            module.__class__ = _Package

    def execute_rest(self, package: _Package) -> None:
        """Execute all that has not been, once; other threads wait for that."""
        with self._lock:
            if self._executing is None and type(package) is _Package:
                self._executing = threading.get_ident()
                try:
                    self._execute(package)
                    package.__class__ = ModuleType  # type: ignore[assignment]
                finally:
                    self._executing = None

    def is_executing_here(self) -> bool:
        """Return whether this thread is executing the package: what it has not got to yet is not there."""
        return self._executing == threading.get_ident()

    def _execute(self, module: ModuleType) -> None:
        assert self._loader is not None, "the package has been found"
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._loader.exec_module(module)


_finder = _Finder()


class _Package(ModuleType):
    """torchmetrics, most of which has not been executed."""

    def __getattr__(self, name: str) -> object:
        if _finder.is_executing_here() or name not in _names(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _finder.execute_rest(self)
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        if not _finder.is_executing_here():
            _finder.execute_rest(self)
        return sorted(vars(self))


def _execute_needed(module: ModuleType) -> None:
    module._logger = logging.getLogger(_PACKAGE)  # type: ignore[attr-defined]
    module.__version__ = import_module(f"{_PACKAGE}.__about__").__version__  # type: ignore[attr-defined]
    import_module(f"{_PACKAGE}.utilities")  # imports `torchmetrics.metric`; the other way round it could not
    for name, home in _NEEDED.items():
        setattr(module, name, getattr(import_module(home), name))


def _names(package: ModuleType) -> set[str]:
    """Return the names that the package will have: those that it imports, and those of the modules in it.

    Code that looks up in all loaded modules a name that is none of these must not have modules imported meanwhile.
    """
    source = Path(str(package.__file__)).read_text(encoding="utf-8")
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    imported = {alias.asname or alias.name for statement in statements for alias in statement.names}
    return {"__all__", *imported, *(entry.name for entry in pkgutil.iter_modules(package.__path__))}
