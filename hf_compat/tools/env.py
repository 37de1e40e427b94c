"""``hf-compat env``: versions, devices and launcher variables, for a bug report."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import hf_compat
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.errors import HFCompatError
from hf_compat.masking import masked_text

PACKAGES = (
    "torch",
    "lightning",
    "transformers",
    "accelerate",
    "datasets",
    "torchmetrics",
    "safetensors",
    "huggingface-hub",
    "numpy",
    "deepspeed",
    "peft",
    "trl",
    "sentence-transformers",
    "bitsandbytes",
    "ray",
)
"""The packages that a run's numbers may depend on."""
_VARIABLES = re.compile(
    r"(HF_COMPAT|ACCELERATE|FSDP|DS|LT|PL|TORCHELASTIC|SLURM|OMPI_COMM|MV2_COMM|PMI|NCCL|GLOO|CUDA|PYTORCH|TORCH)_.*"
    r"|(RANK|LOCAL_RANK|GROUP_RANK|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)"
    r"|(OMP_NUM_THREADS|MKL_NUM_THREADS|CUBLAS_WORKSPACE_CONFIG|TOKENIZERS_PARALLELISM)"
    r"|(HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE)"
)
"""Variables that launchers set, or that change what a run computes."""
_PRIVATE = re.compile(r"TOKEN|JWT|KEY|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|USER|ACCOUNT", re.IGNORECASE)
"""Names of variables that are never shown, whatever else they match."""
_PATH = re.compile(r"(?<![:\w/])~?/[^\s,;:]*")


def describe_environment() -> dict[str, Any]:
    """Return versions, devices and launcher variables of this process; no secret, path or user name is in it.

    Returns:
        ``python``, ``platform`` and ``hf_compat`` (text), ``semantics`` (the transformers release whose numbers a run
        reproduces), ``packages`` (versions by name; None if not installed), ``devices`` (text, a line each) and
        ``variables`` (values by name).
    """
    return {
        "hf_compat": hf_compat.__version__,
        "semantics": _semantics(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version_of(name) for name in PACKAGES},
        "devices": _devices(),
        "variables": _variables(os.environ),
    }


def as_json(described: Mapping[str, Any]) -> str:
    """Return the description as JSON."""
    return json.dumps(described, indent=2)


def as_text(described: Mapping[str, Any]) -> str:
    """Return the description as lines of ``name: value``."""
    lines = [f"{name}: {described[name]}" for name in ("hf_compat", "semantics", "python", "platform")]
    lines += [f"{name}: {found or 'not installed'}" for name, found in described["packages"].items()]
    lines += [f"device: {device}" for device in described["devices"]]
    lines += [f"{name}={value}" for name, value in described["variables"].items()]
    return "\n".join(lines)


def _semantics() -> str:
    try:
        semantics = resolve_semantics()
    except HFCompatError as error:  # a bad value of HF_COMPAT_SEMANTICS is what the report is about
        return str(error)
    return f"transformers {semantics.release}" + (", corrected" if semantics.corrected else "")


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    import torch

    found = [f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found.append(
            f"cuda:{index}, {facts.name}, {facts.total_memory / 2**30:.1f} GiB, capability {facts.major}.{facts.minor}"
        )
    if torch.version.cuda is not None:
        found.append(f"torch was built for CUDA {torch.version.cuda}")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of launchers, except for those that may be secrets or names of users."""
    names = sorted(name for name in environment if _VARIABLES.fullmatch(name) and not _PRIVATE.search(name))
    return {name: _PATH.sub("<path>", masked_text(environment[name])) for name in names}
