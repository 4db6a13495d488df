"""The long checks of the collector: collectors killed in mid-burst, memory that stays flat, programs with other rights,
programs that are attached to again and again, loops whose branches are the newest of a record equally often.

python tests/tools/fuzz_capture.py [--kills 100] [--seconds 600] [--rights 60] [--attached 100] [--bursts 3000]
    [--seed N]
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from capture_tools import FREESTANDING, build
from lastbranch.capture import recording
from lastbranch.capture.options import Options
from lastbranch.lbr import convert
from lastbranch.model import BRANCH
from lastbranch.opening import open_profile

HERE = Path(__file__).parents[1]
_GROWTH = 4096
"""KiB that the collector may grow by after its first tenth."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Long checks of the collector.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rights", type=int, default=60, help="programs with other rights")
    parser.add_argument("--attached", type=int, default=100, help="attachments to each kind of program")
    parser.add_argument("--bursts", type=int, default=3000, help="records of a loop of three branches")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of those")
    arguments = parser.parse_args()
    killed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(HERE / "capture/test_attach.py"), "-k", "killed"],
        env={**os.environ, "LASTBRANCH_KILLS": str(arguments.kills)},
    )
    return (
        killed.returncode
        or flat(arguments.seconds)
        or rights(arguments.rights, arguments.seed)
        or attached(arguments.attached)
        or phases(arguments.bursts)
    )


_KINDS = {
    "branches": (FREESTANDING, "100000"), "threads": ((),), "timer": ((),), "blocked": ((),), "traps": ((),),
    "crowd": ((), "20", "20000000"), "storm": ((),), "hostile": (FREESTANDING, "20000"),
    "signals urg": ((), "urg", "50"), "signals block": ((), "block", "cont", "50"), "strings": ((), "50"),
}  # fmt: skip
"""Program and mode -> how it is built, and its words."""


def attached(times: int) -> int:
    """Attach to programs of each kind so often: they print what they print alone, and end as they do."""
    with tempfile.TemporaryDirectory() as name:
        for kind, (flags, *words) in _KINDS.items():
            command = [str(build(Path(name), kind.split()[0], *flags)), *words]
            alone = subprocess.run(command, capture_output=True)
            done = 0
            while done < times:
                with subprocess.Popen(command, stdout=subprocess.PIPE) as target:
                    while target.poll() is None and done < times:
                        ours = [sys.executable, "-m", "lastbranch", "record", "--engine", "software", "--no-progress"]
                        options = ["--duty", "30", "--period", "1000000", "--duration", "0.2", "-o", f"{name}/it.data"]
                        subprocess.run([*ours, *options, "-p", str(target.pid)], capture_output=True, timeout=120)
                        done += 1
                    out, _ = target.communicate(timeout=300)
                assert (target.returncode, out) == (alone.returncode, alone.stdout), (kind, target.returncode, out)
    print(f"{len(_KINDS)} kinds of programs, each attached to {times} times")
    return 0


_DEPTHS = (16, 31, 32, 33)
_CHI_SQUARE = 20.0
"""With two degrees of freedom, passed by chance once in 22,000 times."""


def phases(bursts: int) -> int:
    """Record a loop of three branches as rings of several depths: each branch is the newest equally often."""
    every = convert(0x1, "etw", "msr").value  # all branches in user mode
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        program, output = build(Path(name), "phases"), f"{name}/it.data"
        for depth in _DEPTHS:
            newest: Counter[int] = Counter()
            while newest.total() < bursts / len(_DEPTHS):
                options = Options(depth=depth, ring=every, period=1_000_000, duty=0.5, duration=2.0, call_graph="none")
                pid = os.fork()
                if not pid:
                    recording.record([str(program)], options, output, ["fuzz"], lambda sentence: None)
                    os._exit(0)
                os.waitpid(pid, 0)
                for batch in open_profile(output).streams[-1].batches():
                    first, past = batch.offsets[BRANCH][:-1], batch.offsets[BRANCH][1:]
                    assert (past - first).max() <= depth
                    newest.update(batch["branch_from"][first[past > first]].tolist())
            counts = [count for _, count in newest.most_common(3)]
            expected = sum(counts) / 3
            found = sum((count - expected) ** 2 / expected for count in counts)
            worst = max(worst, found)
            print(f"newest of three branches at depth {depth}: {counts}, chi-square {found:.1f}")
    return int(worst > _CHI_SQUARE)


