"""The only folder that imports Lightning: module, callbacks, loops, precision, placement and strategies."""
