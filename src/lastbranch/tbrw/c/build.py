"""Compile libtbrw, the TBRW API for C programs, and lay it out as the guide lists its package (1.2).

    python -m lastbranch.tbrw.c.build FOLDER

makes FOLDER/analyzer/bin with libtbrw.so and FOLDER/analyzer/include with the headers. It needs a C compiler (``CC``
names another), and an interpreter with a shared library and its header files. The library is bound to that interpreter.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from ...native.build import BuildError, compiler

__all__ = ["build", "missing"]

HERE = Path(__file__).parent
HEADERS = ("tbrw.h", "tbrw_types.h", "samprec_shared.h")
NAME = "libtbrw.so"
FLAGS = ["-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]


def missing() -> str:
    """Why libtbrw cannot be built here; empty where it can."""
    config = sysconfig.get_config_vars()
    if not sys.platform.startswith("linux"):
        return f"libtbrw is built on Linux, not on {sys.platform}"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"{sys.executable} has no Python.h (package python3-dev)"
    if not config.get("Py_ENABLE_SHARED"):
        return f"{sys.executable} has no shared library: it was built without --enable-shared"
    return "" if compiler() else "no C compiler was found (cc, gcc, clang or ziglang)"


def build(folder: Path) -> Path:
    """Write the library and its headers under ``folder``, and return the library. Raises `BuildError`."""
    if reason := missing():
        raise BuildError(reason)
    config = sysconfig.get_config_vars()
    include, binaries = (folder / "analyzer" / name for name in ("include", "bin"))
    try:
        for made in (include, binaries):
            made.mkdir(parents=True, exist_ok=True)
        for header in HEADERS:
            shutil.copyfile(HERE / header, include / header)
        output = binaries / NAME
        place = config["LIBDIR"]
        words = [
            *compiler(),
            *FLAGS,
            f'-DTBRW_PYTHON="{sys.executable}"',
            f"-I{sysconfig.get_path('include')}",
            f"-Wl,-soname,{NAME}",
            "-o",
            str(output),
            str(HERE / "libtbrw.c"),
            f"-L{place}",
            f"-lpython{config['LDVERSION']}",
            f"-Wl,-rpath,{place}",
            "-ldl",
            "-lpthread",
        ]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"{shlex.join(words)} failed:\n{done.stderr}")
        other = binaries / "libsampling_utils.so"  # programs link with both (guide, table 1)
        other.unlink(missing_ok=True)
        other.symlink_to(NAME)
    except OSError as error:
        raise BuildError(f"{error.filename}: {error.strerror}") from error
    return output


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m lastbranch.tbrw.c.build FOLDER")
    try:
        print(build(Path(sys.argv[1])))
    except BuildError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
