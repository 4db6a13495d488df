# Everything is set up by the first target that needs it: python3 >= 3.11 with venv, and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes: where modules must not be kept compiled, each would compile them all.
unexport PYTHONDONTWRITEBYTECODE

# Debian's names of what the tests use where it is installed: compilers whose output they read, tools they compare with, a browser,
# and what builds the viewer's page.
TEST_TOOLS := binutils bolt-19 chromium-headless-shell clang-19 file fish g++ g++-mingw-w64-x86-64 gcc gcc-mingw-w64-i686 gcc-multilib gdb gfortran \
  groff-base libdw1 libseccomp2 linux-perf lld-19 llvm-19 man-db openssl runc strace util-linux valgrind zsh \
  $(if $(shell command -v npm),,nodejs npm)

# What uses kernels, held against truths of its own: these tests run again without the library. Those of tests/native and
# test_codecs.py compare both forms in each run.
NUMPY_TESTS := tests/test_arrays.py tests/analysis tests/bind tests/lbr tests/formats/perfdata \
  $(addprefix tests/formats/etl/test_,batches.py chains.py compressed.py damage.py peers.py sample_forms.py walk.py)

# Modules are kept compiled, also where the environment asks otherwise: hundreds of tests start the program anew.
unexport PYTHONDONTWRITEBYTECODE

# One more than there are processors: a quarter of the time, tests wait for what they have started.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 1)' 2>/dev/null || echo auto)

.PHONY: demo test suite go test-tools lint style web-style types bench kernel peers wheels fuzz lock test-lowest test-newest docs screenshots man web libtbrw arm64 etw-layouts windows-check clean

demo: $(VENV)/installed $(VENV)/native ## install, record a program (or open the packaged capture), report it
	@$(BIN)/python -m lastbranch.demo

test: style ## everything CI runs
	@$(MAKE) --no-print-directory -j2 types suite

# Tests of real programs, browsers and servers lose a race now and then where others load the machine: a failed test
# runs up to twice more. The summary lists each as RERUN: one that is often there is a fault.
SUITE = -n $(WORKERS) --dist loadfile --reruns 2 -r fER

suite: $(VENV)/developer $(VENV)/native
	$(BIN)/python -m pytest $(SUITE)
	LASTBRANCH_NATIVE=0 $(BIN)/python -m pytest $(SUITE) $(NUMPY_TESTS)

test-tools: ## install what tests are skipped without (Debian 12 and newer, as root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $(TEST_TOOLS) >/dev/null

lint: style types

# Those of .clang-format-ignore are left out.
C_SOURCES = $(sort $(shell find benchmarks examples src tests -name '*.[ch]' -o -name '*.cpp'))

style: $(VENV)/developer $(VENV)/native
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tests/house.py
	$(BIN)/python tests/tools/lock_requirements.py
	$(if $(wildcard web/node_modules),@$(MAKE) --no-print-directory web-style,@echo "web/: not checked (make web-style needs node 20 or later)")

web-style: web/node_modules ## format and lint the sources of the viewer's page (prettier, eslint)
	cd web && npm run --silent lint

types: $(VENV)/developer $(VENV)/native
	$(BIN)/mypy

bench: $(VENV)/developer $(VENV)/native ## against the peers that are installed (docs/benchmarks.md)
	$(BIN)/python benchmarks/bench_startup.py
	$(BIN)/python benchmarks/bench_counts.py
	$(BIN)/python benchmarks/bench_counts.py --scale
	$(BIN)/python benchmarks/bench_counts.py --size 250MB --perf-views --only "perf report" "perf annotate" report annotate
	$(BIN)/python benchmarks/bench_phases.py
	$(BIN)/python benchmarks/bench_etl.py
	$(BIN)/python benchmarks/bench_tb5.py
	$(BIN)/python benchmarks/bench_record.py
	$(BIN)/python benchmarks/bench_truth.py
	$(BIN)/python benchmarks/bench_callstacks.py
	$(BIN)/python benchmarks/bench_sessions.py
	$(BIN)/python benchmarks/bench_export.py
	$(BIN)/python benchmarks/bench_symbols.py
	$(BIN)/python benchmarks/bench_fleet.py
	$(BIN)/python benchmarks/bench_captures.py
	$(BIN)/python benchmarks/bench_view.py
	$(BIN)/python benchmarks/bench_live.py
	$(BIN)/python benchmarks/bench_top.py

kernel: $(VENV)/developer $(VENV)/native ## Linux built with clang 19: exports of a made-up capture of it held against exact counts
	$(BIN)/python tests/tools/compare_kernel.py --folder build/kernel

peers: $(VENV)-peers/installed $(VENV)-peers-values/installed ## environments of their own for the readers we compare with

go: $(VENV)-go/installed ## Go's compiler in an environment of its own, which reads the profiles made for it

wheels: $(VENV)/developer $(VENV)/native $(VENV)-wheels/installed ## release wheels for every platform in dist/, tried where they run
	ZIG_GLOBAL_CACHE_DIR=$(CURDIR)/$(VENV)-wheels/cache $(BIN)/python tests/tools/make_wheels.py --zig $(VENV)-wheels/bin/python

