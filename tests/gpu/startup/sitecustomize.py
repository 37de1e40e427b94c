"""Installs the fake devices as Python starts, in the process that a test starts and in all that this one starts.

``FAKE_GPUS`` is how many there are, ``FAKE_GPU_MEMORY`` the size of each in bytes; ``FAKE_DEVICE_TYPE`` names another
type of device than ``cuda``.
"""

import os

if "FAKE_DEVICE_TYPE" in os.environ:
    from tests.devices import third_party

    third_party.install(os.environ["FAKE_DEVICE_TYPE"], devices=int(os.environ["FAKE_GPUS"]))
elif "FAKE_GPUS" in os.environ:
    from tests.gpu import device

    device.install(int(os.environ["FAKE_GPUS"]), memory=int(os.environ.get("FAKE_GPU_MEMORY", device.DEFAULT_MEMORY)))
