"""The programs of bench_truth.py: real ones where they are installed, and two of our own.

Each does the same work a given number of times, so that one pass is the truth of all. Their inputs are the standard
library's sources of the running Python, and two of our own. The recorder and the estimator were tuned with the first
ten programs; the other five were chosen after the tuning."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Program", "programs"]

_SQL = """
create table t(k integer primary key, a integer, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 30000)
insert into t select i, (i * 7919) % 10007, 'row ' || (i * 104729) % 99991 from n;
create index ia on t(a);
select count(*), sum(x.a), max(y.b) from t x join t y on x.k = y.a where x.b < y.b;
select a % 97 g, count(*), avg(k), min(b) from t group by g order by 2 desc, 1 limit 3;
select count(*) from t where b like '%9_9%';
update t set b = upper(b) || a where a % 3 = 0;
delete from t where k in (select k from t order by b limit 9000);
drop table t;
"""
_PYTHON = """
import sys

class Node:
    def __init__(self, key): self.key, self.left, self.right = key, None, None

def insert(node, key):
    if node is None: return Node(key)
    if key < node.key: node.left = insert(node.left, key)
    else: node.right = insert(node.right, key)
    return node

def work():
    state, root, words = 12345, None, {}
    for i in range(9000):
        state = state * 1103515245 + 12345 & 0x7fffffff
        root = insert(root, state % 100003)
        word = "%x" % (state >> 16)
        words[word] = words.get(word, 0) + 1
    text = " ".join(sorted(words, key=lambda w: (words[w], w)))
    count = sum(1 for c in text if c in "abc")
    table = [[i * j % 17 for j in range(60)] for i in range(60)]
    return count + sum(sum(a * b for a, b in zip(row, column)) for row in table for column in zip(*table))

for _ in range(int(sys.argv[1])): work()
"""
_PERL = """
my ($times, $file) = @ARGV;
open(my $in, '<', $file); my @lines = <$in>; close $in;
for (1 .. $times) {
    my (%count, $total);
    for my $line (@lines) {
        $count{lc $1}++ while $line =~ /([A-Za-z_]\\w+)/g;
        $total += length($1) if $line =~ /^\\s+return\\s+(.*?)\\s*$/;
        (my $other = $line) =~ tr/a-z/n-za-m/;
        $total++ if $other =~ s/(fryn|qrs)/<$1>/g;
    }
    my @top = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
    $total += length join ',', @top;
}
"""
_CPP = """
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

struct Shape { virtual ~Shape() = default; virtual double area(int) const = 0; };
struct Square : Shape {
    double a;
    explicit Square(double a) : a(a) {}
    double area(int n) const override { return a * a + n; }
};
struct Circle : Shape {
    double r;
    explicit Circle(double r) : r(r) {}
    double area(int n) const override { return n & 1 ? 3 * r * r : 0; }
};
struct Many : Shape {
    std::vector<std::unique_ptr<Shape>> parts;
    double area(int n) const override { double s = 0; for (auto &p : parts) s += p->area(n); return s; }
};

static uint64_t state = 88172645463325252u;
static uint64_t next() { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }

static uint64_t work() {
    uint64_t sum = 0;
    std::map<std::string, int> ordered;
    std::unordered_map<uint64_t, int> hashed;
    for (int i = 0; i < 30000; i++) {
        uint64_t x = next();
        ordered[std::to_string(x % 5000)]++;
        hashed[x % 9001] += i & 3;
    }
    std::vector<std::pair<int, std::string>> sorted;
    for (auto &[word, n] : ordered) sorted.emplace_back(n, word);
    std::sort(sorted.begin(), sorted.end());
    for (auto &[n, word] : sorted) sum = sum * 31 + n + word.size();
    Many all;
    for (int i = 0; i < 300; i++) {
        if (next() % 3) all.parts.emplace_back(new Square(i)); else all.parts.emplace_back(new Circle(i));
    }
    for (int i = 0; i < 300; i++) sum += (uint64_t)all.area(i);
    std::vector<double> m(120 * 120), v(120, 1), w(120);
    for (auto &x : m) x = (double)(next() % 1000) / 1000;
    for (int k = 0; k < 20; k++) {
        for (int i = 0; i < 120; i++) {
            double s = 0;
            for (int j = 0; j < 120; j++) s += m[i * 120 + j] * v[j];
            w[i] = s;
        }
        std::swap(v, w);
    }
    return sum + (uint64_t)v[3] + hashed.size();
}

