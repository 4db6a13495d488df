"""Compiles the C library into wheels and editable installations; ``src/lastbranch/native/build.py`` says how.

A wheel with the library is tagged for its platform and any Python 3; one without it is pure Python.
``LASTBRANCH_NATIVE_PLATFORM`` names another platform tag than this machine's, for cross compilers.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

import packaging.tags
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def this_platform() -> str:
    """What a library runs on that was compiled here. On macOS, Python itself can be made for more than that."""
    return next(packaging.tags.mac_platforms()) if sys.platform == "darwin" else sysconfig.get_platform()


class NativeBuildHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        tag = os.environ.get("LASTBRANCH_NATIVE_PLATFORM") or this_platform()
        tag = tag.replace("-", "_").replace(".", "_")
        platform = "win32" if tag.startswith("win") else "darwin" if tag.startswith("macos") else "linux"
        native = Path(self.root, "src", "lastbranch", "native")
        made = runpy.run_path(str(native / "build.py"))["build"](platform)
        if made is not None:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"
            build_data["artifacts"].append(f"/src/lastbranch/native/{made.name}")
