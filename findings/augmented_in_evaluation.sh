#!/usr/bin/env bash
# Augmentations of kornia that are layers of a model augment in `eval()`, too.
#
# Versions:  kornia 0.9.0, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: they are modules, as `torch.nn.Dropout` is, and one may put them before a backbone. They do not look at the mode:
#            a validation, a test and a deployed model see augmented images. No message says so.
# Seen:      a row of four pixels comes back flipped from a model in `eval()`, and with other noise each time; `Dropout` beside
#            them does nothing then.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install kornia==0.9.0 torch==2.13.0
run <<'PYTHON'
import kornia.augmentation as K
import torch

image = torch.arange(4.0).view(1, 1, 1, 4)
flips = torch.nn.Sequential(K.RandomHorizontalFlip(p=1.0), torch.nn.Dropout(0.5)).eval()
noise = K.AugmentationSequential(K.RandomGaussianNoise(p=1.0), data_keys=["input"]).eval()
with torch.no_grad():
    flipped = flips(image).flatten().tolist()
    noisy = [noise(image) for _ in range(2)]
print("flipped:", flipped, "noise:", *(each.flatten().tolist() for each in noisy))
assert flipped == [3, 2, 1, 0]
assert not torch.equal(*noisy) and not torch.equal(noisy[0], image)
PYTHON
