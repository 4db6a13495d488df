"""Release wheels for every platform, compiled by the `ziglang` package, and a trial of those that this machine can run.

    python tests/tools/make_wheels.py --zig .venv-wheels/bin/python [-o dist] [PLATFORM...]

A source distribution is made first, and the wheels from what is in it. Each wheel holds all files of the package and
one library: for its platform, with every function of `native.SIGNATURES`, without debug symbols, and for a glibc no
newer than the tag says.

Then `fuzz_kernels.c` is compiled for the platform, linked to the library of the wheel, and run on the same mutated
input everywhere: x86-64 Linux as it is; arm64 in qemu-user, with Debian's libc6-arm64-cross; musl with Debian's musl;
Windows in wine. Each must print what the first one prints: a digest of all results. At last pip installs the wheel for
this machine, and the source distribution, and the demo's capture is reported with the library and without.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import fuzz_kernels
from lastbranch import native
from lastbranch.native import build

ROOT = Path(__file__).parents[2]
CFLAGS = ["-g0", "-s", "-Werror"]
ROUNDS = "-20"
BINARIES = {".so", ".dll", ".dylib", ".pdb", ".lib", ".o", ".obj", ".a"}


class Target(NamedTuple):
    zig: str  # its name of the platform
    library: str
    machine: tuple[str, int]  # the file format, and the processor's number in this format
    runner: tuple[str, ...] | None = None  # command that runs a program of the platform on x86-64 Linux
    package: str = ""  # Debian's package with the runner


QEMU, MUSL = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"), ("/lib/ld-musl-x86_64.so.1",)
TARGETS = {
    "manylinux_2_17_x86_64": Target("x86_64-linux-gnu.2.17", "_lastbranch.so", ("ELF", 62), ()),
    "manylinux_2_17_aarch64": Target("aarch64-linux-gnu.2.17", "_lastbranch.so", ("ELF", 183), QEMU,
                                     "qemu-user libc6-arm64-cross"),
    "musllinux_1_2_x86_64": Target("x86_64-linux-musl", "_lastbranch.so", ("ELF", 62), MUSL, "musl"),
    "musllinux_1_2_aarch64": Target("aarch64-linux-musl", "_lastbranch.so", ("ELF", 183)),
    "win_amd64": Target("x86_64-windows-gnu", "_lastbranch.dll", ("PE", 0x8664), ("wine",), "wine wine64"),
    "win_arm64": Target("aarch64-windows-gnu", "_lastbranch.dll", ("PE", 0xAA64)),
    "macosx_11_0_x86_64": Target("x86_64-macos.11.0", "_lastbranch.dylib", ("Mach-O", 0x1000007)),
    "macosx_11_0_arm64": Target("aarch64-macos.11.0", "_lastbranch.dylib", ("Mach-O", 0x100000C)),
}  # fmt: skip
"""By the tag of the wheel."""


def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """The output of a command. Ends the program, with all that the command printed, where it fails."""
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **environment}, text=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, words))} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return done.stdout


def machine_of(library: bytes) -> tuple[str, int]:
    """The file format of a library, and which processor its header names."""
    if library[:4] == b"\x7fELF":
        return "ELF", struct.unpack_from("<H", library, 18)[0]
    if library[:2] == b"MZ":
        return "PE", struct.unpack_from("<H", library, struct.unpack_from("<I", library, 60)[0] + 4)[0]
    magic, processor = struct.unpack_from("<II", library)
    return "Mach-O" if magic == 0xFEEDFACF else f"magic {magic:#x}", processor


def faults(wheel: Path, tag: str) -> list[str]:
    """The faults of a wheel of platform ``tag``."""
    target = TARGETS[tag]
    archive = zipfile.ZipFile(wheel)
    expected = f"lastbranch/native/{target.library}"
    names = [name for name in archive.namelist() if "/demo/" not in name]  # which has a program, to be read
    found = [name for name in names if Path(name).suffix in BINARIES]
    if found != [expected]:
        return [f"binaries {found} instead of {expected}"]
    package = ROOT / "src"
    files = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    lost = {name for name in files - {*archive.namelist()} if "__pycache__" not in name and build.NAME not in name}
    library = archive.read(expected)
    lacking = [name for name in native.SIGNATURES if not re.search(rb"\0_?%s\0" % name.encode(), library)]
    glibc = [(int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library)]
    newest = max(glibc, default=(0, 0))
    tagged = re.match(r"manylinux_(\d+)_(\d+)", tag)
    allowed = (int(tagged[1]), int(tagged[2])) if tagged else (0, 0)
    return [
        *([f"lacks the files {sorted(lost)}"] if lost else []),
        *([f"for {machine_of(library)} instead of {target.machine}"] if machine_of(library) != target.machine else []),
        *([f"lacks the functions {lacking}"] if lacking else []),
        *(["has debug symbols"] if b".debug_" in library or b"__DWARF" in library else []),
        *([f"needs glibc {newest}"] if newest > allowed else []),
        *([f"names the folder {ROOT}"] if str(ROOT).encode() in library else []),
    ]


def make_wheel(source: Path, tag: str, zig: list[str], output: Path) -> Path:
    """The wheel for ``tag``, from the unpacked source distribution."""
    command = [*zig, "cc", "-target", TARGETS[tag].zig]
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        output,
        cwd=source,
        CC=shlex.join(command),
        CFLAGS=shlex.join(CFLAGS),
        LASTBRANCH_NATIVE_BUILD="require",
        LASTBRANCH_NATIVE_PLATFORM=tag,
    )
    (wheel,) = output.glob(f"*-{tag}.whl")
    if found := faults(wheel, tag):
        sys.exit(f"{wheel.name} {'; '.join(found)}")
    return wheel


def results_of_kernels(wheel: Path, tag: str, zig: list[str], folder: Path) -> str:
    """The output of the kernels' driver, linked to the library of a wheel; all input is in ``folder``."""
    target = TARGETS[tag]
    assert target.runner is not None
    here = folder / tag
    here.mkdir()
    library = here / target.library
    library.write_bytes(zipfile.ZipFile(wheel).read(f"lastbranch/native/{target.library}"))
    linked, driver = f"./{library.name}", "driver.exe"
    if target.machine[0] == "PE":  # a linker for Windows wants the names of the functions in a file of their own
        linked = "library.lib"
        (here / "library.def").write_text(f"LIBRARY {library.name}\nEXPORTS\n" + "\n".join(native.SIGNATURES))
        run(*zig, "dlltool", "-m", "i386:x86-64", "-d", "library.def", "-l", linked, cwd=here)
    dynamic = ["-dynamic"] if "musl" in tag else []
    flags = [
        *(flag for flag in build.FLAGS if flag != "-shared"),
        *CFLAGS,
    ]  # for others, zig compiles its libraries anew
    files = [f"-I{build.HERE}", "-o", driver, fuzz_kernels.SOURCE, linked]
    run(*zig, "cc", "-target", target.zig, *dynamic, *flags, *files, cwd=here)
    wine = {"WINEDEBUG": "-all", "WINEPREFIX": str(folder / "wine")}
    return run(*target.runner, f"./{driver}", ROUNDS, "1", folder, cwd=here, **wine)


