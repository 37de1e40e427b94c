#!/usr/bin/env bash
# Random augmentations of albumentations and MONAI are the same in each worker of a loader, and in each epoch.
#
# Versions:  albumentations 2.0.8, monai 1.6.1, torch 2.13.0, numpy 2.4.6; Python 3.11 on Linux
# Behaviour: a transform of theirs has a random generator of its own, which each worker copies when it is started, and an
#            epoch starts new ones: all of them draw the same numbers, in every epoch. Torch seeds its own generator and
#            those of Python and NumPy in a worker, not these; nor do they follow `seed_everything`. No message says so.
# Seen:      eight images with two workers have four brightnesses, each twice, and the second epoch has those of the first;
#            without workers all sixteen are different. `persistent_workers=True` has other ones in the second epoch, and
#            `set_random_seed` or `set_random_state` in `worker_init_fn` in all.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install albumentations==2.0.8 monai==1.6.1 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import albumentations
import numpy as np
import torch
from monai.transforms import RandScaleIntensity
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Images(Dataset):
    def __init__(self, library):
        self.library = library
        if library == "albumentations":
            self.transform = albumentations.RandomBrightnessContrast(brightness_limit=0.2, contrast_limit=0, p=1)
            self.transform = albumentations.Compose([self.transform])
        else:
            self.transform = RandScaleIntensity(factors=0.5, prob=1)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.library == "albumentations":
            return float(self.transform(image=np.full((2, 2, 3), 0.5, np.float32))["image"].mean())
        return float(self.transform(torch.full((1, 2, 2), 0.5)).mean())


def seed(worker):
    info = get_worker_info()
    if info.dataset.library == "albumentations":
        info.dataset.transform.set_random_seed(info.seed % 2**32)
    else:
        info.dataset.transform.set_random_state(info.seed % 2**32)


def different(library, **settings):
    """The numbers of different images in each of two epochs, and in both."""
    loader = DataLoader(Images(library), batch_size=None, **settings)
    first, second = (set(loader) for _ in range(2))
    return len(first), len(second), len(first | second)


for library in ("albumentations", "MONAI"):
    alone, workers = different(library), different(library, num_workers=2)
    kept = different(library, num_workers=2, persistent_workers=True)
    seeded = different(library, num_workers=2, worker_init_fn=seed)
    print(f"{library}: alone {alone}, two workers {workers}, persistent {kept}, seeded {seeded}")
    assert alone == seeded == (8, 8, 16)
    assert workers == (4, 4, 4) and kept == (4, 4, 8)
PYTHON
