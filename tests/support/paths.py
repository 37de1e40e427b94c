"""Where things lie, for tests of every folder."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: what makes ``tests`` and ``hf_compat`` importable in a process that a test starts."""
FACTS_FOLDER = ROOT / "tests" / "facts"
SCRIPTS = ROOT / "tests" / "scripts"
