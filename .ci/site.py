"""A hook of mkdocs: the contributing guide and the changelog as pages of the site, and links to examples."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
SCRIPT = re.compile(r"`(examples/\w+\.py)`")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


def in_repository(path: str, config: MkDocsConfig) -> str | None:
    """Return the address of a file of the repository; None if the site does not know where that is."""
    return f"{config.repo_url.rstrip('/')}/blob/main/{path}" if config.repo_url else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, with links that lead to pages of the site where there is one, otherwise into the repository."""
    root = Path(config.config_file_path).parent

    def linked(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        page = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        page = page or in_repository(target, config)
        return text if page is None else f"[{text}]({page})"

    for source, page in PAGES.items():
        content = LINK.sub(linked, (root / source).read_text(encoding="utf-8"))
        file = File.generated(config, page, content=content)
        file.edit_uri = f"../{source}"
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with each script of an example as a link into the repository."""

    def linked(found: re.Match[str]) -> str:
        address = in_repository(found[1], config)
        return found[0] if address is None else f"[{found[0]}]({address})"

    return SCRIPT.sub(linked, markdown)
