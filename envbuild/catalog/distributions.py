"""Which distributions bring a module: `distributions.yaml`, and what names have in common."""

from __future__ import annotations

from functools import cache
from typing import Any

from packaging.utils import canonicalize_name

from envbuild import resources
from envbuild.catalog.yaml_load import load_yaml

_ALSO = {
    "cv2": ("opencv-python-headless", "opencv-contrib-python"),
    "faiss": ("faiss-gpu", "faiss-gpu-cu12"),
    "lightning": ("pytorch-lightning",),
    "mmcv": ("mmcv-full", "mmcv-lite"),
    "onnxruntime": ("onnxruntime-gpu",),
    "PIL": ("pillow-simd",),
}


@cache
def load_distributions() -> dict[str, Any]:
    """The tables, read once."""
    data: dict[str, Any] = load_yaml(resources.catalog() / "distributions.yaml")
    return data


def distributions(module: str) -> tuple[str, ...]:
    """Distributions that may bring a module, the likeliest first."""
    named = load_distributions()["modules"].get(module)
    same = str(canonicalize_name(module))
    listed = [str(canonicalize_name(named))] if named else [same]
    return tuple(dict.fromkeys([*listed, *_ALSO.get(module, ()), same, f"py{same}", f"python-{same}"]))
