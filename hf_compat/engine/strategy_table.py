"""Lightning's strategies that a Trainer refuses, with the reasons; and Ray's, which it takes as they are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a Trainer refuses something of Lightning's.

    Attributes:
        reason: Why it cannot do its work.
        instead: What to use instead.
    """

    reason: str
    instead: str


ABSTRACT = "it is an abstract class"
"""Why the classes are refused from which a user's own may inherit directly."""

_RAY = "ray.train.lightning"

REFUSED_STRATEGIES: dict[str, Refusal] = {
    "ParallelStrategy": Refusal(ABSTRACT, "`DDPStrategy`, or `FSDPStrategy`"),
    "Strategy": Refusal(ABSTRACT, "`DDPStrategy`, or `SingleDeviceStrategy`"),
    **dict.fromkeys(
        (
            *("SingleDeviceXLAStrategy", "SingleTPUStrategy", "XLAStrategy"),
            *("single_tpu", "single_xla", "xla", "xla_debug"),
        ),
        Refusal("TPUs are not supported", "a machine with GPUs"),
    ),
}
"""Class or registered name of a strategy that is refused → why."""


def is_of_ray(part: object) -> bool:
    """Return whether ``part`` is a strategy of Ray's, such as ``RayDDPStrategy``, not of a class derived from one.

    Such a strategy overrides where ranks and the device come from. The Trainer has the same ones: in each worker, Ray
    sets the variables that torchrun sets.
    """
    return type(part).__module__.startswith(_RAY)
