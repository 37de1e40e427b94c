"""Callbacks: the base class, the handler that calls them, and the built-in ones."""

from hf_compat.callbacks.console import PrinterCallback, ProgressCallback
from hf_compat.callbacks.default_callbacks import DefaultFlowCallback
from hf_compat.callbacks.handler import CallbackHandler
from hf_compat.callbacks.notebook import NotebookProgressCallback, is_in_notebook
from hf_compat.callbacks.rich_progress import RichProgressCallback
from hf_compat.callbacks.trainer_callback import EarlyStoppingCallback, TrainerCallback, is_kind_of

__all__ = [
    "CallbackHandler",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "NotebookProgressCallback",
    "PrinterCallback",
    "ProgressCallback",
    "RichProgressCallback",
    "TrainerCallback",
    "is_in_notebook",
    "is_kind_of",
]
