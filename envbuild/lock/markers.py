"""Whether a requirement applies to a variant: by the variant's Python and platform, and nothing of this machine."""

from __future__ import annotations

from packaging.requirements import Requirement


def applies(wanted: Requirement, python: str, platform: str) -> bool:
    """Whether the marker of a requirement, if it has one, holds for CPython `python` (as `3.11`) on a lock platform."""
    return wanted.marker is None or wanted.marker.evaluate(environment(python, platform))


def environment(python: str, platform: str) -> dict[str, str]:
    """The value of every name of markers. Of the Python the first release, as uv takes it."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": platform.removeprefix("linux_"),
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
