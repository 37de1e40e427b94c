"""Ray Train's classes for Lightning trainers."""

from __future__ import annotations

__all__ = ["is_of_ray"]

_MODULE = "ray.train.lightning"


def is_of_ray(part: object) -> bool:
    """Return whether ``part`` is a strategy of Ray's, such as ``RayDDPStrategy``, not of a class derived from one.

    Such a strategy overrides where ranks and the device come from. The Trainer has the same ones: in each worker, Ray
    sets the variables that torchrun sets.
    """
    return type(part).__module__.startswith(_MODULE)
