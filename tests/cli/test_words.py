"""How verbs are found, listed and completed, what they do without arguments, and their manual pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from command_line import Ran
from lastbranch import demo
from lastbranch.cli import VERBS, cli
from small_captures import build

Run = Callable[..., Ran]
ROOT = Path(__file__).parents[2]


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[list[str], click.Command]]:
    """Every verb and subcommand, with the words of its command line."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            at = click.Context(inner, info_name=name, parent=context)
            yield at.command_path.split()[1:], inner
            yield from commands(inner, at)


EVERY = list(commands(cli, click.Context(cli, info_name="lastbranch", **cli.context_settings)))


# -- names


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["repotr"], "report"),
        (["brnaches"], "branches"),
        (["recrod"], "record"),
        (["docter"], "doctor"),
        (["session", "strat"], "start"),
        (["session", "merg"], "merge"),
        (["lbr", "explian"], "explain"),
        (["help", "anotate"], "annotate"),
        (["help", "session", "flsh"], "flush"),
        (["report", "--limt", "3"], "--limit"),
        (["report", "-limit", "3"], "--limit"),
        (["session", "list", "--fromat=csv"], "--format"),
        (["session", "list", "-format=csv"], "--format"),
        (["record", "--perod", "5", "ls"], "--period"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_mistyped_is_answered_with_what_is_alike(words: list[str], meant: str, run: Run) -> None:
    ran = run(*words)
    assert ran.code == 2
    asked = re.split("id you mean|Possible options", ran.err)[1:]
    assert meant in "".join(asked)
    assert re.search(r"No such (command|option)", ran.err)


@pytest.mark.parametrize("words", [["xyzzy"], ["report", "--xyzzy"], ["report", "-z"], ["session", "xyzzy"]])
def test_nothing_is_suggested_for_what_is_like_nothing(words: list[str], run: Run) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert "did you mean" not in ran.err.lower()


@pytest.mark.parametrize("words", [words for words, _ in EVERY], ids=" ".join)
def test_help_of_a_verb_is_that_of_its_option(words: list[str], run: Run) -> None:
    ran = run("help", *words)
    assert ran.code == 0
    assert ran.out == run(*words, "--help").out


def test_help_alone_lists_the_verbs(run: Run) -> None:
    assert run("help").out == run("--help").out
    assert run("help", "report", "module").code == 2


@pytest.mark.parametrize("words", [[], ["session"], ["lbr"]], ids=" ".join)
def test_summaries_are_whole_sentences_of_one_line(words: list[str], run: Run) -> None:
    listed = run(*words, "--help").out.partition("Commands:\n")[2].splitlines()
    inner = [at for at, _ in EVERY if at[: len(words)] == words and len(at) == len(words) + 1]
    assert [line.split()[0] for line in listed] == [at[-1] for at in inner]
    for line in listed:
        assert "..." not in line
        assert line.endswith(".")
        assert len(line) < 80


# -- the capture that is meant where none is named


WITHOUT_FILE = [
    ["info"],
    ["report"],
    ["branches"],
    ["annotate", "prog+0x100"],
    ["callers", "prog+0x100"],
    ["callees", "prog+0x100"],
    ["stacks"],
    ["query", "select count(*) from samples"],
    ["export", "--to", "counts"],
    ["check"],
    ["verify"],
    ["dump"],
]


@pytest.mark.parametrize("words", WITHOUT_FILE, ids=lambda words: words[0])
def test_a_verb_without_file_takes_the_recording_of_this_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    capture = build(tmp_path / "it.data")
    assert run("convert", capture, tmp_path / "lastbranch.tb5").code == 0
    monkeypatch.chdir(tmp_path)
    named = run(words[0], "lastbranch.tb5", *words[1:])
    assert run(*words) == named
    assert named.code != 2 or words[0] in ("annotate", "callers", "callees")  # their functions have no names here


@pytest.mark.parametrize("words", WITHOUT_FILE, ids=lambda words: words[0])
def test_a_verb_without_file_says_so_where_there_is_no_recording(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*words)
    assert ran.code == 2
    assert "there is no lastbranch.tb5 in this folder" in ran.err
    assert "`lastbranch record COMMAND`" in ran.err
    assert "- is standard input" in ran.err


def test_words_of_other_profilers_are_answered_with_ours(tmp_path: Path, run: Run) -> None:
    capture = build(tmp_path / "perf.data")
    assert run(capture).err.endswith(f"No such command '{capture}'. To look at a capture: lastbranch info {capture}\n")
    for words in (["report", "-i", str(capture)], ["dump", "--input", str(capture)]):
        ran = run(*words)
        assert (ran.code, f"A file needs none: lastbranch {words[0]} FILE" in ran.err) == (2, True), ran.err
    assert "A file needs none" not in run("session", "list", "-i").err


@pytest.mark.parametrize("verb", ["annotate", "callers", "callees", "query"])
def test_a_file_alone_lacks_what_is_asked_of_it(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    capture = build(tmp_path / "it.data")
    monkeypatch.chdir(tmp_path)
    missing = "SQL" if verb == "query" else "FUNC"
    for words in ([capture], []):
        ran = run(verb, *words)
        assert ran.code == 2
        assert f"Missing argument '{missing}'" in ran.err
    asked = "SELECT 1" if verb == "query" else "three"  # a wrong statement is refused before a file is opened
    assert "left out: " in (several := run(verb, capture, "two", asked)).err  # the last word is the argument
    assert several.code == (1 if verb == "query" else 2)


# -- report without --by


def test_report_is_by_module_where_nothing_has_a_name(tmp_path: Path, run: Run) -> None:
    capture = build(tmp_path / "it.data")
    ran = run("report", capture)
    assert ran.out == run("report", capture, "--by", "module").out
    assert "note: by module, because no function has a name; --by " in ran.err


def test_report_is_by_function_where_one_has_a_name(run: Run) -> None:
    named = run("report", demo.capture(), "--symfs", demo.symfs(), "--by", "function")
    ran = run("report", demo.capture(), "--symfs", demo.symfs())
    assert ran.out == named.out
    assert ran.err.startswith("note: by function; --by ")


# -- completion


COMPLETED = [
    ("lastbranch rep", {"report"}),
    ("lastbranch session st", {"start", "stop"}),
    ("lastbranch session m", {"merge"}),
    ("lastbranch report --by f", {"function"}),
    ("lastbranch report --sym", {"--symfs", "--symbol-store", "--symbol-backend"}),
    ("lastbranch export --to spee", {"speedscope"}),
    ("lastbranch help anno", {"annotate"}),
    ("lastbranch completion z", {"zsh"}),
    ("lastbranch xyz", set()),
    ("lastbranch record --du", {"--duty", "--duration"}),
    ("lastbranch record ls --du", {"FILES"}),
    ("lastbranch info some", {"FILES"}),
    ("lastbranch export -o some", {"FILES"}),
    ("lastbranch report --symfs some", {"FOLDERS"}),
    ("lastbranch annotate some", {"FILES"}),
]


@pytest.fixture(scope="module")
def on_path(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which a shell finds ``lastbranch``."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "lastbranch").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lastbranch "$@"\n')
    (folder / "lastbranch").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(("line", "offered"), COMPLETED, ids=[line for line, _ in COMPLETED])
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(line: str, offered: set[str], on_path: dict[str, str]) -> None:
    script = (
        "source <(lastbranch completion bash); compopt() { [[ $2 = default ]] && echo FILES || echo FOLDERS; }\n"
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lastbranch_completion lastbranch; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script, "bash", *line.split()], env=on_path, capture_output=True, text=True)
    assert done.stderr == ""
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_can_read(shell: str, run: Run) -> None:
    ran = run("completion", shell)
    assert ran.code == 0
    assert "_LASTBRANCH_COMPLETE" in ran.out
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    assert subprocess.run([shell, "-n"], input=ran.out.encode(), capture_output=True).returncode == 0


# -- manual pages


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, ROOT / "tools" / "manual.py", folder], check=True)
    return folder / "man1"


