"""The sum of the losses since the last log."""

from __future__ import annotations

from torch import Tensor

from hf_compat.errors import ModelError
from hf_compat.optim.divide_scalar import divide_scalar

__all__ = ["LossSum"]


class LossSum:
    """Losses of batches, added up when they are read: together these small operations take half the time.

    Args:
        value: What to begin with, ``()``, where the losses are; None before a run.
        in_float32: Add them up in ``value``'s type; else in that of the losses if it is wider.
    """

    def __init__(self, value: Tensor | None = None, *, in_float32: bool = True) -> None:
        self._value = value
        self._in_float32 = in_float32
        self._added: list[tuple[Tensor, int | None]] = []

    @property
    def value(self) -> Tensor | None:
        """The sum, ``()``; it may be set, or changed in place."""
        if self._added:
            self._add_up()
        return self._value

    @value.setter
    def value(self, value: Tensor | None) -> None:
        self._added.clear()
        self._value = value

    def add(self, loss: Tensor, steps: int | None) -> None:
        """Add the loss of a batch.

        Args:
            loss: ``()``; it must not be written to later.
            steps: If it is NaN or infinite, add the mean of the losses before over so many update steps in its place.
                None: add it whatever it is.

        Raises:
            ModelError: If it is on another device.
        """
        assert self._value is not None, "set as the run begins"
        if self._value.device != loss.device:
            raise ModelError(
                f"Calculated loss must be on the original device: it is on {loss.device}, but training runs on "
                f"{self._value.device}. Return the loss on the device of the inputs."
            )
        self._added.append((loss, steps))

    def _add_up(self) -> None:
        summed = self._value
        assert summed is not None, "set as the run begins"
        for loss, steps in self._added:
            if steps is not None:
                # `where` instead of a branch, which would synchronise with the device. NaN and inf less themselves are
                # NaN, which is not equal to itself: two kernels, where torch.isfinite launches four.
                difference = loss - loss
                loss = loss.where(difference == difference, divide_scalar(summed, steps))
            if self._in_float32:
                summed += loss
            else:
                summed = summed + loss
        self.value = summed
