"""What may differ between both trainers in a case: each difference is one that the pages of differences name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from packaging.version import Version

from hf_compat.errors import CheckpointError, EarlyStoppingError
from tests.fuzz.cases import Case

__all__ = ["ALLOWED", "Allowed", "allowed_differences"]


@dataclass(frozen=True)
class Allowed:
    """A difference that is intended.

    Attributes:
        reason: Why it is, in words.
        sentence: What `docs/differences.md` or `docs/differences_reference.md` says of it, word for word.
        applies: Whether a case may show it.
        until: The first release of transformers that no longer shows it; None: every release does.
        upstream_raises: Whether transformers may end with an error where our run has none.
        raises_later: The errors with which the rest of a case may end ours then.
    """

    reason: str
    sentence: str
    applies: Callable[[Case], bool]
    until: str | None = None
    upstream_raises: bool = False
    raises_later: tuple[type[Exception], ...] = ()


def _resumes_stream_in_a_later_pass(case: Case) -> bool:
    """Whether a stream without length is resumed, and may have been read to its end or left before."""
    resumes = any(step.startswith("resume") for step in case.steps)
    size = case.fields.get("per_device_train_batch_size", 4) * case.fields.get("gradient_accumulation_steps", 1)
    reads_again = case.fields.get("max_steps", 0) * size >= case.rows
    leaves = any("should_epoch_stop" in flags for _, _, flags in case.orders)
    return resumes and not case.has_length and (reads_again or leaves)


def _new_model_with_noise(case: Case) -> bool:
    """Whether a run makes its own model and adds noise to the embeddings."""
    trains = any(step != "evaluate" and step != "predict" for step in case.steps)
    return trains and case.model_init and "neftune_noise_alpha" in case.fields


def _evaluates_alone_with_patience(case: Case) -> bool:
    """Whether there is an evaluation before training, with an EarlyStoppingCallback that has no metric."""
    watches = case.fields.keys() & {"metric_for_best_model", "load_best_model_at_end"}
    return bool(case.patience) and not watches and case.steps[0] == "evaluate"


def _warms_up_along_a_polynomial(case: Case) -> bool:
    """Whether the schedule is a polynomial with a warm-up, which may take the whole run."""
    warms_up = case.fields.get("warmup_steps") or case.fields.get("warmup_ratio")
    return bool(warms_up) and case.fields.get("lr_scheduler_type") == "polynomial"


ALLOWED = (
    Allowed(
        "transformers divides by the update steps after the warm-up.",
        "A polynomial schedule whose warm-up takes the whole run ends at its final rate",
        _warms_up_along_a_polynomial,
        upstream_raises=True,
        raises_later=(CheckpointError,),  # of a run of no epochs, which has saved nothing to resume from
    ),
    Allowed(
        "transformers counts the batches to skip from the stream's first beginning and so begins a new pass.",
        "When an iterable dataset without a length is resumed after its first pass, which a callback may have ended, "
        "training continues in the pass it was in",
        _resumes_stream_in_a_later_pass,
    ),
    Allowed(
        "transformers 4.57 adds the noise before `model_init` is called, and looks for it on the new model at the end.",
        "transformers 4.57 adds NEFTune's noise to the model that `model_init` then replaces",
        _new_model_with_noise,
        until="5.0",
        upstream_raises=True,
    ),
    Allowed(
        "transformers calls `startswith` of None.",
        "`evaluate` with an `EarlyStoppingCallback` but without `metric_for_best_model` returns its metrics",
        _evaluates_alone_with_patience,
        upstream_raises=True,
        raises_later=(EarlyStoppingError,),
    ),
)
"""Every difference that a case may show; a case to which none applies may differ in nothing."""


def allowed_differences(case: Case) -> tuple[Allowed, ...]:
    """Return the differences that ``case`` may show."""
    release = Version(metadata.version("transformers"))
    shown = [entry for entry in ALLOWED if entry.until is None or release < Version(entry.until)]
    return tuple(entry for entry in shown if entry.applies(case))