def flat(seconds: float) -> int:
    """Record a program for so long, and look at the collector's memory."""
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name), "branches", *FREESTANDING)
        words = ["record", "--engine", "software", "--no-progress", "--duration", str(seconds), "-o", f"{name}/it.data"]
        command = [sys.executable, "-m", "lastbranch", *words, "--", str(program), "1000000000"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as ours:
            time.sleep(seconds / 10)
            (collector,) = Path(f"/proc/{ours.pid}/task/{ours.pid}/children").read_text().split()
            sizes = []
            while ours.poll() is None and len(sizes) < 100:
                sizes.append(resident(collector))
                time.sleep(seconds * 0.88 / 100)
            for pid in Path(f"/proc/{collector}/task/{collector}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            ours.wait()
    grown = max(sizes) - sizes[0]
    print(f"the collector had {sizes[0]} KiB after a tenth of {seconds:.0f} s, and grew by {grown} KiB")
    return int(grown > _GROWTH)


_NOBODY = 65534
_RIGHTS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    volatile unsigned sum = 0;
    for (int i = 0; i < atoi(words[1]); i++)
        if (i % 3)
            sum += i;
    printf("%d\n", geteuid());
    return fflush(stdout);
}
"""
_RECORDERS = {
    "root": [],
    "root without CAP_SYS_PTRACE": ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"],
    "a user": ["setpriv", "--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups"],
}


def rights(count: int, seed: int) -> int:
    """Record set-user-ID, set-group-ID and unreadable programs, and such with file capabilities, as several users.

    Each program runs with exactly its rights under ptrace; the recording reads; no process stays behind.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        print("programs with other rights: only root can make them, and setpriv (util-linux) is needed")
        return 0
    print(f"programs with other rights: seed {seed}")
    chance = random.Random(seed)
    ours = [sys.executable, "-m", "lastbranch"]
    users = [
        name
        for name, before in _RECORDERS.items()
        if not subprocess.run(
            [*before, *ours, "--version"],
            capture_output=True,
            cwd="/",
        ).returncode
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "out").mkdir()
        (folder / "rights.c").write_text(_RIGHTS)
        subprocess.run(["gcc", "-O1", "-o", folder / "plain", folder / "rights.c"], check=True)
        for number, user in zip(range(count), itertools.cycle(users), strict=False):
            program, output = folder / f"app{number}", folder / "out" / f"{number}.tb5"
            owner, mode = chance.choice((0, _NOBODY)), chance.choice((0o755, 0o4755, 0o2755, 0o6711, 0o4711, 0o711))
            shutil.copyfile(folder / "plain", program)
            os.chown(program, owner, owner)
            program.chmod(mode)
            if chance.random() < 0.2:
                capabilities = struct.pack("<5I", 0x02000001, 1 << chance.randrange(30), 0, 0, 0)
                os.setxattr(program, "security.capability", capabilities)
            os.chown(folder / "out", *[_NOBODY if user == "a user" else 0] * 2)
            command = chance.choice(([], ["sh", "-c", 'exec "$0" "$@"'], ["sh", "-c", '"$0" "$@" & wait']))
            words = [*_RECORDERS[user], *ours, "record", "--engine", "software", "--no-progress", "-o", output, "--"]
            done = subprocess.run(
                [*words, *command, program, str(chance.choice((0, 1_000_000, 20_000_000)))],
                capture_output=True,
                text=True,
                timeout=120,
                cwd="/",
            )
            what = (user, owner, oct(mode), command, done)
            expected = _NOBODY if user == "a user" else owner if mode & 0o4000 else 0
            assert (done.returncode, done.stdout) == (0, f"{expected}\n"), what
            assert "Traceback" not in done.stderr, what
            assert output.stat().st_uid == (_NOBODY if user == "a user" else 0), what
            read = subprocess.run([*ours, "info", output], capture_output=True, text=True, timeout=120)
            assert read.returncode == 0, (what, read)
            left = [pid for pid in os.listdir("/proc") if pid.isdecimal() and _runs(pid, program)]
            assert not left, (what, left)
            output.unlink()
    print(f"{count} programs with other rights, recorded by {', '.join(users)}")
    return 0


def _runs(pid: str, program: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe") == str(program)
    except OSError:
        return False


def resident(pid: str) -> int:
    """KiB of memory, 0 where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("VmRSS:")[2].split()[0]) if "VmRSS:" in text else 0


if __name__ == "__main__":
    sys.exit(main())
