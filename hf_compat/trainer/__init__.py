"""The Trainer: transformers' class on a Lightning run, and functions over its public attributes, a topic a file."""

from hf_compat.overriding import OVERRIDABLE
from hf_compat.trainer.seq2seq_trainer import Seq2SeqTrainer
from hf_compat.trainer.trainer import Trainer

__all__ = ["OVERRIDABLE", "Seq2SeqTrainer", "Trainer"]
