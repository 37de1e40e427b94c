"""The callbacks that a Trainer has by default. Scripts may change both names before they make one.

They are attributes of ``hf_compat`` and of ``hf_compat.trainer`` too, as transformers' are of ``transformers.trainer``.
"""

from __future__ import annotations

from typing import Any

from hf_compat.callbacks.console import ProgressCallback
from hf_compat.callbacks.default_flow import DefaultFlowCallback
from hf_compat.callbacks.notebook import NotebookProgressCallback, is_in_notebook

__all__ = ["DEFAULT_CALLBACKS", "DEFAULT_PROGRESS_CALLBACK"]

DEFAULT_CALLBACKS: list[Any] = [DefaultFlowCallback]
"""Callbacks, classes or instances, that come first in every Trainer."""
DEFAULT_PROGRESS_CALLBACK: Any = NotebookProgressCallback if is_in_notebook() else ProgressCallback
"""The callback, a class or an instance, that comes last, unless ``disable_tqdm`` is set."""
