"""`lastbranch fleet agent` as a program: on a service that runs, without one, and by its configuration."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capture_tools import needs_ptrace
from command_line import Ran
from lastbranch.errors import UnavailableError
from lastbranch.fleet.agent import Agent, Settings
from waiting import until

Run = Callable[..., Ran]
EXAMPLES = Path(__file__).parents[2] / "examples" / "fleet"
SERVICE = """
#include <unistd.h>
__attribute__((noinline)) unsigned work(unsigned x) {
  unsigned sum = 0;
  for (unsigned i = 0; i < x % 97 + 3; i++) sum = sum * 31 + (i & x ? i : 7);
  return sum;
}
int main(void) {
  volatile unsigned total = 0;
  for (unsigned i = 1;; i++) {
    total += work(i);
    if (i % 10000 == 0) usleep(2000);
  }
}
"""
KNOWN = (
    "import os, lastbranch.capture as capture; from lastbranch.errors import UnavailableError\n"
    "def unit_called(name):\n"
    "  if name != 'known': raise UnavailableError(f'no unit {name}.service is running')\n"
    "  return capture.NamedProcesses([int(os.environ['SERVICE'])])\n"
    "capture.unit_called = unit_called\n"
    "from lastbranch.cli import main; main()\n"
)
"""``python -c`` this: lastbranch on a host where the unit ``known`` has one process, ``SERVICE`` of the environment."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[int]:
    """The process id of a program that works until it is killed."""
    source, program = tmp_path / "service.c", tmp_path / "service"
    source.write_text(SERVICE)
    subprocess.run(["gcc", "-O1", "-g", "-Wl,--build-id", "-o", program, source], check=True)
    with subprocess.Popen([program]) as process:
        yield process.pid
        process.kill()


