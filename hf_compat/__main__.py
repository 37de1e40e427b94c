"""``python -m hf_compat`` is the command ``hf-compat``."""

import sys

from hf_compat.cli import main

if __name__ == "__main__":
    sys.exit(main())
