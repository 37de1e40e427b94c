"""The script in which :func:`tests.gpu.harness.run_on_gpu` calls a function; its word is the folder of the call."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    function, given, named = pickle.loads((folder / "call.pickle").read_bytes())
    value = function(*given, **named)
    (folder / f"value.{os.environ.get('RANK', '0')}").write_bytes(pickle.dumps(value))
