"""Files that are written: complete under their names or not there; leftovers of killed programs; full disks."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from capture_tools import needs_ptrace
from command_line import Ran, run_cli
from full_disks import fill, small_disk
from lastbranch import demo
from lastbranch import open as open_profile
from lastbranch.capture import CollectorError, recording
from lastbranch.export.folder import INDEX, writing_folder
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.model.atomic_output import OutputError, PartFile, PartFolder, writing_file

CAPTURE = Path(demo.capture())
HOLD = """
import sys
from lastbranch.model.atomic_output import PartFile, PartFolder
part = {kind}(sys.argv[1])
print(part.path, flush=True)
sys.stdin.read()
"""
"""A program that makes a part and holds it until it is killed, or its input ends."""


@contextmanager
def holding(kind: type, final: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another program that has a part of ``final``."""
    command = [sys.executable, "-c", HOLD.format(kind=kind.__name__), str(final)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        try:
            yield maker, Path(maker.stdout.readline().strip())
        finally:
            maker.kill()


@pytest.mark.parametrize("kind", [PartFile, PartFolder])
def test_a_part_stays_as_long_as_its_maker_lives_and_no_longer(kind: type, tmp_path: Path) -> None:
    final = tmp_path / "out"
    with holding(kind, final) as (maker, part):
        assert part.exists()
        with kind(final) as other:
            assert part.exists()
            assert other.path != str(part)
        maker.send_signal(signal.SIGKILL)
        maker.wait()
        assert part.exists()
        with kind(final):
            assert not part.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [PartFile, PartFolder])
def test_parts_of_one_program_leave_each_other_alone(kind: type, tmp_path: Path) -> None:
    with kind(tmp_path / "out") as one, kind(tmp_path / "out") as other:
        assert os.path.exists(one.path)
        assert os.path.exists(other.path)
        assert one.path != other.path


def test_what_only_looks_like_a_part_stays(tmp_path: Path) -> None:
    names = [
        "out.part-",
        "out.part-0123456789abcde",
        "out.part-0123456789abcdef0",
        "out.part-0123456789ABCDEF",
        "other.part-0123456789abcdef",
        "out.tb5.part-0123456789abcdef",
        "out.part17",
    ]
    for name in names:
        (tmp_path / name).write_text("somebody's")
    os.symlink(tmp_path / "elsewhere", tmp_path / "out.part-fedcba9876543210")
    PartFile(tmp_path / "out").discard()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names, "out.part-fedcba9876543210"])


def test_a_file_appears_whole_and_with_the_rights_that_new_files_have(tmp_path: Path) -> None:
    final = tmp_path / "out"
    final.write_text("older")
    with writing_file(str(final)) as out:
        out.write(b"newer")
        assert final.read_text() == "older"
    assert final.read_text() == "newer"
    (tmp_path / "plain").touch()
    assert final.stat().st_mode == (tmp_path / "plain").stat().st_mode
    with pytest.raises(KeyError), writing_file(str(final)) as out:  # noqa: PT012
        out.write(b"half")
        raise KeyError
    assert final.read_text() == "newer"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "plain"]


# -- names that a killed program of the same process id has left


def _counts(out: Path) -> Ran:
    return run_cli("export", "--to", "counts", "-o", out, CAPTURE)


def _profgen(out: Path) -> Ran:
    return run_cli("export", "--to", "profgen", "--symfs", demo.symfs(), "-o", out, CAPTURE)


