"""What an extension needs to be imported, and whether torch is imported for it."""

import sys
import venv
from pathlib import Path

import pytest

from envbuild.node.build import import_check

MODULES = {
    "torch.py": "",
    "alone.py": "import sys\nassert 'torch' not in sys.modules\n",
    "linked.py": "LIBRARY = 'libtorch_cpu.so'\nimport sys\nassert 'torch' in sys.modules\n",
    "late.py": "import sys\nif 'torch' not in sys.modules:\n    raise ImportError('libcudart.so.12: cannot open')\n",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    top = tmp_path_factory.mktemp("environment")
    venv.create(top, symlinks=True)
    site = top / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name, text in MODULES.items():
        Path(site, name).write_text(text)
    return str(top / "bin" / "python")


@pytest.mark.parametrize("names", [["alone", "linked"], ["late"]])
def test_torch_is_imported_before_what_needs_it_and_only_then(python: str, names: list[str]) -> None:
    assert import_check.check(python, "own", names, {}) == {"imported": names, "libraries": [], "unchecked": {}}
