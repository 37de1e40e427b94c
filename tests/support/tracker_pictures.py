"""The pictures of ``docs/trackers.md``: ``python -m tests.support.tracker_pictures``, or with names of ``PICTURES``.

Needs Chromium, tmux, rich, and the packages of the trackers; asks no other host.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.browser import browser, command
from tests.support.paths import ROOT, SCRIPTS
from tests.support.processes import free_port

BESIDE = Path(sys.executable).parent
IMAGES = ROOT / "docs" / "images"
SIZE = (1280, 800)
"""Pixels of a picture."""


@dataclass(frozen=True)
class Server:
    """How a tracker's own server shows a run.

    Attributes:
        command: The command that starts it, installed beside this Python; the port comes after it.
        page: Returns the address of the run's curves after the host, from the run's folder.
        drawn: JavaScript that is true once the curves are there; empty if they are when the page has loaded.
        tidy: JavaScript that closes what covers them.
    """

    command: tuple[str, ...]
    page: Callable[[Path], str]
    drawn: str = ""
    tidy: str = ""


def _mlflow_page(folder: Path) -> str:
    import mlflow

    runs = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db").search_runs(["0"], order_by=["attributes.start_time"])
    return f"#/experiments/0/runs/{runs[0].info.run_id}/model-metrics?workflowType=machine_learning"


def _aim_page(folder: Path) -> str:
    (run,) = Path(folder, ".aim", "meta", "chunks").iterdir()
    return f"runs/{run.name}/metrics"


SERVERS = {
    "tensorboard": Server(("tensorboard", "--logdir", "out/runs"), lambda folder: "#scalars"),
    "mlflow": Server(
        ("mlflow", "server", "--backend-store-uri", "sqlite:///mlflow.db", "--workers", "1"),
        _mlflow_page,
        "document.querySelectorAll('.js-plotly-plot .main-svg').length > 6",
        "localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false'); location.reload()",
    ),
    "aim": Server(
        ("aim", "up", "--repo", ".", "--host", "127.0.0.1"),
        _aim_page,
        "document.querySelectorAll('svg').length > 3",
        "[...document.querySelectorAll('button')].find(button => button.innerText == 'Skip')?.click()",
    ),
}
VARIABLES = {
    "HF_HUB_OFFLINE": "1", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db", "PYTHONPATH": str(ROOT),
    "WANDB_MODE": "offline", "WANDB__DISABLE_STATS": "true",
}  # fmt: skip


def train_tracked(name: str, folder: Path) -> None:
    """Train a small run in ``folder`` that reports to the tracker ``name``."""
    run = [sys.executable, SCRIPTS / "tracker_run.py", "ours", name, "out"]
    subprocess.run(run, cwd=folder, env={**os.environ, **VARIABLES}, check=True)


def take_server(name: str, folder: Path) -> None:
    """Write what the server of the tracker ``name`` shows of the run in ``folder``."""
    server, port = SERVERS[name], free_port()
    with started(server.command, folder, port):
        address, target = f"http://127.0.0.1:{port}/{server.page(folder)}", IMAGES / f"tracker_{name}.png"
        if not server.drawn:
            still = ["--window-size={},{}".format(*SIZE), "--virtual-time-budget=30000", f"--screenshot={target}"]
            subprocess.run([*command(folder / "browser", *still), address], check=True)
            return
        with browser(folder / "browser") as page:
            page.open(address, server.drawn, SIZE)
            page.run(server.tidy)
            time.sleep(1)
            page.wait(server.drawn)
            page.take(target)


def take_terminal(name: str, folder: Path) -> None:
    """Write what ``wandb leet`` shows in a terminal of the run in ``folder``, without its two side bars."""
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME
    from rich.text import Text

    tmux = ["tmux", "-L", folder.name]
    viewer = f"{BESIDE / 'wandb'} leet wandb/latest-run"
    environment = {**os.environ, **VARIABLES, "HOME": str(folder)}
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "110", "-y", "32", viewer], cwd=folder, env=environment, check=True
    )
    try:
        time.sleep(10)
        for key in "[]":
            subprocess.run([*tmux, "send-keys", key], check=True)
            time.sleep(3)
        shown = subprocess.run([*tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    console = Console(record=True, width=110, file=io.StringIO())
    console.print(Text.from_ansi(shown), end="")
    html = console.export_html(theme=SVG_EXPORT_THEME, inline_styles=True)
    # Braille is wider than a cell in most fonts.
    html = re.sub("[\u2800-\u28ff]", r'<b style="display: inline-block; width: 1ch">\g<0></b>', html)
    (folder / "terminal.html").write_text(html, encoding="utf-8")
    with browser(folder / "browser") as page:
        page.open(f"file://{folder}/terminal.html", "document.readyState == 'complete'", (1110, 640))
        page.take(IMAGES / f"tracker_{name}.png")


PICTURES = {**dict.fromkeys(SERVERS, take_server), "wandb": take_terminal}


@contextmanager
def started(words: tuple[str, ...], folder: Path, port: int) -> Iterator[None]:
    """Context in which the command ``words`` runs in ``folder`` and answers at ``port``."""
    started_as = [BESIDE / words[0], *words[1:], "--port", str(port)]
    server = subprocess.Popen(started_as, cwd=folder, env={**os.environ, **VARIABLES}, start_new_session=True)
    try:
        while not answers(f"http://127.0.0.1:{port}/"):
            if server.poll() is not None:
                raise RuntimeError(f"{words[0]} ended with {server.returncode}")
            time.sleep(0.2)
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # its workers too
        server.wait()


def answers(address: str) -> bool:
    """Return whether a server answers at ``address``."""
    try:
        urllib.request.urlopen(address).close()
    except urllib.error.URLError:
        return False
    return True


if __name__ == "__main__":
    for tracker in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as temporary:
            train_tracked(tracker, Path(temporary))
            PICTURES[tracker](tracker, Path(temporary))
