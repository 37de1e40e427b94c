"""A headless Chromium that takes a picture of a page once the page says that it is drawn."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # pages that ask other hosts get no answer, at once
)  # fmt: skip
MOST_SECONDS = 60
"""How long a page may take until it is drawn."""


def command(folder: Path, *options: str) -> list[str]:
    """Return the command that starts Chromium with a profile in ``folder``."""
    return [shutil.which("chromium") or "chromium", *OPTIONS, f"--user-data-dir={folder}", *options]


class Page:
    """A page of a browser, by its debugging protocol: JSON messages with a zero byte after each, over two pipes.

    Chromium's own ``--screenshot`` takes the picture when a page has loaded; most have not asked for curves by then.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._sent, self._arrived, self._session = 0, b"", {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def open(self, address: str, drawn: str, size: tuple[int, int]) -> None:
        """Go to ``address`` in a window of ``size`` pixels, and wait until the JavaScript ``drawn`` is true."""
        width, height = size
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=address)
        self.wait(drawn)

    def wait(self, drawn: str) -> None:
        """Wait until the JavaScript ``drawn`` is true, and for what fades in."""
        end = time.monotonic() + MOST_SECONDS
        while not self.run(drawn):
            if time.monotonic() > end:
                raise TimeoutError(f"the page never was {drawn}")
            time.sleep(0.2)
        time.sleep(5)

    def run(self, script: str) -> Any:
        """Return what the JavaScript ``script`` is worth."""
        return self._call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def take(self, target: Path) -> None:
        """Write what is seen to ``target``, a PNG file."""
        target.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **params: Any) -> Any:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._arrived:
                arrived = os.read(self._answers, 65536)
                assert arrived, "the browser has ended"
                self._arrived += arrived
            text, _, self._arrived = self._arrived.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._sent:  # the others are events
                return answer["result"]


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Context with an empty page of a Chromium whose profile is in ``folder``."""
    theirs, commands = os.pipe()
    answers, ours = os.pipe()
    # It reads commands from descriptor 3 and writes answers to 4.
    script = f'exec "$0" "$@" 3<&{theirs} 4>&{ours}'
    with subprocess.Popen(
        ["bash", "-c", script, *command(folder, "--remote-debugging-pipe")],
        pass_fds=(theirs, ours),
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        os.close(ours)
        try:
            yield Page(commands, answers)
        finally:
            process.terminate()
            os.close(commands)
            os.close(answers)
