"""A hook of mkdocs: a link to a file of the repository outside `docs/` names that file after its text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!\\)\[([^\]]*)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace each link that leads out of `docs/`; a file that is missing is an error."""
    here = Path(page.file.abs_src_path).parent
    top = Path(__file__).parent

    def named(found: re.Match[str]) -> str:
        path = (here / found[2]).resolve()
        if path.is_relative_to(top):
            return found[0]
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {found[2]}")
        name = path.relative_to(top.parent)
        return f"`{name}`" if found[1].strip("`") in (name.stem, str(name)) else f"{found[1]} in `{name}`"

    return _LINK.sub(named, markdown)
