"""A process of a recorded run: ``python -m hf_compat.tools.verify.child TASK.json``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hf_compat.tools.run_script import install_here_and_in_children, run_program, script
from hf_compat.tools.verify.recorder import Recorder, record_trainers
from hf_compat.tools.verify.redirecting import Outputs, refuse_writes


def main() -> None:
    """Run the script of a task under the Trainer that it names, recorded."""
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(task["folder"])
    if task["is_ours"]:
        install_here_and_in_children()
    recorder = Recorder(folder, task["steps"])
    protected: list[str] = list(task["protected"])
    copy = os.path.realpath(task["working_directory"])
    Outputs(folder / "outputs", Path(copy), protected).redirect_arguments()
    record_trainers(recorder)
    refuse_writes(protected, [task["folder"], copy])
    failed: str | None = "it did not end"
    try:
        run_program(script(task["script"], task["words"]))
        failed = None
    except SystemExit as ending:
        failed = None if ending.code in (None, 0) else f"exit status {ending.code}"
        raise
    except BaseException as error:
        failed = f"{type(error).__name__}: {error}"
        raise
    finally:
        recorder.close(failed)


if __name__ == "__main__":
    main()
