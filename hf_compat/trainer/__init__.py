"""The Trainer: transformers' class on a Lightning run, one file a topic, each adding to the one before."""

from hf_compat.overriding import OVERRIDABLE
from hf_compat.trainer.seq2seq import Seq2SeqTrainer
from hf_compat.trainer.trainer import Trainer

__all__ = ["OVERRIDABLE", "Seq2SeqTrainer", "Trainer"]
