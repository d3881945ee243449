"""Hooks of ``mkdocs.yml``: pages beside ``docs`` are part of the site, and links to other files of the repository become text."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", *(f"dev/{path.name}" for path in sorted((ROOT / "dev").glob("*.md"))))
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s:#]+)(#[^()\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for page in PAGES:
        files.append(File.generated(config, page, abs_src_path=str(ROOT / page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrites links, which are relative to the repository there and to the site here."""
    source = page.file.src_uri
    folder = PurePosixPath(source if source in PAGES else f"docs/{source}").parent

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = normpath(str(folder / target))
        if path in PAGES or path.startswith("docs/"):
            here = PurePosixPath(source).parent
            up = "../" * len(here.parts)
            return f"{image}[{text}]({up}{path.removeprefix('docs/')}{anchor or ''})"
        return text if (ROOT / path).exists() else match[0]  # a broken link is left, so that the build fails

    return _LINK.sub(link, markdown)
