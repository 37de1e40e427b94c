"""Runs when Python starts with this folder on its path: see ``hf_compat/installing/children.py``."""

import sys

try:
    from hf_compat.installing.children import start_child
except ImportError as error:
    sys.stderr.write(f"hf_compat is not active in this process: {sys.executable} cannot import it: {error}\n")
else:
    start_child()
