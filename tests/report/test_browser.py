"""The pages in a real browser: nothing overflows, and no request leaves."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest

from envbuild.catalog.loader import load_stack
from envbuild.explain.page import render_page
from envbuild.explain.view import explain
from envbuild.report.render import render_html
from tests.explain.test_page import TEXT
from tests.report.samples import fleet
from tests.report.test_render import failing_fleet, hostile
from tests.support.programs import completed

CHROMIUM = shutil.which("chromium")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]  # fmt: skip
# What reaches beyond the window, and is in no region of its own that scrolls.
ASK = """<script>
const wide = document.documentElement.clientWidth, out = [];
for (const each of document.body.querySelectorAll("*"))
  if (!each.closest(".scroll, .diff, thead, title") && each.getBoundingClientRect().right > wide + 1)
    out.push(each.tagName + "." + each.getAttribute("class") + ": " + each.textContent.slice(0, 40));
const page = document.documentElement.scrollWidth;
frameElement.title = JSON.stringify({wide, over: out.slice(0, 5), page});
</script></body>"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]


def ask(tmp_path: Path, html: str, *options: str) -> str:
    page = tmp_path / "page.html"
    page.write_text(html)
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *options, page.as_uri()]
    return completed(command, timeout=180, check=True).stdout


def test_nothing_overflows(tmp_path: Path) -> None:
    document = render_page(explain(load_stack("opt-175b").stack, "exact"), TEXT)
    pages = [render_html(run) for run in (fleet(), failing_fleet(), hostile())]
    pages.append(document)
    frames = {f"{index} at {width}": width for index in range(len(pages)) for width in (1280, 800, 400)}
    for index, html in enumerate(pages):
        inner = re.sub(r"<meta http-equiv[^>]*>", "", html).replace("</body>", ASK)
        (tmp_path / f"{index}.html").write_text(inner)
    # Frames, as a window of Chromium is never narrower than 500 pixels, in one Chromium: its start takes longest.
    frame = '<iframe name="{0}" src="{1}.html" style="width:{2}px;height:900px;border:0"></iframe>'
    outer = "".join(frame.format(name, name.partition(" ")[0], width) for name, width in frames.items())
    options = ("--allow-file-access-from-files", "--dump-dom", "--virtual-time-budget=5000")
    said = ask(tmp_path, f"<body>{outer}", *options)
    found = dict(re.findall(r'<iframe name="([^"]*)"[^>]* title="([^"]*)"', said))
    assert found.keys() == frames.keys()
    for name, width in frames.items():
        told_there = json.loads(unescape(found[name]))
        assert told_there["wide"] == width, name
        assert told_there["over"] == [], name
        assert told_there["page"] <= width, name


def asked_for(tmp_path: Path, html: str) -> set[str]:
    """Addresses that were asked for, without the browser's own."""
    log = tmp_path / "net.json"
    ask(tmp_path, html, f"--log-net-log={log}", f"--print-to-pdf={tmp_path / 'page.pdf'}")
    found = set(re.findall(r'"url":"((?!file:|data:|chrome)[a-z]+:[^"]*)', log.read_text()))
    return {url for url in found if not re.match(r"https?://[a-z0-9.-]+\.(google|googleapis)\.com/", url)}


def test_no_request_leaves_and_it_prints(tmp_path: Path) -> None:
    canary = "http://canary.invalid/x.png"
    assert asked_for(tmp_path, f"<img src={canary}>") == {canary}, "this test would see one"
    assert asked_for(tmp_path, render_html(fleet(64))) == set()
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 5 < len(re.findall(rb"/Type\s*/Page\b", printed)) < 20, "64 nodes on which nothing failed fill no book"
