# Everything is set up by the first target that needs it: python3 >= 3.11 with venv, and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO = $(shell $(BIN)/python -c 'import lastbranch.demo as d; print(d.capture(), "--symfs", d.symfs())')

.PHONY: demo test lint bench fuzz docs clean

demo: $(VENV)/installed ## install, then open, report and export the capture that the package carries
	@echo '$$ lastbranch report CAPTURE --by module'
	@$(BIN)/lastbranch report $(DEMO) --by module
	@echo
	@echo '$$ lastbranch branches CAPTURE --limit 10'
	@$(BIN)/lastbranch branches $(DEMO) --limit 10
	@echo
	@echo '$$ lastbranch export CAPTURE --to counts | head -5'
	@$(BIN)/lastbranch export $(DEMO) --to counts 2>/dev/null | head -5

test: lint ## everything CI runs
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(VENV)/developer
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/developer ## against the peers that are installed (docs/benchmarks.md)
	$(BIN)/python benchmarks/bench_startup.py
	$(BIN)/python benchmarks/bench_counts.py
	$(BIN)/python benchmarks/bench_counts.py --scale

fuzz: $(VENV)/developer ## ten minutes of damaged captures
	$(BIN)/python tests/fuzz_perfdata.py --seconds 600

docs: $(VENV)/developer ## write the generated pages of docs/reference anew
	$(BIN)/python docs/generate.py

$(VENV)/python:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/developer: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
