"""What is imported up to the first update step: what a run needs, and no more."""

import json
import sys

from tests.support.paths import SCRIPTS
from tests.support.processes import finish, start

NEEDED = {"hf_compat", "lightning", "safetensors", "torch", "tqdm"}
FOR_TORCH = {"mpmath", "numpy", "sympy", "torchgen", "typing_extensions", "dill", "cuda", "triton"}
"""The last two with a build for GPUs."""
FOR_LIGHTNING = {"fsspec", "lightning_utilities", "packaging", "rich", "torchmetrics", "yaml"}
WHERE_INSTALLED = {
    # Its process-wide state is set up like the run.
    *("accelerate", "certifi", "filelock", "huggingface_hub", "idna", "psutil", "urllib3"),
    # torchmetrics' plots.
    *("PIL", "colorama", "cycler", "dateutil", "fontTools", "kiwisolver", "matplotlib", "mpl_toolkits", "pyparsing"),
    *("scienceplots", "six"),
    # Of torch, Lightning or rich.
    *("attr", "attrs", "charset_normalizer", "google", "ipywidgets", "markdown_it", "mdurl", "pygments", "requests"),
}
STARTED_WITH = {"tests", "__main__", "__mp_main__", "sitecustomize"}
"""The script, and what Python itself loads when it starts, by files that packages put beside them."""
MOST = {"hf_compat": 300, "torchmetrics": 20}
"""How many modules of a package are loaded at the most; all of torchmetrics' would be 274."""


def test_what_is_loaded_at_the_first_update_step(tmp_path):
    """Neither torchmetrics as a whole, nor transformers, datasets, tensorboard, jsonargparse or what they bring."""
    (ended,) = finish([start([sys.executable, SCRIPTS / "first_step_script.py", tmp_path])])
    assert ended.code == 0, ended.output
    (line,) = (line for line in ended.output.splitlines() if line.startswith("["))
    modules = json.loads(line)
    packages = {name.partition(".")[0] for name in modules}
    # Such as `_distutils_hack`, `_cython_3_1_4`, `_sysconfigdata__linux_x86_64-linux-gnu` and `cython_runtime`.
    others = {name for name in packages - set(sys.stdlib_module_names) if not name.startswith(("_", "cython"))}
    assert others - STARTED_WITH - NEEDED - FOR_TORCH - FOR_LIGHTNING - WHERE_INSTALLED == set()
    for package, most in MOST.items():
        assert sum(name.partition(".")[0] == package for name in modules) <= most
