"""Stands in for ``srun`` in a job of two tasks on one node: runs the command as both, and fails if one fails."""

from __future__ import annotations

import os
import subprocess
import sys

KILLS = "--kill-on-bad-exit=1"


def main(words: list[str]) -> int:
    """Return the status of the first task that failed, 0 if none did; with ``KILLS`` the other one is killed."""
    command = [word for word in words if word != KILLS]
    tasks = {}
    for number in ("0", "1"):
        given = {"SLURM_PROCID": number, "SLURM_LOCALID": number, "SLURM_NODEID": "0"}
        task = subprocess.Popen(command, env=os.environ | given)
        tasks[task.pid] = task
    failed = 0
    while tasks:
        ended, raw = os.wait()
        del tasks[ended]
        status = os.waitstatus_to_exitcode(raw)
        failed = failed or (status if status >= 0 else 128 - status)
        if status != 0 and KILLS in words:
            for task in tasks.values():
                task.kill()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