@needs_ptrace
def test_a_service_that_runs(run: Run, service: int, tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = [
        "fleet",
        "agent",
        store,
        "--once",
        "--service",
        "known=72",
        "--length",
        "3",
        "--version",
        "7",
        "--engine",
        "software",
        "--duty",
        "50",
        "--spool",
        tmp_path / "spool",
    ]
    command, env = [sys.executable, "-c", KNOWN, *map(str, words)], {**os.environ, "SERVICE": str(service)}

    def reported() -> Ran | None:
        """What is reported, once there was a burst in a recording: on a busy machine not in the first one."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("known: recorded ")
        assert "\nshipped 1 recording, " in done.stderr
        found = run("fleet", "report", store, "--event", "software-lbr", "--format", "json")
        return found if found.code == 0 else None

    found = until(reported, 240)
    assert json.loads(found.out)[0]["function"] == "work"
    assert "known: the counts are 50 times what was recorded" in found.err
    sql = "SELECT DISTINCT service, version, stands_for = 50 * recorded AS fifty FROM captures"
    assert run("fleet", "query", store, sql, "--format", "csv").out.splitlines()[1] == "known,7,True"


def started(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KNOWN, "fleet", "agent", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_it_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """And a service that does not run is said once, not each time."""
    words = ("--service", "other=1800", "--length", "0.1", "--engine", "software", "--spool", tmp_path / "spool")
    with started(tmp_path / "store", *words) as agent:
        assert agent.stderr is not None
        lines = [agent.stderr.readline() for _ in range(2)]
        agent.send_signal(signal.SIGTERM)
        rest = agent.stderr.read()
        code = agent.wait(60)
    if lines[0].startswith("error: the software branch record works on"):
        pytest.skip(lines[0])
    assert lines == [
        f"1 service: 1800 s of each hour by the software engine, to {tmp_path / 'store'}\n",
        "other: not recorded: no unit other.service is running\n",
    ]
    assert rest == "stopped; nothing left to ship\n"
    assert code == 0


def test_without_branch_records_it_says_what_the_other_engine_does(tmp_path: Path) -> None:
    with started(tmp_path / "store", "--once", "--service", "other", "--spool", tmp_path / "spool") as agent:
        assert agent.stderr is not None
        said = agent.stderr.read()
    if "not recorded" in said:
        pytest.skip("this machine has branch records")
    assert agent.returncode == 5
    assert said.endswith(
        "hint: --engine software records without them: it stops the services' threads by ptrace for short bursts\n"
    )
    assert not (tmp_path / "spool").exists()


def test_what_runs_apart_ends_apart() -> None:
    """A process that is killed ends what it did, and not the agent."""
    script = (
        "import os; from lastbranch.fleet.host import Host; from lastbranch.errors import FormatError\n"
        "def fail(): raise FormatError('damaged', file='x', hint='look')\n"
        "host = Host(); print(host.apart(lambda: {'a': 1}))\n"
        "for function in (fail, lambda: os.kill(os.getpid(), 9), lambda: open('/none')):\n"
        "  try: host.apart(function)\n"
        "  except Exception as error: print(type(error).__name__, error, error.hint)\n"
        "host.watch_signals(); os.kill(os.getpid(), 15); host.sleep(100); print(host.stopping)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "{'a': 1}",
        "UnavailableError x: damaged look",
        "UnavailableError the process that did it ended by signal 9: was it out of memory? None",
        "UnavailableError [Errno 2] No such file or directory: '/none' None",
        "True",
    ]


def test_one_agent_uses_a_spool(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path / "store"), str(tmp_path / "spool"))
    first = Agent(settings, dict, lambda service, path, seconds: seconds)
    with pytest.raises(UnavailableError, match="another agent uses this spool"):
        Agent(settings, dict, lambda service, path, seconds: seconds)
    first.close()
    Agent(settings, dict, lambda service, path, seconds: seconds).close()


# -- what is to be recorded


def test_the_plan(run: Run, tmp_path: Path) -> None:
    words = ("fleet", "agent", "--dry-run", "--spool", tmp_path / "spool")
    done = run(*words, "--service", "a", "--service", "x/b.service=9")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()[1:]]
    assert sorted((*row[-2:], *map(float, row[:4])) for row in rows) == [
        ("a", "a", 36, 6, 6, 100),
        ("b", "x/b.service", 9, 6, 1.5, 400),
    ]
    assert not (tmp_path / "spool").exists()
    many = [word for number in range(60) for word in ("--service", f"s{number}=60")]
    said = "note: the services ask for 3600 seconds of each hour: all get less, 1800 together"
    assert said in run(*words, *many).err


def test_a_configuration(run: Run, tmp_path: Path) -> None:
    """Options of the command line come before it."""
    words = ("--dry-run", "--length", "3", "--spool", tmp_path)
    done = run("fleet", "agent", "--config", EXAMPLES / "agent.toml", *words)
    rows = sorted((*line.split()[-2:], *line.split()[:3]) for line in done.out.splitlines()[1:])
    assert rows == [
        ("billing", "billing.service", "3", "12.00", "3.00"),
        ("search", "search.service", "7", "36.00", "3.00"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate = [", "agent.toml: "),
        ("rates = 3", "rates = 3: it is not a setting (duty, engine, event, "),
        ("once = true", "once = True: it is not a setting"),
        ("services = 3", "services. = 3: not a table"),
        ("[services.a]\nrate = '3'", "services.a.rate = '3': keys are unit, rate, length, version"),
        ("[services.a]\nrate = -3", "a: a rate is more than 0 and at most 1800 seconds of an hour"),
        ("rate = 0", "--rate"),
        ("", "Missing argument 'STORE'"),
    ],
)
def test_a_configuration_that_is_wrong(text: str, said: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(text)
    done = run("fleet", "agent", "--config", tmp_path / "agent.toml", "--spool", tmp_path / "spool")
    assert done.code == 2
    assert said in done.err


def test_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    text = (EXAMPLES / "lastbranch-agent.service").read_text()
    assert "/usr/local/bin/lastbranch" in text
    unit = tmp_path / "lastbranch-agent.service"
    unit.write_text(text.replace("/usr/local/bin/lastbranch", sys.executable))
    env = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, env=env)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
