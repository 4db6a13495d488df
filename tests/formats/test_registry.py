"""Every format through its registry, without captures: the packaged one, written in every form that can be written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import lastbranch
import perfdata_writer as pw
from command_line import Ran
from lastbranch import demo
from lastbranch.errors import FormatError
from lastbranch.formats import registry
from lastbranch.formats.registry import FORMATS
from lastbranch.model import Profile


def branches_of(profile: Profile) -> Counter[tuple[str, int, str, int]]:
    """Recorded branches by module name and address."""
    table, out = lastbranch.branches(profile), Counter[tuple[str, int, str, int]]()
    for row in table.rows():
        if row["from_address"] or row["to_address"]:
            out[row["from_module"], row["from_address"], row["to_module"], row["to_address"]] += row["count"]
    return out


def test_the_packaged_capture_against_an_independent_parser() -> None:
    """Raw addresses of all branch entries, as `perfdata_writer` parses the records."""
    parsed = pw.parse(Path(demo.capture()).read_bytes())
    samples = [pw.record_walk(parsed.attrs, record)[0] for record in parsed.records if record.type == 9]
    want = Counter((entry["from"], entry["to"]) for fields in samples for entry in fields["branches"])
    got: Counter[tuple[int, int]] = Counter()
    for batch in lastbranch.open(demo.capture()).batches(columns=["branch_from", "branch_to"]):
        got.update(zip(batch["branch_from"].tolist(), batch["branch_to"].tolist(), strict=True))
    assert got.total() == 3840
    assert got == want


@pytest.mark.parametrize("form", ["capture.tb5", "capture.etl", "capture.txt"])
def test_every_format_has_the_branches_of_the_capture(form: str, tmp_path: Path, run: Callable[..., Ran]) -> None:
    out = tmp_path / form
    if form.endswith(".txt"):
        assert run("export", "--to", "perfscript", demo.capture(), "-o", out).code == 0
    else:
        lastbranch.convert(demo.capture(), out)
    assert branches_of(lastbranch.open(out)) == branches_of(lastbranch.open(demo.capture()))


@pytest.mark.parametrize("found", FORMATS, ids=lambda f: f.name)
def test_functions_of_a_format_exist(found: registry.Format) -> None:
    for where in (found.sniffer, found.opener, found.dumper, found.verifier, found.writer, found.rewriter):
        assert where is None or callable(registry._function(where))


def test_the_hint_for_an_unknown_file_names_every_format(tmp_path: Path) -> None:
    path = tmp_path / "unknown"
    path.write_bytes(b"\x01\x02\x03" * 100)
    with pytest.raises(FormatError) as failure:
        lastbranch.open(path)
    for name in ("perf.data", ".etl", ".tb5", "perf script"):
        assert name in str(failure.value.hint), failure.value.hint