int main(int, char **words) {
    uint64_t sum = 0;
    for (int i = atoi(words[1]); i; i--) sum += work();
    std::printf("%lu\\n", sum);
}
"""
_SLOW_FAST = """
#include <stdio.h>
#include <stdlib.h>

static unsigned long state = 88172645463325252UL;
static unsigned next[1 << 21];

static unsigned __attribute__((noinline)) slow(unsigned at, int n) { /* a miss of the caches for each branch */
    for (int i = 0; i < n; i++) at = next[at];
    return at;
}

static unsigned long __attribute__((noinline)) fast(unsigned long x, int n) { /* few cycles for each branch */
    for (int i = 0; i < n; i++) { x = x * 5 + 1; if (x & 64) x ^= 3; }
    return x;
}

static double __attribute__((noinline)) divides(double x, int n) { /* 4 divisions for each branch */
    for (int i = 0; i < n; i++) x = 1e9 / (1 + 1e5 / (2 + 1e7 / (3 + 1 / x)));
    return x;
}

int main(int count, char **words) {
    unsigned at = 0;
    unsigned long x = 1;
    double d = 1;
    for (unsigned i = 0; i < sizeof next / sizeof *next; i++) next[i] = i;
    for (unsigned i = sizeof next / sizeof *next - 1; i; i--) { /* Sattolo: one cycle */
        state ^= state << 13; state ^= state >> 7; state ^= state << 17;
        unsigned j = state % i, kept = next[i];
        next[i] = next[j]; next[j] = kept;
    }
    for (long r = atol(words[1]) * 1500; r; r--) {
        at = slow(at, 300);
        x = fast(x, 7000);
        d = divides(d, 700);
    }
    printf("%u %lu %f\\n", at, x, d);
    return 0;
}
"""


_AWK = """
{
    lines++
    gsub(/[^A-Za-z0-9_]+/, " ")
    for (i = 1; i <= NF; i++) { count[$i]++; size += length($i) }
    if ($1 ~ /^(def|class)$/) named[$2] = named[$2] " " lines
    if ($0 ~ /[a-z]+_[a-z]+.*[0-9]/) mixed++
    word = toupper(substr($0, 5, 12)); seen[word] = lines % 97
}
END { for (one in count) if (count[one] > most) { most = count[one]; which = one }; print lines, size, mixed, which }
"""
_JQ = """
[.[] | select(.text | test("^\\\\s*(def|class|return) "))
     | {name: (.text | [scan("[a-z_]{3,}")] | first), size: (.text | length), line, file}]
