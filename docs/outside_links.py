"""A hook of mkdocs: a link to a file that is not part of the site names that file after its text.

Such files are those of the repository outside `docs/`, and the pages for developers in `docs/dev/`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!\\)\[([^\]]*)\]\(([^):#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace each link that leads out of the site; a file that is missing is an error."""
    folder = Path(page.file.abs_src_path).parent
    top = Path(__file__).parent

    def with_its_file(link: re.Match[str]) -> str:
        path = (folder / link[2]).resolve()
        if path.is_relative_to(top) and not path.is_relative_to(top / "dev"):
            return link[0]
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {link[2]}")
        name = path.relative_to(top.parent)
        return (
            f"`{name}`"
            if name.name.startswith(link[1].strip("`")) or link[1] == str(name)
            else f"{link[1]} in `{name}`"
        )

    return _LINK.sub(with_its_file, markdown)
