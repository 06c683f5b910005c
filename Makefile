# Every target does its own set-up: a fresh machine needs Python >= 3.11 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check audit bench slow nightly mutants clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python -m examples.demo

test: setup check
	$(BIN)/pytest -n 2 --dist worksteal -q

slow: setup
	$(BIN)/pytest -n 2 --dist worksteal -q -m slow

nightly: setup
	$(BIN)/pytest -q -m nightly tests/faults

mutants: setup
	$(BIN)/python -m tools.mutants

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.audit

audit: setup
	$(BIN)/python -m tools.audit

bench: setup
	$(BIN)/python -m benchmarks.run

clean:
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
