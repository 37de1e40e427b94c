"""The picture of ``docs/trackers.md``: ``python -m tests.support.tracker_pictures``, where Chromium is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.paths import ROOT, SCRIPTS
from tests.support.processes import PATIENCE, free_port

PICTURE = ROOT / "docs" / "images" / "tracker_tensorboard.png"
CHROMIUM = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--window-size=1280,800",
    "--virtual-time-budget=30000",
)  # fmt: skip


def take(target: Path) -> None:
    """Train a small run, and write what TensorBoard shows of it to ``target``, a PNG file."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        run = [sys.executable, SCRIPTS / "tracker_run.py", "ours", "tensorboard", "out"]
        subprocess.run(run, cwd=folder, env=environment, check=True)
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", "out/runs", "--port", str(port)]
        server = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
        try:
            page = f"http://127.0.0.1:{port}/"
            wait_for(page)
            browser = [shutil.which("chromium") or "chromium", *CHROMIUM, f"--user-data-dir={folder / 'browser'}"]
            subprocess.run([*browser, f"--screenshot={target}", f"{page}#scalars"], check=True)
        finally:
            os.killpg(server.pid, signal.SIGTERM)  # its workers too
            server.wait()


def wait_for(address: str) -> None:
    """Return when the server at ``address`` answers."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address):
                return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise TimeoutError(f"no server answers at {address}")


if __name__ == "__main__":
    take(PICTURE)