@pytest.mark.skipif(shutil.which("man") is None or shutil.which("groff") is None, reason="no man")
@pytest.mark.parametrize("verb", VERBS)
def test_a_manual_page_says_what_the_help_says(verb: str, manual: Path) -> None:
    env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MANPAGER": "cat", "GROFF_NO_SGR": "1"}
    page = manual / f"lastbranch-{verb}.1"
    done = subprocess.run(["man", "--warnings=w", "-l", page], env=env, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    shown = re.sub(r".\x08", "", done.stdout).replace("\u2019", "'")
    words = shown.split()
    for at, command in EVERY:
        if at[0] != verb:
            continue
        assert " ".join(["lastbranch", *at]) in " ".join(words)
        for param in command.params:
            assert all(name in words or f"{name}," in words for name in param.opts if name.startswith("-"))
        for sentence in (command.help or "").replace("\b", "").replace("`", "").split("\n\n"):
            assert " ".join(sentence.split()) in " ".join(words)


def test_the_first_manual_page_leads_to_the_others(manual: Path) -> None:
    text = (manual / "lastbranch.1").read_text()
    assert all(f"lastbranch\\-{verb}" in text for verb in VERBS)
    assert {page.name for page in manual.iterdir()} == {"lastbranch.1", *(f"lastbranch-{verb}.1" for verb in VERBS)}
