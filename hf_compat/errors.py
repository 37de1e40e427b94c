"""The error classes of hf_compat, warnings at the user's line, and ``require_package`` for optional packages.

    HFCompatError
    ├── ArgumentsError (ValueError)            fields of one TrainingArguments that contradict each other
    │   ├── ArgumentTypesError (AttributeError, TypeError)  fields of a type, or with keys, that cannot be used
    │   ├── EarlyStoppingError (AssertionError)  fields that EarlyStoppingCallback needs
    │   └── UnsupportedArgumentsError (NotImplementedError)  fields that are not supported
    ├── UnknownArgumentError (TypeError)       an argument of no release of transformers
    ├── ParserError (ValueError)               a command line or file that cannot be parsed
    ├── UnresolvedTypesError (RuntimeError)    annotations of a dataclass that cannot be resolved
    ├── DataError (ValueError)                 an unusable dataset or data loader
    │   ├── DataCollatorError (TypeError)      a collator that cannot be called
    │   ├── DatasetTypeError (KeyError, TypeError)  what is no dataset: a name, columns, splits, a loader
    │   └── LoaderError (AttributeError, RuntimeError, TypeError)  no data loader, samples or batches without names
    ├── ModelError (ValueError)                a model that cannot be trained
    │   ├── LossError (AttributeError, RuntimeError, TypeError)  no loss, or outputs to gather that are no tensors
    │   ├── ModelOutputError (IndexError, KeyError)  a model whose outputs lack what a field names
    │   └── UntrainableModelError (AttributeError, RuntimeError, TypeError)  what is no model, or frozen
    ├── CallbackError (AttributeError, TypeError, ValueError)  what is no callback, or none of the Trainer's
    ├── MetricsError (AttributeError, TypeError)  a function or override that is none or returns no metrics
    ├── MetricNameError (KeyError)             an evaluation without the metric that a field names
    ├── OverrideError (AttributeError, TypeError, ValueError)  an override that returns what cannot be used
    ├── CheckpointError (ValueError)           a checkpoint folder that cannot be read, or not be saved
    │   └── StateValueError (TypeError)        a value in a log or a callback's state that JSON does not have
    ├── WriteError (OSError)                   what the file system fails to make or write
    │   ├── CheckpointWriteError               a checkpoint
    │   ├── LogWriteError                      the files of a logger
    │   └── OutputFolderError (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError)  `output_dir`
    ├── HubError (OSError)                     a repository on the Hub that cannot be created or written
    ├── NoOptimizerError (AttributeError, ValueError)  an optimizer or schedule that is not there yet
    ├── TrainerSetupError (RuntimeError, ValueError)  a Trainer or environment that cannot be set up
    │   └── ModelInitError (AttributeError, TypeError)         a `model_init` that is missing or cannot be used
    ├── LaunchError (RuntimeError)             a process, started by a Trainer, that exited without a result
    ├── SearchError (RuntimeError)             a hyperparameter search that cannot be run
    ├── ReportError (ValueError)               a picture or report of runs that cannot be made
    ├── BatchSizeError (RuntimeError)          no batch size that fits into memory
    ├── NotSupportedError (NotImplementedError)  a method or feature that is not supported
    └── MissingPackageError (ImportError, RuntimeError, ValueError)  an optional package that is not installed

Each also derives from the built-in error that transformers raises in the same case, so that ``except ValueError`` in a
ported script keeps working. Where that depends on the case, ``HFCompatError.also`` gives the class.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import warnings
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any, Self


class HFCompatError(Exception):
    """Base class of all errors of hf_compat."""

    _others: tuple[type[BaseException], ...] = ()

    def __init__(self, *args: object) -> None:
        Exception.__init__(self, *args)  # some of the classes that `also` adds take more arguments

    __str__ = Exception.__str__  # a KeyError's would be in quotes, an OSError's its number and text

    @classmethod
    def also(cls, *others: type[BaseException]) -> type[Self]:
        """Return this class, or one of its name that also derives from those of ``others`` from which it does not.

        For an error whose class in transformers depends on what is wrong, or on the library that notices.
        """
        kind: type[Self] = _that_is_also(cls, tuple(dict.fromkeys(others)))  # type: ignore[arg-type]
        return kind

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what unpickles it in another process, where a class that ``also`` has made has to be made again."""
        if not self._others:
            return super().__reduce__()  # type: ignore[return-value]
        return _rebuild, (type(self).__bases__[0], self._others, self.args), self.__dict__


