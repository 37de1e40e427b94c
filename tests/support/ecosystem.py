"""Putting our Trainer in the place of transformers', before a library that subclasses it is imported."""

from __future__ import annotations

import importlib
import sys

HOMES = {
    "Trainer": "trainer",
    "TrainingArguments": "training_args",
    "Seq2SeqTrainer": "trainer_seq2seq",
    "Seq2SeqTrainingArguments": "training_args_seq2seq",
}
"""The classes that libraries subclass, and the module of transformers that each is defined in."""


def replace_trainers() -> None:
    """Replace the classes in every module of transformers that has them.

    Raises:
        RuntimeError: If a library has subclassed one of transformers' already.
    """
    hf_compat, transformers = importlib.import_module("hf_compat"), importlib.import_module("transformers")
    upstream = {name: getattr(importlib.import_module(f"transformers.{home}"), name) for name, home in HOMES.items()}
    for name, kind in upstream.items():
        for child in kind.__subclasses__():
            if not child.__module__.startswith("transformers."):
                raise RuntimeError(f"{child.__module__} has subclassed transformers' {name} already")
        setattr(transformers, name, getattr(hf_compat, name))
    for module in [module for key, module in sys.modules.items() if key.startswith("transformers.")]:
        for name, kind in upstream.items():
            if vars(module).get(name) is kind:
                setattr(module, name, getattr(hf_compat, name))
