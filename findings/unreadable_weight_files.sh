#!/usr/bin/env bash
# A distributed checkpoint in files of safetensors that contains a number is written, and cannot be read.
#
# Versions:  torch 2.13.0, safetensors 0.8.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `HuggingFaceStorageWriter` writes what is not a tensor into the same file as it is pickled, and names it in
#            the index, without a message. Neither its reader nor safetensors itself can open such a file.
# Seen:      a tensor alone is loaded; a tensor and `"step": 3` are saved, and a load says "header too large".
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 safetensors==0.8.0 numpy==2.4.6
run <<'PYTHON'
import glob
import logging
import os
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


def load(folder, saved):
    dcp.save(saved, storage_writer=dcp.HuggingFaceStorageWriter(folder))
    (path,) = glob.glob(f"{folder}/*.safetensors")
    print(f"saved {saved}: {os.path.getsize(path)} bytes")
    with safe_open(path, "pt"):
        into = {"weight": torch.zeros(2)}
        dcp.load(into, storage_reader=dcp.HuggingFaceStorageReader(folder))
        return into["weight"].tolist()


assert load("tensors", {"weight": torch.ones(2)}) == [1.0, 1.0]
try:
    print(load("both", {"weight": torch.ones(2), "step": 3}))
    raise SystemExit("it can be read")
except SafetensorError as error:
    print("it cannot be read:", error)
PYTHON
