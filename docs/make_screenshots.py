"""Takes the pictures of `docs/tutorials/review-a-kit.md`: `python docs/make_screenshots.py KIT`.

KIT is the folder of a kit of a real run; the shipped pictures are of torch-smoke on a machine without a GPU. Chromium
runs without a window and asks no network.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PICTURES = Path(__file__).parent / "tutorials" / "pictures"
LARGEST = 150_000
# What a reader sees first, and what nobody checked: by picture the place on the page where it begins, width and height.
SHOTS = {
    "report-first-screen.png": ("", 1100, 760),
    "report-not-checked.png": ('<h2 id="unchecked">', 1100, 300),
}
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--disable-background-networking", "--disable-sync", "--disable-component-update"]  # fmt: skip


def shoot(html: str, picture: Path, width: int, height: int) -> None:
    """One picture of a page."""
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "page.html")
        page.write_text(html, encoding="utf-8")
        command = ["chromium", *QUIET, f"--user-data-dir={scratch}/profile", f"--window-size={width},{height}"]
        command += [f"--screenshot={picture.absolute()}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=180)


def main(kit: Path) -> int:
    """All pictures; 1 where one is larger than a page of documentation should carry."""
    PICTURES.mkdir(exist_ok=True)
    html = (kit / "report" / "report.html").read_text(encoding="utf-8")
    for name, (place, width, height) in SHOTS.items():
        body = html.index(">", html.index("<body")) + 1
        shown = html[:body] + "<main>" + html[html.index(place) :] if place else html
        shoot(shown, PICTURES / name, width, height)
    large = [name for name in SHOTS if (PICTURES / name).stat().st_size > LARGEST]
    sys.stdout.write(f"larger than {LARGEST:,} bytes: {', '.join(large)}\n" if large else "")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