WRITERS: dict[str, Callable[[Path], Ran]] = {
    "file": _counts,
    "folder": _profgen,
    "tb5": lambda out: run_cli("convert", CAPTURE, out.with_suffix(".tb5")),
    "etl": lambda out: run_cli("convert", CAPTURE, out.with_suffix(".etl")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_leftovers_of_another_process_with_our_id_are_in_nobodys_way(name: str, tmp_path: Path) -> None:
    """In containers every program is process 1."""
    for ending in ("", ".tb5", ".etl"):
        for kind in ("part", "old", "new"):
            (tmp_path / f"out{ending}.{kind}{os.getpid()}").write_text("of a killed one")
    ran = WRITERS[name](tmp_path / "out")
    assert ran.code == 0, ran.err


@needs_ptrace
def test_a_recording_is_not_lost_to_leftovers(tmp_path: Path) -> None:
    """Of a run that was killed and had the same process id: `exec` keeps it."""
    record = 'exec "$2" -m lastbranch record --engine software -o "$1" true'
    script = f'for k in part old new; do : > "$1.$k$$"; done; {record}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(tmp_path / "it.tb5"), sys.executable], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert open_profile(tmp_path / "it.tb5").processes


# -- folders


def test_a_folder_is_replaced_without_an_instant_of_none(tmp_path: Path) -> None:
    folder, over, missing = tmp_path / "out", threading.Event(), []

    def look() -> None:
        while not over.is_set():
            if not os.path.isfile(folder / INDEX):
                missing.append(1)

    def write(text: str) -> None:
        with writing_folder(str(folder)) as place, place.open(INDEX) as index:
            index.write(text.encode())

    write("0")
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for i in range(1, 300):
            write(str(i))
    finally:
        over.set()
        watcher.join()
    assert (folder / INDEX).read_text() == "299"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert not missing


@pytest.mark.parametrize("fails", [False, True])
def test_a_folder_is_replaced_where_the_system_cannot_exchange(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = tmp_path / "out", os.rename
    folder.mkdir()
    (folder / INDEX).write_text("older")
    monkeypatch.setattr("lastbranch.model.atomic_output._exchange", lambda one, other: False)

    def refused(source: str, target: str) -> None:
        if fails and ".part-" in source:
            raise OSError(5, "no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refused)
    said = pytest.raises(OutputError, match=re.escape(f"{folder}: cannot be written")) if fails else nullcontext()
    with said, writing_folder(str(folder)) as place, place.open(INDEX) as index:
        index.write(b"newer")
    assert (folder / INDEX).read_text() == ("older" if fails else "newer")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_others_put_into_a_folder_meanwhile_stays(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with writing_folder(str(folder)) as place, place.open(INDEX):
        pass
    with pytest.raises(Exception, match="theirs"), writing_folder(str(folder)) as place:
        (folder / "theirs").touch()
    assert (folder / "theirs").exists()


# -- recordings that cannot be written


def spill_of(output: Path) -> PartFile:
    part = PartFile(output)
    part.file.write(CAPTURE.read_bytes())
    return part


def place_of(text: str | None) -> Path:
    """The place of a kept recording, which a message says."""
    found = re.search("the recording is kept in (.*?); ", text or "")
    assert found, text
    return Path(found[1])


@pytest.mark.parametrize("ending", [".tb5", ".etl", ".data"])
@pytest.mark.parametrize("what", ["a folder of that name", "no folder any more", "not foreseen", "interrupted"])
def test_a_recording_that_cannot_be_written_is_kept(
    ending: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    output = tmp_path / "folder" / f"it{ending}"
    output.parent.mkdir()
    raised: dict[str, BaseException] = {"not foreseen": ZeroDivisionError("what"), "interrupted": KeyboardInterrupt()}
    with spill_of(output) as spill:
        if what == "a folder of that name":
            output.mkdir()
        elif what == "no folder any more":
            os.unlink(spill.path)
            output.parent.rmdir()
        else:

            def failing(*_: object) -> None:
                raise raised[what]

            monkeypatch.setattr(recording, "keep_old", failing)
        with pytest.raises(ZeroDivisionError if what == "not foreseen" else CollectorError) as end:
            recording.save(spill, str(output), lambda profile: None)
    told = end.value.__notes__[0] if what == "not foreseen" else end.value.hint  # type: ignore[attr-defined]
    kept = place_of(told)
    assert kept.read_bytes() == CAPTURE.read_bytes()
    assert run_cli("verify", kept).code == 0
    assert not list(tmp_path.glob("**/*.part-*"))


@needs_ptrace
def test_the_place_of_such_a_recording_is_printed(tmp_path: Path) -> None:
    ran = run_cli("record", "--engine", "software", "-o", tmp_path / "it.tb5", "mkdir", tmp_path / "it.tb5", alone=True)
    assert ran.code == 125
    assert f"error: {tmp_path / 'it.tb5'} cannot be written: Is a directory" in ran.err
    kept = place_of(ran.err)
    assert run_cli("convert", kept, tmp_path / "mended.tb5").code == 0
    assert open_profile(tmp_path / "mended.tb5").processes


@needs_ptrace
@pytest.mark.parametrize("output", ["/dev/null", "pipe", "folder"])
def test_what_cannot_be_written_is_known_before_the_program_runs(output: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    ran = run_cli("record", "--engine", "software", "-o", tmp_path / output, "touch", tmp_path / "ran", alone=True)
    assert ran.code == 125
    assert "cannot be replaced" in ran.err
    assert not (tmp_path / "ran").exists()


# -- disks that fill up


LIMIT = 4096


def limited() -> None:
    """As on a full disk: files can be no longer, and writing more is an error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with in.tb5, in.etl, and in.saved with its records: what `tbrw_reader` wrote."""
    folder = tmp_path_factory.mktemp("inputs")
    assert run_cli("convert", CAPTURE, folder / "in.tb5").code == 0
    assert run_cli("convert", CAPTURE, folder / "in.etl").code == 0
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from lastbranch.cli.tbrw_reader import main; main()",
            folder / "in.tb5",
            folder / "in.saved",
        ],
        check=True,
        capture_output=True,
    )
    return folder


PROGRAM = "import sys; from lastbranch.cli{module} import main; sys.argv[0] = {name!r}; main()"
OUTPUTS: dict[str, tuple[str, ...]] = {
    "convert to .tb5": ("convert", "CAPTURE", "out.tb5"),
    "convert to .etl": ("convert", "CAPTURE", "out.etl"),
    "convert .etl": ("convert", "in.etl", "out.etl"),
    "convert .tb5": ("convert", "in.tb5", "out.tb5"),
    "compact": ("compact", "in.tb5"),
    "bind": ("bind", "in.tb5"),
    "export": ("export", "--to", "brstack", "-o", "out.txt", "CAPTURE"),
    "export by way of a temporary file": ("export", "--to", "speedscope", "-o", "out.json", "CAPTURE"),
    "export folder": ("export", "--to", "parquet", "-o", "out", "CAPTURE"),
    "session merge": ("session", "merge", "in.etl", "out.etl"),
    "tbrw_reader": ("tbrw_reader", "--force", "in.tb5", "out.saved"),
    "tbrw_writer": ("tbrw_writer", "in.saved", "out.tb5"),
}


@pytest.fixture(params=["a file that may not grow", "a full disk"])
def crowded(
    request: pytest.FixtureRequest, inputs: Path, tmp_path: Path
) -> Iterator[tuple[Path, Callable[[], None] | None]]:
    """A folder with ``inputs`` in which nothing else has room, and what has to run in a process that writes to it."""
    if request.param == "a file that may not grow":
        yield (tmp_path, limited)
        return
    with small_disk(tmp_path / "disk", "4m") as folder:
        yield (folder, None)


@pytest.mark.parametrize("what", OUTPUTS)
def test_a_full_disk_is_named_and_nothing_half_stays(
    what: str, inputs: Path, crowded: tuple[Path, Callable[[], None] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older file of the name of the output is there afterwards as it was."""
    folder, first = crowded
    verb, *words = OUTPUTS[what]
    if "parquet" in words:
        pytest.importorskip("pyarrow")
    for path in inputs.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    out = next((w for w in words if w.startswith("out")), "in.tb5")
    if "." in out and out != "in.tb5":
        (folder / out).write_bytes(b"older")
        words = [*(word for word in words if word != "--force"), "--force"]
    if first is None:
        fill(folder)
        monkeypatch.setenv("TMPDIR", str(folder))
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    given = [str(CAPTURE) if w == "CAPTURE" else w for w in words]
    module, given = (f".{verb}", given) if verb.startswith("tbrw") else ("", [verb, *given])
    # -B: under the limit Python would leave compiled modules cut short, which break every later run.
    command = [sys.executable, "-B", "-c", PROGRAM.format(module=module, name=verb), *given]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=first)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    said = re.search("^error: (.*)(File too large|No space left on device)", done.stderr, re.M)
    assert said, done.stderr
    assert any(name in said[1] for name in (out, "in.tb5.dat", "a temporary file in ")), done.stderr
    assert done.returncode == 5
    after = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert sorted(after) == sorted(before)
    for name in before.keys() - ({"in.tb5"} if verb == "bind" else set()):
        assert after[name] == before[name], name
    if verb == "bind":
        assert run_cli("verify", folder / "in.tb5").code == 0


def test_a_full_device_is_named(tmp_path: Path) -> None:
    ran = run_cli("export", "--to", "counts", "-o", "/dev/full", CAPTURE)
    assert (ran.code, ran.err) == (5, "error: /dev/full: cannot be written: No space left on device\n")


def test_a_new_tb5_that_has_no_room_for_its_first_bytes_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lastbranch.formats.tb5.writer.write_at", full)
    with pytest.raises(OSError, match="No space"):
        Tb5Writer.create(tmp_path / "out.tb5")
    assert list(tmp_path.iterdir()) == []


# -- what goes where


@pytest.mark.parametrize("form", ["pprof", "gcov"])
def test_binary_output_refuses_a_terminal(form: str) -> None:
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lastbranch", "export", "--to", form, "--binary", "lbrdemo", CAPTURE],
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert f"--to {form} is binary" in done.stderr


@pytest.mark.parametrize("name", ["x.txt", "x.json", "x.tb5.gz", "x.DATA"])
def test_a_recording_is_not_given_a_name_that_says_something_else(name: str, tmp_path: Path) -> None:
    ran = run_cli("record", "-o", tmp_path / name, "touch", tmp_path / "ran")
    assert ran.code == 2
    assert f"{name}: a recording is a TB5" in " ".join(ran.err.split())
    assert list(tmp_path.iterdir()) == []


OLD = b"what was there"
REPLACING = {
    **{what: words for what, words in OUTPUTS.items() if what not in ("compact", "bind")},
    "export a folder of modules": ("export", "--to", "bolt", "--symfs", "SYMFS", "-o", "out", "CAPTURE"),
    "tbrw_reader": ("tbrw_reader", "in.tb5", "out.saved"),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", ["file", "dangling link"])
@pytest.mark.parametrize("what", REPLACING)
def test_what_exists_is_replaced_with_force_only(what: str, kind: str, inputs: Path, tmp_path: Path) -> None:
    verb, *words = REPLACING[what]
    if "parquet" in words:
        pytest.importorskip("pyarrow")
    for path in inputs.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    out = tmp_path / next(w for w in words if w.startswith("out"))
    if out.suffix == "":
        if kind != "file":
            pytest.skip("a folder")
        out.mkdir()
        (out / "index.tsv").write_bytes(OLD)
    elif kind == "file":
        out.write_bytes(OLD)
    else:
        out.symlink_to("nowhere")
    before = contents(tmp_path)
    given = [{"CAPTURE": str(CAPTURE), "SYMFS": demo.symfs()}.get(w, w) for w in words]
    module, given = (f".{verb}", given) if verb.startswith("tbrw") else ("", [verb, *given])
    command = [sys.executable, "-c", PROGRAM.format(module=module, name=verb)]
    refused = subprocess.run([*command, *given], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2, refused.stderr
    assert f"{out.name} exists; --force replaces it" in refused.stderr
    assert contents(tmp_path) == before
    done = subprocess.run([*command, *given, "--force"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = contents(tmp_path)
    assert OLD not in after.values()
    assert {name for name in after if name.startswith("out")} != set()


def test_the_records_beside_a_transfer_file_are_not_replaced_either(inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "in.tb5.dat").write_bytes(OLD)
    program = PROGRAM.format(module=".tbrw_reader", name="tbrw_reader")
    done = subprocess.run(
        [sys.executable, "-c", program, inputs / "in.tb5", tmp_path / "new"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "in.tb5.dat exists; --force replaces it" in done.stderr
    assert contents(tmp_path) == {"in.tb5.dat": OLD}


@pytest.mark.parametrize("name", ["x.txt", "x.data", "x.tb5.gz", "x.json"])
def test_a_capture_is_not_converted_to_a_name_that_says_something_else(name: str, tmp_path: Path) -> None:
    ran = run_cli("convert", "--force", CAPTURE, tmp_path / name)
    assert ran.code == 2
    assert f"{name}: a capture converts to TB5" in " ".join(ran.err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("start",), ("start", "--mode", "newfile"), ("update",), ("flush",)])
def test_a_session_replaces_no_log_unasked(words: tuple[str, ...], tmp_path: Path) -> None:
    verb, *more = words
    (tmp_path / "log_12.etl").write_bytes(OLD)
    name = "log_%d.etl" if more else "log_12.etl"
    ran = run_cli("session", verb, "none-of-this-name", *more, "-o", tmp_path / name)
    assert ran.code == 2
    assert "log_12.etl exists; --force replaces it" in ran.err
    assert contents(tmp_path) == {"log_12.etl": OLD}
