"""The parts of the package's metadata that depend on where it is built: addresses of the repository, absolute links."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?<=\]\()(?!https?://|#)([^)\s]+)(?=\))")


class Repository(MetadataHookInterface):
    """Fills in ``urls`` and ``readme``.

    A workflow of GitHub has the address of its repository in variables, so that no copy of the project names another's.
    Elsewhere there are no ``urls``, and the README stays as it is.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both fields of ``metadata``."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {}
        name = os.environ.get("GITHUB_REPOSITORY", "")
        if name:
            address = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
            owner, _, project = name.partition("/")
            metadata["urls"] = {
                "Documentation": f"https://{owner.lower()}.github.io/{project}/",
                "Source": address,
                "Issues": f"{address}/issues",
                "Changelog": f"{address}/blob/v{metadata['version']}/CHANGELOG.md",
            }
            text = _LINK.sub(lambda link: _absolute(link[1], address, metadata["version"]), text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _absolute(link: str, address: str, version: str) -> str:
    """Return ``link``, as it stands in the README, so that it leads there from a page of the package index."""
    if link.startswith("../../"):
        return f"{address}/{link.removeprefix('../../')}"
    return f"{address}/{'raw' if link.endswith(('.png', '.svg')) else 'blob'}/v{version}/{link}"
