"""``trainer.accelerator``: the members of accelerate's ``Accelerator``, on a Lightning run."""

from hf_compat.accelerator.accelerator import Accelerator

__all__ = ["Accelerator"]
