#!/usr/bin/env bash
# A schedule of skorch that counts batches goes back to its beginning at each `partial_fit` and each resume.
#
# Versions:  skorch 1.4.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: when a training goes on, `LRScheduler` makes the schedule anew, at the number of epochs that there were. With
#            `step_every="batch"` it is to count batches: the rate is that of the third batch after three epochs. One that
#            counts epochs, and multiplies the rate it finds, such as `StepLR`, does so once more each time. Loading a
#            checkpoint with `LoadInitState` does the same. No message says so.
# Seen:      a rate that falls from 1 by a tenth of a percent a batch: after three epochs of 40 batches the next rate is 0.88
#            in an unbroken fit, and 0.997 in a second `partial_fit`; one that is halved each epoch is a sixteenth in the
#            fourth of an unbroken fit, and a thirty-second after a `partial_fit` of three.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install skorch==1.4.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import numpy as np
import torch
from skorch import NeuralNetRegressor
from skorch.callbacks import Callback, LRScheduler

x = np.ones((40, 1), dtype=np.float32)


class Rates(Callback):
    def initialize(self):
        self.of_batches, self.of_epochs = [], []
        return self

    def on_batch_begin(self, net, training=None, **kwargs):
        self.of_batches.append(net.optimizer_.param_groups[0]["lr"])

    def on_epoch_end(self, net, **kwargs):
        self.of_epochs.append(net.optimizer_.param_groups[0]["lr"])


def rates(fits, **schedule):
    """Train six epochs of 40 batches in that many calls, and return the rates of all batches, and after the epochs."""
    net = NeuralNetRegressor(torch.nn.Linear, module__in_features=1, module__out_features=1, max_epochs=6 // fits, lr=1.0,
                             batch_size=1, train_split=None, verbose=0,
                             callbacks=[("schedule", LRScheduler(**schedule)), ("rates", Rates())])
    net.initialize()
    for _ in range(fits):
        net.partial_fit(x, x)
    seen = dict(net.callbacks_)["rates"]
    return seen.of_batches, seen.of_epochs


batches = {"policy": "LambdaLR", "lr_lambda": lambda batch: 1 - batch / 1000, "step_every": "batch"}
whole, parts = rates(1, **batches)[0], rates(2, **batches)[0]
print("rate of the batch after three epochs:", whole[120], "in a second partial_fit:", parts[120])
assert whole[:120] == parts[:120]
assert round(whole[120], 6) == 0.88 and round(parts[120], 6) == 0.997
halves = {"policy": "StepLR", "step_size": 1, "gamma": 0.5}
whole, parts = rates(1, **halves)[1], rates(2, **halves)[1]
print("rate after the fourth epoch:", whole[3], "of a second partial_fit:", parts[3])
assert whole[:3] == parts[:3] == [1 / 2, 1 / 4, 1 / 8]
assert whole[3] == 1 / 16 and parts[3] == 1 / 32
PYTHON
