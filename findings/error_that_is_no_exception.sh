#!/usr/bin/env bash
# An error of a distributed checkpoint passes by `except Exception`.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: What goes wrong in `dcp.save` and `dcp.load`, such as a missing file or key, is raised as a
#            `CheckpointException`, which derives from BaseException. Code that falls back to an older checkpoint, or
#            that logs and goes on, after `except Exception` does neither: the program ends.
# Seen:      a key that the checkpoint lacks, and a file of it that is gone: both errors were no `Exception`.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import pathlib

import torch
import torch.distributed.checkpoint as dcp

dcp.save({"weight": torch.ones(1)}, checkpoint_id="saved")


def error_of(name):
    try:
        dcp.load({name: torch.zeros(1)}, checkpoint_id="saved")
    except Exception:
        return "an Exception"
    except BaseException as error:
        return f"no Exception, but a {type(error).__name__}"
    return "none"


key = error_of("bias")
for file in pathlib.Path("saved").glob("*.distcp"):
    file.unlink()
gone = error_of("weight")
print("a key that is not there:", key)
print("a file that is gone:", gone)
assert key == gone == "no Exception, but a CheckpointException"
PYTHON
