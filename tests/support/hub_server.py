"""A Hub on this machine: an HTTP server that speaks what huggingface_hub says when it makes and fills repositories.

It keeps every commit with its files, tells large files from small ones as the Hub does, knows one token and may be told
to fail. ``local_hub`` points huggingface_hub, and the transformers that is installed, to it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.processes import PATIENCE

OWNER = "tester"
TOKEN = "hf_secret"
LARGE_FILES = (".bin", ".pt", ".pth", ".safetensors")


@dataclass
class Commit:
    """One commit: where to, what it says, who made it, its files by their paths."""

    repo: str
    revision: str
    message: str
    token: str | None
    files: dict[str, bytes]


@dataclass
class Hub:
    """What the server has been told.

    Attributes:
        repos: What was asked for when each repository was made.
        branches: The branches of each repository.
        tags: The tags that a model's page shows, by its name.
        requests: Every request: method and path.
        fails: Called with method and path: a status to answer with instead, or None.
        gate: Commits are made only while it is set.
    """

    url: str = ""
    repos: dict[str, dict[str, Any]] = field(default_factory=dict)
    branches: dict[str, set[str]] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)
    fails: Callable[[str, str], int | None] = lambda method, path: None
    gate: threading.Event = field(default_factory=threading.Event)
    blobs: dict[str, bytes] = field(default_factory=dict)
    stop: Callable[[], None] = lambda: None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet: two would wait for one another
    disable_nagle_algorithm = True
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Write no lines to stderr."""

    @property
    def token(self) -> str | None:
        header = self.headers.get("Authorization")
        return None if header is None else header.removeprefix("Bearer ")

    def answer(self, body: Any, status: int = 200, **headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def respond(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = self.path.partition("?")[0]
        self.hub.requests.append((self.command, path))
        self.hub.agents.add(self.headers.get("User-Agent", ""))
        status = self.hub.fails(self.command, path)
        if status is not None:
            self.answer({"error": f"told to fail at {path}"}, status)
            return
        if path.startswith("/blobs/"):
            self.hub.blobs[path.rsplit("/", 1)[1]] = body
            self.answer({})
            return
        if path == "/api/validate-yaml":
            self.answer({"warnings": [], "errors": []})
            return
        if self.command == "GET":
            self.answer({"id": path, "tags": self.hub.tags.get(path.removeprefix("/api/models/"), []), "siblings": []})
            return
        if self.token != TOKEN:
            self.answer({"error": "Invalid user token."}, 401)
            return
        self.write(path, body)

    do_GET = do_POST = do_PUT = respond  # noqa: N815 - names that http.server calls

    def write(self, path: str, body: bytes) -> None:
        if path == "/api/repos/create":
            self.create(json.loads(body))
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.offer(json.loads(body))
        else:
            _, _, _, owner, name, action, revision = path.split("/")
            repo = f"{owner}/{name}"
            if revision not in self.hub.branches.get(repo, ()):
                self.answer({"error": "Invalid rev id"}, 404, X_Error_Code="RevisionNotFound")
            elif action == "preupload":
                self.sort_files(json.loads(body))
            else:
                self.hub.gate.wait(PATIENCE)
                self.commit(repo, revision, [json.loads(line) for line in body.splitlines()])

    def create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked.get('organization') or OWNER}/{asked['name']}"
        exists = repo in self.hub.repos
        self.hub.repos.setdefault(repo, asked)
        self.hub.branches.setdefault(repo, {"main"})
        self.answer({"url": f"{self.hub.url}/{repo}", "name": repo, "id": repo}, 409 if exists else 200)

    def sort_files(self, asked: dict[str, Any]) -> None:
        modes = {True: "lfs", False: "regular"}
        files = [
            {"path": file["path"], "uploadMode": modes[file["path"].endswith(LARGE_FILES)], "shouldIgnore": False}
            for file in asked["files"]
        ]
        self.answer({"files": files})

    def offer(self, asked: dict[str, Any]) -> None:
        objects = [
            {**item, "actions": {"upload": {"href": f"{self.hub.url}/blobs/{item['oid']}"}}}
            for item in asked["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def commit(self, repo: str, revision: str, lines: list[dict[str, Any]]) -> None:
        files = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
        self.hub.commits.append(Commit(repo, revision, lines[0]["value"]["summary"], self.token, files))
        oid = f"{len(self.hub.commits):040x}"
        self.answer({"commitUrl": f"{self.hub.url}/{repo}/commit/{oid}", "commitOid": oid})


@contextlib.contextmanager
def running() -> Iterator[Hub]:
    """Yield a Hub that answers until the block ends."""
    hub = Hub()
    hub.gate.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def stop() -> None:
        if thread.is_alive():
            server.shutdown()
            server.server_close()
            thread.join()

    hub.stop = stop
    try:
        yield hub
    finally:
        hub.gate.set()
        stop()


@pytest.fixture
def local_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running Hub that huggingface_hub talks to, without waiting before it tries again."""
    import huggingface_hub
    from huggingface_hub import constants, hf_api
    from huggingface_hub.utils import _http

    forget_sessions = getattr(_http, "close_session", None) or _http.reset_sessions
    with running() as hub:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(hf_api.api, "endpoint", hub.url)
        monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None}))
        transformers_hub = sys.modules.get("transformers.utils.hub")
        if hasattr(transformers_hub, "_hf_api"):
            monkeypatch.setattr(transformers_hub, "_hf_api", huggingface_hub.HfApi(endpoint=hub.url))
        forget_sessions()
        yield hub
    forget_sessions()
