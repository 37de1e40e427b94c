"""The process of one case: ``python -m tests.gpu.acceptance.case NAME MODULE:FUNCTION FOLDER FAKE``."""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from pathlib import Path

import torch
import transformers

if __name__ == "__main__":
    name, place, folder, fake = sys.argv[1:]
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    module, _, function = place.partition(":")
    work = Path(folder, "work")
    work.mkdir()
    found = getattr(importlib.import_module(module), function)(name, work, small=fake == "True")
    result = {"status": "passed", "gpu": torch.cuda.get_device_name(), "found": found}
    Path(folder, "result.json").write_text(json.dumps(result))