| group_by(.file)
| map({file: .[0].file, count: length, mean: (map(.size) | add / length), names: (map(.name) | unique | length)})
| sort_by(-.mean) | map("\\(.file): \\(.count) \\(.mean | floor) \\(.names)") | join("\\n")
"""
_CLANG = next((name for name in ("clang-19", "clang-18", "clang-17") if shutil.which(name)), "clang")
_COMMITS = 8
"""Versions of the sources in the repository of git."""


@dataclass(frozen=True)
class Program:
    """``words(n)`` is the command that does its work ``n`` times."""

    name: str
    words: Callable[[int], list[str]]
    passes: int
    """How often for the truth: half a second, in which the start does not count."""
    folder: Path
    """The working folder."""


def programs(folder: Path, names: list[str] | None = None, *, untuned: bool = False) -> list[Program]:
    """The available programs of ``names``; without names, the programs that the recorder was tuned with, or with
    ``untuned`` the other programs; ``folder`` gets their inputs."""
    _inputs(folder)
    python = str(Path(sys.base_prefix) / "bin" / f"python{sysconfig.get_python_version()}")
    tuned_with: dict[str, tuple[int, Callable[[int], list[str]]]] = {
        "sqlite3": (6, lambda n: ["sqlite3", ":memory:", *[".read work.sql"] * n]),
        "python": (8, lambda n: [python, "-IS", "work.py", str(n)]),
        "zstd": (5, lambda n: ["zstd", "-q", "-9", "--single-thread", "-c", *["text"] * n]),
        "gzip": (3, lambda n: ["gzip", "-c", *["text"] * n]),
        "xz": (1, lambda n: ["xz", "-T1", "-2", "-c", *["text"] * n]),
        "bzip2": (2, lambda n: ["bzip2", "-c", *["text"] * n]),
        "perl": (1, lambda n: ["perl", "work.pl", str(n), "text"]),
        "gcc": (1, lambda n: ["gcc", "-O2", "-S", *[f"work{i % 2}.c" for i in range(2 * n)]]),
        "c++": (20, lambda n: [str(folder / "cpp"), str(n)]),
        "slow and fast": (3, lambda n: [str(folder / "slow_fast"), str(n)]),
    }
    others: dict[str, tuple[int, Callable[[int], list[str]]]] = {
        "awk": (2, lambda n: ["awk", "-f", "work.awk", *["text"] * n]),
        "jq": (2, lambda n: ["jq", "-f", "work.jq", *["lines.json"] * n]),
        "git": (
            2,
            lambda n: [
                "sh",
                "-c",
                f'yes "$(cat commits)" | head -n {_COMMITS * n} | exec git -C repository diff-tree --stdin -p',
            ],
        ),
        "clang": (
            1,
            lambda n: [
                _CLANG,
                "-cc1",
                "-O2",
                "-w",
                "-S",
                "-o",
                "clang.s",
                *[f"work{i % 2}.i" for i in range(2 * n)],
            ],
        ),
        "objdump": (1, lambda n: ["objdump", "-d", *["cpp"] * (40 * n)]),
    }
    chosen = tuned_with | others if names else others if untuned else tuned_with
    return [
        Program(name, words, passes, folder)
        for name, (passes, words) in chosen.items()
        if (not names or name in names) and shutil.which(words(1)[0])
    ]


def _inputs(folder: Path) -> None:
    """Write all inputs."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in sources)[: 3 << 20]
    lines = [
        {"file": path.name, "line": number, "text": line}
        for path in sources[:60]
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]
    native = Path(__file__).parents[1] / "src" / "lastbranch" / "native"
    written = {
        "text": text,
        "work.sql": _SQL.encode(),
        "work.py": _PYTHON.encode(),
        "work.awk": _AWK.encode(),
        "work.pl": _PERL.encode(),
        "cpp.cpp": _CPP.encode(),
        "slow_fast.c": _SLOW_FAST.encode(),
        "work.jq": _JQ.encode(),
        "lines.json": json.dumps(lines).encode(),
        "work0.c": (native / "count_stacks.c").read_bytes(),
        "work1.c": (native / "decompress.c").read_bytes(),
        "lastbranch.h": (native / "lastbranch.h").read_bytes(),
    }
    for name, content in written.items():
        (folder / name).write_bytes(content)
    for made_by in (
        ["g++", "-O2", "-o", "cpp", "cpp.cpp"],
        ["gcc", "-O2", "-o", "slow_fast", "slow_fast.c"],
        [_CLANG, "-E", "-P", "-o", "work0.i", "work0.c"],
        [_CLANG, "-E", "-P", "-o", "work1.i", "work1.c"],
    ):
        if shutil.which(made_by[0]):
            subprocess.run(made_by, cwd=folder, check=True)
    if shutil.which("git") and not (folder / "commits").exists():
        _commit_versions(folder, sources[:60])


def _commit_versions(folder: Path, sources: list[Path]) -> None:
    """A repository of versions of ``sources``, and ``commits``, which lists them."""
    out = []
    for version in range(_COMMITS):
        out.append(f"commit refs/heads/main\ncommitter A <a@example.org> {version} +0000\ndata 0\n".encode())
        for path in sources:
            lines = path.read_bytes().splitlines(keepends=True)
            kept = [line for number, line in enumerate(lines) if (number * 7919 + version * 104729) % 61 > 2]
            content = b"".join(kept)
            out.append(b"M 644 inline %s\ndata %d\n%s\n" % (path.name.encode(), len(content), content))
    repository = folder / "repository"
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    subprocess.run(["git", "-C", repository, "fast-import", "--quiet"], input=b"".join(out), check=True)
    listed = subprocess.run(["git", "-C", repository, "rev-list", "main"], check=True, stdout=subprocess.PIPE)
    (folder / "commits").write_bytes(listed.stdout)
