"""Setting what a trial tries on the arguments of its run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hf_compat.arguments.checking.checks import find_problems
from hf_compat.arguments.checking.problems import Problem, raise_all
from hf_compat.arguments.releases.semantics import Semantics

__all__ = ["apply_values"]

logger = logging.getLogger(__name__)


def apply_values(args: Any, values: Mapping[str, Any], semantics: Semantics) -> None:
    """Set each value on ``args``, cast to the type of the value that it replaces.

    A name that ``args`` does not have is warned of and left out. What the trial before set and this one does not stays.

    Raises:
        ArgumentsError: If ``args`` then asks for what no run could do; all that is wrong is told.
    """
    problems = []
    for name, value in values.items():
        if not hasattr(args, name):
            logger.warning("The trial's `%s=%r` is left out: TrainingArguments has no field of that name.", name, value)
            continue
        current = getattr(args, name)
        try:
            setattr(args, name, value if current is None else type(current)(value))
        except (TypeError, ValueError) as error:
            problems.append(Problem(name, value, f"a trial cannot set it: {error}"))
    raise_all([*problems, *find_problems(args, semantics)])
