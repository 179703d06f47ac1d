"""Takes the pictures of README and `docs/tutorials`: `python docs/make_screenshots.py KIT`.

KIT is the folder of a kit of a real run; the shipped pictures are of torch-smoke on a machine without a GPU. The
annotated document is a page of ours with the commands that megatron-alpa's findings quote. Chromium runs without a
window and asks no network.
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
DOCUMENT = """# Set up the baseline

```console
git clone -b alpa-osdi22-benchmark https://github.com/zhisbug/Megatron-LM.git
pip install torch==1.8.2
pip3 install -r requirements.txt
pip3 install -e .
git clone https://github.com/NVIDIA/apex
# Comment out the raised RuntimeError in setup.py
pip3 install -v --no-cache-dir --global-option="--cpp_ext" --global-option="--cuda_ext" ./
```
"""
ANNOTATED = ("annotated-document.png", '<div class="group">', 1100, 700)
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


def beginning(html: str, place: str) -> str:
    """The page from that place on; all of it where none is named."""
    body = html.index(">", html.index("<body")) + 1
    return html[:body] + "<main>" + html[html.index(place) :] if place else html


def annotated() -> str:
    """The page that `explain` makes of our document."""
    with tempfile.TemporaryDirectory() as scratch:
        text, page = Path(scratch, "document.md"), Path(scratch, "page.html")
        text.write_text(DOCUMENT, encoding="utf-8")
        command = [sys.executable, "-m", "envbuild", "explain", "megatron-alpa", "--quiet", "--other-text"]
        subprocess.run([*command, "--document", str(text), "--output", str(page)], check=True, capture_output=True)
        return page.read_text(encoding="utf-8")


def main(kit: Path) -> int:
    """All pictures; 1 where one is larger than a page of documentation should carry."""
    PICTURES.mkdir(exist_ok=True)
    html = (kit / "report" / "report.html").read_text(encoding="utf-8")
    for name, (place, width, height) in SHOTS.items():
        shoot(beginning(html, place), PICTURES / name, width, height)
    name, place, width, height = ANNOTATED
    shoot(beginning(annotated(), place), PICTURES / name, width, height)
    large = [name for name in (*SHOTS, ANNOTATED[0]) if (PICTURES / name).stat().st_size > LARGEST]
    sys.stdout.write(f"larger than {LARGEST:,} bytes: {', '.join(large)}\n" if large else "")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
