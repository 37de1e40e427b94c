"""The Trainer: transformers' class on a Lightning run, and functions over its public attributes, a topic a file."""

import sys
from typing import TYPE_CHECKING

from hf_compat.trainer.seq2seq_trainer import Seq2SeqTrainer
from hf_compat.trainer.trainer import Trainer
from hf_compat.upstream_names import ModuleWithDefaults

if TYPE_CHECKING:
    from hf_compat.callbacks.default_callbacks import DEFAULT_CALLBACKS, DEFAULT_PROGRESS_CALLBACK

__all__ = ["DEFAULT_CALLBACKS", "DEFAULT_PROGRESS_CALLBACK", "Seq2SeqTrainer", "Trainer"]

sys.modules[__name__].__class__ = ModuleWithDefaults