@functools.cache
def _that_is_also(kind: Any, others: tuple[type[BaseException], ...]) -> Any:
    lacking = [other for other in others if not issubclass(kind, other)]
    members = {"__module__": kind.__module__, "__doc__": kind.__doc__, "_others": others}
    try:
        return type(kind.__name__, (kind, *lacking), members) if lacking else kind
    except TypeError:  # an OSError and an AttributeError in one have no common layout
        return kind


def _rebuild(kind: Any, others: tuple[type[BaseException], ...], args: tuple[Any, ...]) -> Any:
    return kind.also(*others)(*args)


class HFCompatWarning(UserWarning):
    """A warning about behaviour that may not be intended, and what to set instead."""


_BETWEEN = ("hf_compat", "lightning", "torch", "contextlib", "functools")
"""Packages whose functions may lie between a script and the place in this package that warns."""


def warn_user(message: str, category: type[Warning] = HFCompatWarning) -> None:
    """Warn of ``message`` at the line of the script that has called hf_compat, however far from it that is."""
    frame: Any = inspect.currentframe()
    while frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    script, line = frame.f_globals, frame.f_lineno
    registry = script.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, line, script.get("__name__"), registry)


def _is_between(frame: FrameType) -> bool:
    is_of_dataclass = (frame.f_code.co_filename, frame.f_code.co_name) == ("<string>", "__init__")
    return is_of_dataclass or frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN


