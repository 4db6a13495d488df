"""The software branch record on AArch64, in a virtual machine: ``make arm64`` (Debian 12, amd64, as any user).

qemu-system-aarch64 boots Debian's kernel for clouds with a file system of Debian's packages, wheels and this checkout.
There `arm64_guest.py` records programs; here their branches are held against complete traces of the same programs:
every instruction that qemu-user executes, in order. The guest has no network. ``--show`` prints what it says.
``--vectors`` writes the truth of `tests/capture/test_aarch64.py` anew instead, which needs no guest.
"""

from __future__ import annotations

import argparse
import base64
import compileall
import gzip
import os
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from arm64_checks import check
from arm64_guest import RUNS
from capture_tools import Trace

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "arm64"
_PACKAGES = (
    "linux-image-cloud-arm64", "python3-minimal", "libpython3-stdlib", "busybox-static", "libstdc++6", "libc6-dev",
    "libgcc-12-dev",
)  # fmt: skip
_WHEELS = ("numpy>=2", "capstone>=5", "click>=8.1", "zstandard>=0.22")
"""Packages that a recording imports."""
_APT = """\
Dir "{0}";
Dir::State "state";
Dir::State::status "{0}/status";
Dir::Cache "cache";
Dir::Etc "etc";
Dir::Etc::sourcelist "sources.list";
APT::Architecture "arm64";
APT::Architectures "arm64";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
"""
_COMPILER = ("clang-19", "--target=aarch64-linux-gnu", "-fuse-ld=lld-19", "-static", "-O1")
_PROGRAMS = {
    "branches": ("tests/programs/branches.c", "-nostdlib", "-ffreestanding"),
    "forms": ("tests/programs/forms_a64.c", "-nostdlib", "-ffreestanding", "-march=armv8.5-a"),
    "threads": ("tests/programs/threads.c", "-pthread"),
    "signals": ("tests/programs/signals.c", "-pthread"),
}
TRACED = {"branches": 3, "forms": 60}
"""Programs without a C library, whose edges are the same on each machine -> rounds after which each edge was taken."""
_SECONDS = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="print all that the guest says")
    parser.add_argument("--vectors", action="store_true", help="write tests/data/aarch64_branches.txt")
    parser.add_argument("--only", default="", help="recordings whose names begin so (of arm64_guest.py)")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    system = packages()
    programs = compiled(system)
    if options.vectors:
        VECTORS.write_text("".join(vectors(programs / "forms")))
        return
    image = BUILD / "initrd"
    write_image(image, system, programs)
    begun = time.monotonic()
    said, files = boot(image, next((system / "boot").glob("vmlinuz-*")), options.only, show=options.show)
    print(f"the guest ran for {time.monotonic() - begun:.0f} s")
    traces = {name: trace(programs / name, rounds) for name, rounds in TRACED.items()}
    outputs = {
        name: printed(programs / program, str(rounds))
        for name, (program, rounds) in RUNS.items()
        if name.startswith(options.only)
    }
    failures = list(check(said, files, traces, outputs, programs))
    for failure in failures:
        print(f"FAILED: {failure}")
    sys.exit(bool(failures))


# -- what the guest is made of


