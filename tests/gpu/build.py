"""The compiled half of the fake device: built once, then shared by every process of this machine."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from packaging.version import Version

SOURCE = Path(__file__).with_name("device.cpp")
NAME = "fake_gpu_device"
COMPILER = "g++"
WRITTEN_FOR = Version("2.13")
"""The release of torch whose C++ interface the source uses."""


def reason_to_skip() -> str | None:
    """Return why the device cannot be had here, or None if it can."""
    if sys.platform != "linux":
        return "the fake GPU is built for Linux alone"
    if shutil.which(COMPILER) is None:
        return f"the fake GPU is compiled with {COMPILER}, which is not installed"
    if torch.backends.cuda.is_built():
        return "the fake GPU takes the place of CUDA in a build of torch without it"
    if Version(torch.__version__).release[:2] != WRITTEN_FOR.release:
        return f"the fake GPU is written for torch {WRITTEN_FOR}, not {torch.__version__}"
    return None


def load(source: Path = SOURCE, name: str = NAME) -> ModuleType:
    """Return the extension ``name``, compiled by the first process that needs it; this takes about half a minute."""
    folder = cache_folder(source)
    library = folder / f"{name}.so"
    with locked(folder / "lock"):
        if not library.exists():
            _compile(source, library)
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cache_folder(source: Path) -> Path:
    """Return the folder of this source, torch and Python in the user's cache, created if missing."""
    made_of = [source.read_bytes(), torch.__version__.encode(), sys.implementation.cache_tag.encode()]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "hf_compat-tests" / hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out of the block; the lock of a process that dies is let go of by the system."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(source: Path, library: Path) -> None:
    # Only now: this module is slow to import, and most processes find the library.
    from torch.utils.cpp_extension import include_paths, library_paths

    headers = [*include_paths(), sysconfig.get_paths()["include"]]
    command = [
        *(COMPILER, "-shared", "-fPIC", "-std=c++20", "-O1", "-g0", f"-DTORCH_EXTENSION_NAME={library.stem}"),
        *(word for path in headers for word in ("-isystem", path)),
        *(str(source), "-o", str(library.with_suffix(".new"))),
        *(word for path in library_paths() for word in (f"-L{path}", f"-Wl,-rpath,{path}")),
        *("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the fake GPU could not be compiled:\n{done.stderr}")
    library.with_suffix(".new").replace(library)