class ArgumentsError(HFCompatError, ValueError):
    """Fields of ``TrainingArguments`` that are invalid or contradict each other; lists all problems.

    Attributes:
        problems: One sentence per problem: the field, its value, the reason and the remedy.
        fields: The field of each problem; empty if the error does not come from ``TrainingArguments``.
    """

    def __init__(self, problems: Sequence[str], fields: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        self.fields = tuple(fields)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__("\n  ".join([f"{head} in TrainingArguments:", *self.problems]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what unpickles it in another process; by default exceptions are rebuilt from their message."""
        kind = type(self).__bases__[0] if self._others else type(self)
        return _rebuild, (kind, self._others, (self.problems, self.fields))


class UnsupportedArgumentsError(ArgumentsError, NotImplementedError):
    """Fields of ``TrainingArguments`` that are not supported; lists all of them."""


class ArgumentTypesError(ArgumentsError, AttributeError, TypeError):
    """Fields of ``TrainingArguments`` of a type, or with keys, that cannot be used; lists all other problems too."""


class EarlyStoppingError(ArgumentsError, AssertionError):
    """Fields of ``TrainingArguments`` without which ``EarlyStoppingCallback`` cannot stop a run."""


class UnknownArgumentError(HFCompatError, TypeError):
    """An argument of no release of transformers; suggests the nearest name."""


class ParserError(HFCompatError, ValueError):
    """A command line, file or dataclass that ``HfArgumentParser`` cannot parse."""


class UnresolvedTypesError(HFCompatError, RuntimeError):
    """An annotation of a dataclass whose type cannot be resolved."""


class DataError(HFCompatError, ValueError):
    """A dataset or data loader that cannot be used for training or evaluation."""


class DataCollatorError(DataError, TypeError):
    """A ``data_collator`` that cannot be called."""


class DatasetTypeError(DataError, KeyError, TypeError):
    """An object without samples by number, such as a dataset's name, a dict of columns or splits, or a data loader."""


class LoaderError(DataError, AttributeError, RuntimeError, TypeError):
    """A data loader that cannot be iterated over, or whose samples or batches have no names or cannot be joined."""


class ModelError(HFCompatError, ValueError):
    """A model that cannot be trained."""


class LossError(ModelError, AttributeError, RuntimeError, TypeError):
    """A loss, or outputs to gather in an evaluation, that are no tensors.

    From a model or the user's code, such as ``compute_loss`` and ``prediction_step``.
    """


class ModelOutputError(ModelError, IndexError, KeyError):
    """A model whose outputs lack what a field of ``TrainingArguments`` names."""


class UntrainableModelError(ModelError, AttributeError, RuntimeError, TypeError):
    """No model, or one of which there is nothing to train: no ``forward``, or no parameter with gradients."""


class CallbackError(HFCompatError, AttributeError, TypeError, ValueError):
    """An object that is no callback, or a callback to remove that is not one of the Trainer's."""


class MetricsError(HFCompatError, AttributeError, TypeError):
    """A ``compute_metrics`` that cannot be called, or that or an override of ``evaluate`` that returns no metrics."""


class MetricNameError(HFCompatError, KeyError):
    """An evaluation without the metric that ``metric_for_best_model`` names."""


class OverrideError(HFCompatError, AttributeError, TypeError, ValueError):
    """An override of a method of the ``Trainer`` that returns what cannot be used."""


class CheckpointError(HFCompatError, ValueError):
    """A checkpoint folder that cannot be read, or whose contents cannot be saved."""


class MissingWeightsError(CheckpointError):
    """A checkpoint folder without weights."""


class StateValueError(CheckpointError, TypeError):
    """A value in ``log_history`` or in the state of a callback that cannot be written to ``trainer_state.json``."""


class WriteError(HFCompatError, OSError):
    """Something that the file system failed to make or write.

    Attributes:
        errno: The system's number of the failure, such as ``errno.ENOSPC``; None if it is not known.
        strerror: The system's text for it.
        filename: The file or folder that could not be written.
    """

    def __init__(self, message: str, *, errno: int | None = None, filename: str | None = None) -> None:
        super().__init__(message)
        self.errno = errno
        self.strerror = None if errno is None else os.strerror(errno)
        self.filename = filename

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what unpickles it in another process; by default the number and file would be lost."""
        return _rebuild_write_error, (type(self), str(self), self.errno, self.filename)


def _rebuild_write_error(kind: type[WriteError], message: str, errno: int | None, filename: str | None) -> WriteError:
    return kind(message, errno=errno, filename=filename)


class CheckpointWriteError(WriteError):
    """A checkpoint that the file system failed to write; earlier checkpoints are unchanged."""


class LogWriteError(WriteError):
    """Logs that a logger could not write to its folder."""


class OutputFolderError(WriteError, FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError):
    """An ``output_dir`` that cannot be made: it is a file, or in one, or in a folder that cannot be written."""


class HubError(HFCompatError, OSError):
    """A repository on the Hub that cannot be created or written."""


class NoOptimizerError(HFCompatError, AttributeError, ValueError):
    """A method that needs the optimizer or the learning-rate schedule was called before there is one."""


class TrainerSetupError(HFCompatError, RuntimeError, ValueError):
    """Constructor arguments of the ``Trainer``, or an environment, that cannot be used together.

    Upstream raises a RuntimeError for some of them, a ValueError for others.
    """


class ModelInitError(TrainerSetupError, AttributeError, TypeError):
    """A ``model_init`` that is missing, takes more than the trial or returns no model."""


class LaunchError(HFCompatError, RuntimeError):
    """A process, started by a ``Trainer``, that exited without a result."""


class SearchError(HFCompatError, RuntimeError):
    """A hyperparameter search that cannot be run."""


class ReportError(HFCompatError, ValueError):
    """A picture or report of runs that cannot be made or written."""


class BatchSizeError(HFCompatError, RuntimeError):
    """Memory ran out with the smallest batch size too."""


class NotSupportedError(HFCompatError, NotImplementedError):
    """A method or feature that is not supported; says what to use instead."""


class MissingPackageError(HFCompatError, ImportError, RuntimeError, ValueError):
    """A missing optional package: what needs it and how to install it; upstream raises one of the three."""


def is_installed(package: str) -> bool:
    """Return whether the package or module is installed, importing no more than the packages above it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the parent package
        return False


def described(value: object) -> str:
    """Return what a message says of a value of a wrong type: ``None``, or the name of its type."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


def missing_package(package: str, *, extra: str, purpose: str) -> MissingPackageError:
    """Return the error of a package that is not installed; arguments as in ``require_package``."""
    return MissingPackageError(f'{purpose} needs the package `{package}`. Run: pip install "hf-compat[{extra}]"')


def require_package(package: str, *, extra: str, purpose: str) -> ModuleType:
    """Return the imported module ``package``.

    Args:
        package: Import name of the package or module.
        extra: The extra of hf-compat that installs it.
        purpose: What needs it, the subject of the message: ``"optim='lion_8bit'"``.

    Raises:
        MissingPackageError: If the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        distribution = package.partition(".")[0]
        missing = package if is_installed(distribution) else distribution
        raise missing_package(missing, extra=extra, purpose=purpose) from error