fuzz: $(VENV)/developer $(VENV)/native ## ten minutes of damaged input for each reader, and what is too long for every run
	$(BIN)/python -m pytest -m "thorough or hypothesis" --hypothesis-profile any
	$(BIN)/python tests/tools/resource_bombs.py
	$(BIN)/python tests/tools/fuzz_kernels.py --seconds 600
	$(BIN)/python tests/tools/fuzz_perfdata.py --seconds 600
	$(BIN)/python tests/tools/fuzz_etl.py --seconds 600
	$(BIN)/python tests/tools/fuzz_tb5.py --seconds 600
	$(BIN)/python tests/tools/fuzz_symbols.py --seconds 600
	$(BIN)/python tests/tools/compare_symbols.py
	$(BIN)/python tests/tools/fuzz_capture.py
	$(BIN)/python tests/tools/compare_run_ahead.py --seconds 600
	$(BIN)/python tests/tools/fuzz_fleet.py --seconds 300
	$(BIN)/python tests/tools/fuzz_sessions.py --seconds 600

lock: $(VENV)-lock/installed ## choose the newest versions of all that is installed, and write requirements/ anew
	$(VENV)-lock/bin/python tests/tools/lock_requirements.py --uv $(VENV)-lock/bin/uv

# The suite's core: what uses other packages, and records nothing.
CORE = tests --ignore tests/capture --ignore tests/etw --ignore tests/view/test_browser.py

test-lowest: $(VENV)-lock/installed ## the core with the lowest versions that pyproject.toml allows (Python 3.11)
	$(VENV)-lock/bin/python tests/tools/try_versions.py lowest --uv $(VENV)-lock/bin/uv $(SUITE) $(CORE)

test-newest: $(VENV)-lock/installed ## the core with the newest versions, on each Python from 3.11 to 3.14 that is found
	$(VENV)-lock/bin/python tests/tools/try_versions.py newest --uv $(VENV)-lock/bin/uv $(SUITE) $(CORE)

docs: $(VENV)/developer ## write the generated pages of docs/reference, headers and stubs anew
	$(BIN)/python tools/faces.py
	$(BIN)/python tools/generate.py

screenshots: $(VENV)/developer $(VENV)/native ## pictures of the viewer's screens in build/screenshots, two of them for the README
	$(BIN)/python tests/tools/make_screenshots.py build/screenshots

man: $(VENV)/installed ## write manual pages, made from the help texts: man -M build/man lastbranch
	$(BIN)/python tools/manual.py build/man

web: web/node_modules ## build the viewer's page from web/ (needs node 20 or later)
	cd web && npm run --silent build

web/node_modules: web/package-lock.json
	cd web && npm ci --silent --ignore-scripts
	@touch $@

libtbrw: $(VENV)/installed ## the TBRW API for C programs, with headers, examples and sample.tb5, in build/tbrw (needs a C and a C++ compiler)
	rm -rf build/tbrw
	$(BIN)/python -m lastbranch.tbrw.c.build build/tbrw
	mkdir -p build/tbrw/examples build/tbrw/doc
	cp -r examples/TBRW build/tbrw/examples/
	cp docs/reference/tbrw.md build/tbrw/doc/TBRW.md
	$(MAKE) --no-print-directory -C build/tbrw/examples/TBRW

arm64: $(VENV)/developer ## the software branch record on AArch64, in a virtual machine (needs qemu, clang 19 and Debian's arm64 packages)
	$(BIN)/python tests/tools/arm64_machine.py

etw-layouts: $(VENV)/developer ## sizes and offsets of the trace API's structures and functions, proven by mingw-w64's compilers
	$(BIN)/python tests/tools/make_etw_layouts.py --prove

windows-check: $(VENV)/developer ## what can be proven of the Windows code in wine: names, structures, privilege, failures (needs wine and mingw-w64)
	$(BIN)/python tests/tools/wine_check.py

$(VENV)/python:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Exact versions, whose files must have the hashes that requirements/ lists (make lock). What builds the package is among them.
LOCKED = -m pip install --quiet --require-hashes --requirement
EDITABLE = -m pip install --quiet --no-index --no-deps --no-build-isolation --editable

$(VENV)/installed: $(VENV)/python requirements/package.txt pyproject.toml hatch_build.py
	$(BIN)/python $(LOCKED) requirements/package.txt
	$(BIN)/python $(EDITABLE) .
	@touch $@

$(VENV)/developer: $(VENV)/python requirements/developer.txt pyproject.toml hatch_build.py
	$(BIN)/python $(LOCKED) requirements/developer.txt
	$(BIN)/python $(EDITABLE) .
	@touch $@ $(VENV)/installed

# Installing compiles the library; this compiles it again when its sources change, or once there is a compiler.
$(VENV)/native: $(VENV)/python $(addprefix src/lastbranch/native/,signatures.py build.py) $(wildcard src/lastbranch/native/*.[ch])
	$(BIN)/python src/lastbranch/native/build.py
	@! ls src/lastbranch/native/_lastbranch.* >/dev/null 2>&1 || touch $@

$(VENV)-peers/installed: requirements/peers.txt
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python $(LOCKED) requirements/peers.txt
	$(VENV)-peers/bin/python $(EDITABLE) .
	@touch $@

# Environments of one package: other readers, Go (75 MB), a C compiler for every platform (438 MB), and what chooses versions.
$(VENV)-%/installed: requirements/%.txt
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python $(LOCKED) requirements/$*.txt
	@touch $@

clean:
	rm -rf build dist $(VENV) $(VENV)-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
