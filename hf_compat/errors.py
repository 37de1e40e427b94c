"""Every error hf_compat raises on purpose, and how a missing optional package is reported.

::

    HFCompatError
    ├── ArgumentsError (ValueError)            fields of one TrainingArguments that contradict each other
    │   └── UnsupportedArgumentsError          fields that cannot be carried out
    ├── UnknownArgumentError (TypeError)       a name that no release of transformers knows
    ├── ParserError (ValueError)               a command line or file that dataclasses cannot be made of
    ├── UnresolvedTypesError (RuntimeError)    annotations of a dataclass that cannot be read
    ├── DataError (ValueError)                 a data set or loader that cannot be trained or evaluated on
    ├── ModelError (ValueError)                a model that cannot be trained
    ├── CheckpointError (ValueError)           a checkpoint folder that cannot be read or written
    │   └── CheckpointWriteError               one that the file system does not take
    ├── HubError (OSError)                     a repository on the Hub that cannot be made or written to
    ├── TrainerSetupError (RuntimeError)       constructor arguments of the Trainer that exclude each other
    ├── LaunchError (RuntimeError)             a process, started by a Trainer, that ended without a result
    ├── SearchError (RuntimeError)             a hyperparameter search that cannot be run
    ├── BatchSizeError (RuntimeError)          no batch size for which memory is enough
    ├── NotSupportedError (NotImplementedError)  a method of transformers' that is not there yet
    └── MissingPackageError (ImportError)      an optional package that is not installed

Each also derives from the built-in error that transformers raises in the same place, so that ``except ValueError`` in a
ported script keeps working.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = [
    "ArgumentsError",
    "BatchSizeError",
    "CheckpointError",
    "CheckpointWriteError",
    "DataError",
    "HFCompatError",
    "HFCompatWarning",
    "HubError",
    "LaunchError",
    "MissingPackageError",
    "ModelError",
    "NotSupportedError",
    "ParserError",
    "SearchError",
    "TrainerSetupError",
    "UnknownArgumentError",
    "UnresolvedTypesError",
    "UnsupportedArgumentsError",
    "require_package",
]


class HFCompatError(Exception):
    """Base of every error that hf_compat raises on purpose."""


class HFCompatWarning(UserWarning):
    """Says what a run does that its user may not want, and what to set instead."""


class ArgumentsError(HFCompatError, ValueError):
    """Says which fields of one ``TrainingArguments`` contradict each other; all of them at once.

    Attributes:
        problems: One sentence per problem, each naming the field, its value and what to do.
        fields: The field of each problem; empty if the error was not made by ``TrainingArguments`` itself.
    """

    def __init__(self, problems: Sequence[str], *, fields: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        self.fields = tuple(fields)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__("\n  ".join([f"{head} in TrainingArguments:", *self.problems]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes it again in another process: exceptions are made from their message otherwise."""
        return _made_again, (type(self), self.problems, self.fields)


def _made_again(kind: type[ArgumentsError], problems: Sequence[str], fields: Sequence[str]) -> ArgumentsError:
    return kind(problems, fields=fields)


class UnsupportedArgumentsError(ArgumentsError):
    """Says which fields of one ``TrainingArguments`` cannot be carried out; all of them at once."""


class UnknownArgumentError(HFCompatError, TypeError):
    """Says that no release of transformers knows an argument, and which known name is nearest."""


class ParserError(HFCompatError, ValueError):
    """Says what of a command line, file or dataclass ``HfArgumentParser`` cannot use."""


class UnresolvedTypesError(HFCompatError, RuntimeError):
    """Says which annotation of a dataclass names what cannot be found."""


class DataError(HFCompatError, ValueError):
    """Says why a data set or loader cannot be trained or evaluated on."""


class ModelError(HFCompatError, ValueError):
    """Says why a model cannot be trained."""


class CheckpointError(HFCompatError, ValueError):
    """Says why a checkpoint folder cannot be read or written."""


class CheckpointWriteError(CheckpointError):
    """Says why the file system did not take a checkpoint; those written before are untouched."""


class HubError(HFCompatError, OSError):
    """Says why a repository on the Hub cannot be made or written to."""


class TrainerSetupError(HFCompatError, RuntimeError):
    """Says which constructor arguments of the ``Trainer`` exclude each other."""


class LaunchError(HFCompatError, RuntimeError):
    """Says which of the processes that a ``Trainer`` started ended without a result, and how."""


class SearchError(HFCompatError, RuntimeError):
    """Says why a hyperparameter search cannot be run."""


class BatchSizeError(HFCompatError, RuntimeError):
    """Says for what memory was not enough however small the training batches."""


class NotSupportedError(HFCompatError, NotImplementedError):
    """Says which method or choice is not supported, and what to use instead."""


NotCarriedOutError = NotSupportedError
"""The name before 0.2."""


class MissingPackageError(HFCompatError, ImportError):
    """Says which optional package is missing, what needs it and how to install it."""


def require_package(package: str, *, extra: str, purpose: str) -> ModuleType:
    """Return the imported module ``package``.

    Args:
        package: Import name, dotted or not.
        extra: The extra of hf-compat that installs it.
        purpose: What needs it, as the subject of a sentence: ``"optim='lion_8bit'"``.

    Raises:
        MissingPackageError: If the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f'{purpose} needs the package `{package}`. Run: pip install "hf-compat[{extra}]"'
        ) from error
