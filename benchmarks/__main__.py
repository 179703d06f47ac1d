"""`python -m benchmarks [NAME ...]`: run all benchmarks, or the named ones."""

from __future__ import annotations

import subprocess
import sys

NAMES = ("startup", "plan", "noop", "conda", "direct", "cold", "deep_verify", "build", "images", "report", "fleet")

if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
