"""Imports all of hf_compat and trains where only the dependencies can be imported, none of the extras.

The packages of the extras are hidden from this process, modules and metadata both: libraries ask either way whether
one is there. Prints the modules that cannot be imported, a line each.
"""

import importlib
import pkgutil
import re
import sys
from importlib import metadata, util
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def dependencies_of(name, extras=frozenset(), seen=None):
    """Return the names of a distribution and all that it needs with these extras."""
    seen = set() if seen is None else seen
    name = canonicalize_name(name)
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # not needed here
        return set()
    found = {name}
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            found |= dependencies_of(requirement.name, frozenset(requirement.extras), seen)
    return found


class Hiding:
    """A finder as ``finder``, for which some modules and distributions do not exist."""

    def __init__(self, finder, modules, distributions):
        self.finder, self.modules, self.distributions = finder, modules, distributions

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.modules else self.finder.find_spec(name, path, target)

    def find_distributions(self, *args, **kwargs):
        for found in getattr(self.finder, "find_distributions", lambda *_, **__: ())(*args, **kwargs):
            if canonicalize_name(found.metadata["Name"]) not in self.distributions:
                yield found

    def invalidate_caches(self):
        getattr(self.finder, "invalidate_caches", lambda: None)()


def hide_the_extras():
    """Leave hf_compat what an installation without extras brings: its dependencies, and pip's own tools."""
    kept = dependencies_of("hf-compat")
    owners = metadata.packages_distributions()
    names = {canonicalize_name(name) for found in owners.values() for name in found}
    hidden = names - kept - {"pip", "setuptools", "wheel"}
    modules = {module for module, found in owners.items() if hidden.issuperset(map(canonicalize_name, found))}
    sys.meta_path[:] = [Hiding(finder, modules, hidden) for finder in sys.meta_path]
    return modules


if __name__ == "__main__":
    hidden = hide_the_extras()
    assert not hidden & set(sys.modules), hidden & set(sys.modules)
    found = [name for name in ("transformers", "accelerate", "rich", "libcst") if util.find_spec(name) is not None]
    assert not found, found
    import hf_compat

    for module in pkgutil.walk_packages(hf_compat.__path__, "hf_compat."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                print(f"{module.name}: {error}")
    for name in hf_compat.__all__:
        getattr(hf_compat, name)
    readme = (ROOT / "README.md").read_text()
    exec(re.search(r"<!-- runs -->\n```python\n(.*?)```", readme, re.S)[1], {"__name__": "whole_script"})
