"""Installs the fake GPUs as Python starts, in the process that a test starts and in all that this one starts.

``FAKE_GPUS`` is how many there are, ``FAKE_GPU_MEMORY`` the size of each in bytes.
"""

import os

from tests.gpu import device

if "FAKE_GPUS" in os.environ:
    device.install(int(os.environ["FAKE_GPUS"]), memory=int(os.environ.get("FAKE_GPU_MEMORY", device.DEFAULT_MEMORY)))
