"""Setting the hyperparameters of a trial on its ``TrainingArguments``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.checking.checks import find_problems
from hf_compat.arguments.checking.problems import Problem, raise_all
from hf_compat.arguments.releases.semantics import Semantics

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["apply_values"]

logger = logging.getLogger(__name__)


def apply_values(args: TrainingArguments, values: Mapping[str, Any], semantics: Semantics) -> None:
    """Set each value on ``args``, cast to the type of the current value.

    A name that ``args`` does not have is ignored with a warning. Values that only an earlier trial set are kept.

    Raises:
        ArgumentsError: If ``args`` is then invalid; the error lists all problems.
    """
    problems = []
    for name, value in values.items():
        if not hasattr(args, name):
            text = "The trial's `%s=%r` is ignored: there is no corresponding field in `TrainingArguments`."
            logger.warning(text, name, value)
            continue
        current = getattr(args, name)
        try:
            setattr(args, name, value if current is None else type(current)(value))
        except (TypeError, ValueError) as error:
            problems.append(Problem(name, value, f"a trial cannot set it: {error}"))
    raise_all([*problems, *find_problems(args, semantics)])
