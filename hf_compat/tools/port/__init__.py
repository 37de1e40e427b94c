"""``hf-compat port``: the change of a script's imports, to review or to apply."""

from hf_compat.errors import require_package

require_package("libcst", extra="port", purpose="`hf-compat port`, or `run --dry`,")
