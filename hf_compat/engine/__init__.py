"""The only folder that imports Lightning: module, callbacks, loops, precision, placement and strategies."""

from hf_compat.engine.internals.light_torchmetrics import execute_when_needed

execute_when_needed()