def packages() -> Path:
    """The unpacked packages, from the mirror that this machine's apt uses, without a change of its own state."""
    system = BUILD / "system"
    if (system / "complete").exists():
        return system
    apt, cache = BUILD / "apt", BUILD / "apt" / "cache" / "archives"
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "etc" / "sources.list").write_text(f"deb [signed-by={_KEYS}] {_mirror()} bookworm main\n")
    (apt / "apt.conf").write_text(_APT.format(apt))
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    for words in (["update"], ["install", "--download-only", "--yes", *_PACKAGES]):
        subprocess.run(["apt-get", "-qq", *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(system, ignore_errors=True)
    system.mkdir()
    for package in sorted(cache.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, system], check=True)
    site = system / "site"
    platforms = [f"--platform=manylinux{tag}_aarch64" for tag in ("2014", "_2_17", "_2_27", "_2_28")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", site, "--python-version=3.11", "--no-deps"]
    subprocess.run([*pip, "--only-binary=:all:", *platforms, *_WHEELS], check=True)
    (system / "complete").touch()
    return system


_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def _mirror() -> str:
    """The first of Debian that apt knows here."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)"], capture_output=True, text=True
    )
    found = [line.split()[0] for line in listed.stdout.splitlines() if line.endswith(" bookworm")]
    return found[0] if found else "http://deb.debian.org/debian"


def compiled(system: Path) -> Path:
    """The folder with the programs."""
    folder = BUILD / "programs"
    folder.mkdir(exist_ok=True)
    for name, (source, *flags) in _PROGRAMS.items():
        command = [*_COMPILER, f"--sysroot={system}", *flags, "-o", folder / name, ROOT / source]
        subprocess.run(command, check=True)
    return folder


_WANTED = ("bin/busybox", "lib", "usr/lib/aarch64-linux-gnu", "usr/lib/python3.11", "usr/bin/python3.11", "site")
_NOT = re.compile(
    r"lib/modules|/test/|/tests/|\.a$|\.o$|gcc/|/gconv/|lib2to3|ensurepip|idlelib|/_core/tests|numpy/(f2py|include)"
    r"|view/assets|/perl|san\.so|libdb|libsqlite|/share/"
)


def write_image(image: Path, system: Path, programs: Path) -> None:
    """The initial file system: a cpio archive ("newc")."""
    package = BUILD / "package"
    shutil.rmtree(package, ignore_errors=True)
    ignored = shutil.ignore_patterns("_lastbranch.*", "assets", "__pycache__")
    shutil.copytree(ROOT / "src" / "lastbranch", package / "lastbranch", ignore=ignored)
    for folder in (package, system / "site", system / "usr/lib/python3.11"):
        compileall.compile_dir(folder, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    with open(image, "wb") as out:
        for number, (name, path) in enumerate(_files(system, package, programs), 1):
            _add(out, name, path, number)
        out.write(_header("TRAILER!!!", 0, 0, 1))


def _files(system: Path, package: Path, programs: Path) -> Iterator[tuple[str, Path | None]]:
    """Names in the archive, and the files; ``None`` for a folder."""
    seen = set[str]()
    pairs = [("init", HERE / "arm64_init.sh"), ("guest.py", HERE / "arm64_guest.py")]
    pairs += [(f"programs/{path.name}", path) for path in sorted(programs.iterdir())]
    for root, tops in ((system, _WANTED), (package, ("lastbranch",))):
        for top in tops:
            paths = sorted((root / top).rglob("*")) if (root / top).is_dir() else [root / top]
            for path in paths:
                name = str(path.relative_to(root))
                if (path.is_file() or path.is_symlink()) and not _NOT.search(name):
                    pairs.append((name if root is system else f"site/{name}", path))
    for name in ("proc", "sys", "dev", "tmp"):
        seen.add(name)
        yield name, None
    for name, path in pairs:
        for parent in reversed(Path(name).parents[:-1]):
            if str(parent) not in seen:
                seen.add(str(parent))
                yield str(parent), None
        yield name, path


def _add(out, name: str, path: Path | None, number: int) -> None:  # type: ignore[no-untyped-def]
    if path is None:
        out.write(_header(name, stat.S_IFDIR | 0o755, 0, number))
        return
    link = path.is_symlink()
    data = os.fsencode(os.readlink(path)) if link else path.read_bytes()
    mode = stat.S_IFLNK | 0o777 if link else stat.S_IFREG | 0o755
    out.write(_header(name, mode, len(data), number) + data + bytes(-len(data) % 4))


def _header(name: str, mode: int, size: int, number: int) -> bytes:
    words = (number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % word for word in words) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4)


# -- running it


def boot(image: Path, kernel: Path, only: str, *, show: bool) -> tuple[str, dict[str, bytes]]:
    """The output of the guest, and the files that the guest sends."""
    command = [
        "qemu-system-aarch64",
        "-machine",
        "virt",
        "-cpu",
        "max,pauth-impdef=on",
        "-smp",
        "2",
        "-m",
        "2G",
        "-nographic",
        "-nic",
        "none",
        "-no-reboot",
        "-kernel",
        kernel,
        "-initrd",
        image,
        "-append",
        f"console=ttyAMA0 quiet panic=-1 only={only}",
    ]
    said, files, sending = list[str](), dict[str, bytes](), ""
    text = list[str]()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace"
    ) as guest:
        assert guest.stdout is not None
        end = time.monotonic() + _SECONDS
        for line in guest.stdout:
            line = line.rstrip()
            if sending and line == "-- end of file":
                files[sending], sending, text = gzip.decompress(base64.b64decode("".join(text))), "", []
            elif sending:
                text.append(line)
            elif line.startswith("-- file "):
                sending = line.split()[2]
            else:
                said.append(line)
                if show:
                    print(line, flush=True)
            if time.monotonic() > end:
                guest.kill()
    return "\n".join(said), files


_QEMU = ("qemu-aarch64-static", "-cpu", "max,pauth-impdef=on")


def trace(program: Path, rounds: int) -> Trace:
    """Every instruction that qemu-user executes: with these options each instruction is a block."""
    log = BUILD / f"{program.name}.trace"
    options = ["-singlestep", "-d", "exec,nochain", "-D", log]
    subprocess.run([*_QEMU, *options, program, f"{rounds:06}"], check=True, stdout=subprocess.DEVNULL)
    with open(log) as lines:
        addresses = np.array([int(line.split("/")[1], 16) for line in lines if line.startswith("Trace")], np.int64)
    log.unlink()
    return Trace(addresses, np.full(len(addresses), 4))


VECTORS = ROOT / "tests" / "data" / "aarch64_branches.txt"


def vectors(program: Path) -> Iterator[str]:
    """Each executed branch of ``program``, with the registers before the branch: instruction, its address, address of
    the next executed instruction, then x0 to x30, sp and pstate by their indexes in ptrace's registers; in hex, without
    registers that are 0."""
    log = BUILD / "vectors.trace"
    options = ["-singlestep", "-d", "exec,cpu,nochain", "-D", log]
    subprocess.run([*_QEMU, *options, program, "40"], check=True, stdout=subprocess.DEVNULL)
    states = [
        [int(value, 16) for value in re.findall(r"(?:PC|X\d\d| SP|PSTATE)=([0-9a-f]+)", state)]
        for state in log.read_text().split("Trace 0:")[1:]
    ]
    log.unlink()
    listed = subprocess.run(["llvm-objdump-19", "-d", program], check=True, capture_output=True, text=True).stdout
    words = {int(at, 16): int(word, 16) for at, word in re.findall(r"^ *([0-9a-f]+): ([0-9a-f]{8})", listed, re.M)}
    seen = set[tuple[int, int]]()
    for before, after in pairwise(states):
        word, went = words[before[0]], (before[0], after[0])
        if word & 0x1C000000 == 0x14000000 and went not in seen and word & 0xFFE0001F != 0xD4000001:  # SVC
            seen.add(went)
            ordered = (*before[1:33], 0, before[33])
            registers = " ".join(f"{number:x}={value:x}" for number, value in enumerate(ordered) if value)
            yield f"{word:08x} {before[0]:x} {after[0]:x} {registers}\n"


def printed(program: Path, *words: str) -> str:
    return subprocess.run([*_QEMU, program, *words], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
