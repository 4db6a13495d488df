"""The benchmark's large C++ program: units that instantiate the standard library's templates for types of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UNITS = 37
TYPES = 6
"""Types of each unit; a unit has some 4 MB of debugging information, and takes 14 s to compile."""

FLAGS = ["-std=c++17", "-O2", "-g", "-w"]

SOURCE = r"""
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

template <int N> struct Key {
    int value;
    bool operator<(const Key &o) const { return value % (N + 3) != o.value % (N + 3) ? value % (N + 3) < o.value % (N + 3) : value < o.value; }
    bool operator==(const Key &o) const { return value == o.value; }
};
template <int N> struct Hash { size_t operator()(const Key<N> &k) const { return k.value * (2654435761u + N); } };

template <int N> struct Step {
    std::map<Key<N>, std::vector<std::pair<Key<N>, std::string>>> tree;
    std::unordered_map<Key<N>, std::set<Key<N>>, Hash<N>> table;
    std::function<long(const Key<N> &)> weigh = [this](const Key<N> &k) { return (long)table[k].size() + N; };

    long work(const std::string &text) {
        std::vector<Key<N>> keys;
        for (size_t i = 0; i < text.size(); ++i) {
            Key<N> k{text[i] * (int)i};
            keys.push_back(k);
            tree[k].emplace_back(k, text.substr(i));
            table[k].insert(Key<N>{(int)(i % 7)});
        }
        std::sort(keys.begin(), keys.end());
        std::stable_sort(keys.begin(), keys.end(), [](const Key<N> &a, const Key<N> &b) { return b < a; });
        keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
        long sum = std::accumulate(keys.begin(), keys.end(), 0L, [&](long s, const Key<N> &k) { return s + weigh(k); });
        auto shared = std::make_shared<std::tuple<Key<N>, std::string, std::vector<Key<N>>>>(keys.front(), text, keys);
        std::ostringstream out;
        for (auto &[key, list] : tree) {
            std::sort(list.begin(), list.end(), [](auto &a, auto &b) { return a.second < b.second; });
            out << key.value << ' ' << list.front().second;
        }
        return sum + (long)out.str().size() + std::get<0>(*shared).value;
    }
};

template <int First, int Count> long all(const std::string &text) {
    if constexpr (Count == 0) return 0;
    else return Step<First>{}.work(text) + all<First + 1, Count - 1>(text);
}
#define JOIN(a, b) a##b
#define NAME(n) JOIN(unit_, n)
long NAME(UNIT)(const std::string &text) { return all<UNIT * COUNT, COUNT>(text); }
"""  # noqa: E501  lines of the program


def build(folder: Path) -> Path:
    """The program in ``folder``, built if missing: unit by unit, so that an interrupted build can continue."""
    program = folder / "program"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "unit.cpp").write_text(SOURCE)
    calls = "".join(f"long unit_{n}(const std::string &);\n" for n in range(UNITS))
    sums = " + ".join(f"unit_{n}(text)" for n in range(UNITS))
    (folder / "main.cpp").write_text(
        f"#include <string>\n{calls}int main(int, char **v) {{ std::string text = v[0]; return ({sums}) & 1; }}\n"
    )
    objects = []
    for number in range(UNITS):
        made = folder / f"unit_{number}.o"
        objects.append(made)
        if not made.exists():
            print(f"unit {number + 1} of {UNITS}", file=sys.stderr, flush=True)
            half = made.with_suffix(".half")
            defined = [f"-DUNIT={number}", f"-DCOUNT={TYPES}"]
            subprocess.run(["g++", *FLAGS, *defined, "-c", "unit.cpp", "-o", str(half)], cwd=folder, check=True)
            half.rename(made)
    subprocess.run(["g++", *FLAGS, "main.cpp", *map(str, objects), "-o", str(program)], cwd=folder, check=True)
    for made in objects:
        made.unlink()
    return program