def installed(archive: Path, python: Path, compiled: bool, *options: str) -> list[str]:
    """Install a wheel or source distribution; what the demo's capture counts. Ends the program for another form."""
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *options, archive)
    form = run(python, "-m", "lastbranch", "--version", "-v", cwd=python.parent).splitlines()[-1]
    if ("ABI" in form) != compiled:
        sys.exit(f"{archive.name} uses another form: {form}")
    places = "from lastbranch import demo; print(demo.capture()); print('--symfs'); print(demo.symfs())"
    capture, counts = run(python, "-c", places).split(), {}
    for switch in ("1", "0") if compiled else ("0",):
        verbs = (["report"], ["export", "--to", "counts"])
        counts[switch] = [run(python, "-m", "lastbranch", *verb, *capture, LASTBRANCH_NATIVE=switch) for verb in verbs]
    if counts.get("1", counts["0"]) != counts["0"]:
        sys.exit(f"{archive.name} counts otherwise with LASTBRANCH_NATIVE=1")
    return counts["0"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Release wheels for every platform, and a trial of them.")
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=", ".join(TARGETS))
    parser.add_argument("--zig", type=Path, required=True, help="a Python that has ziglang")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    tags = arguments.platforms or list(TARGETS)
    if unknown := set(tags) - TARGETS.keys():
        parser.error(f"unknown platform {', '.join(unknown)}")
    output, work = arguments.output.absolute(), ROOT / "build" / "wheels"
    zig = [str(arguments.zig.absolute()), "-m", "ziglang"]
    shutil.rmtree(work, ignore_errors=True)
    for old in [*output.glob("lastbranch-*.whl"), *output.glob("lastbranch-*.tar.gz")]:
        old.unlink()
    work.mkdir(parents=True)

    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", output)
    (sdist,) = output.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    source = work / sdist.name.removesuffix(".tar.gz")

    fuzz_kernels.write_seeds(1, work)
    here, expected, wheels = (sys.platform, platform.machine()) == ("linux", "x86_64"), "", {}
    for tag in tags:
        wheels[tag] = wheel = make_wheel(source, tag, zig, output)
        target = TARGETS[tag]
        if not here or target.runner is None:
            trial = "compiled and linked; cannot run here"
        elif target.runner and not shutil.which(target.runner[0]):
            trial = f"compiled and linked; {target.runner[0]} would run it (apt-get install {target.package})"
        else:
            results = results_of_kernels(wheel, tag, zig, work)
            expected = expected or results
            if results != expected:
                sys.exit(f"kernels of {wheel.name} have other results:\n{results}instead of\n{expected}")
            trial = f"kernels run{' by ' + target.runner[0] if target.runner else ''}, with equal results"
        print(f"{wheel.name}  {wheel.stat().st_size:,} bytes  {trial}", flush=True)

    if here and "manylinux_2_17_x86_64" in wheels:
        venv.create(work / "venv", with_pip=True)
        python = work / "venv" / "bin" / "python"
        needed = ROOT / "requirements" / "package.txt"
        run(python, "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", needed)
        counted = installed(wheels["manylinux_2_17_x86_64"], python, True)
        if installed(sdist, python, bool(build.compiler()), "--force-reinstall", "--no-build-isolation") != counted:
            sys.exit(f"{sdist.name} counts otherwise than the wheel")
        print(f"{sdist.name} and the wheel for this machine: installed, and the demo's capture counted")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
