# The commands that people and CI both call. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Where a shell has this set, every process that a test starts would compile torch, Faust and the rest anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test test-rest test-all test-long test-times sim mutants lint constraints clean
SEEDS ?= 200
TEST ?=
# More than cores: some tests wait for a broker while others compute.
PROCESSES ?= $(shell expr $$(nproc) + 2)
PYTEST = $(BIN)/pytest -n $(PROCESSES) --dist loadfile

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

setup: $(VENV)/.ready  ## make the environment in .venv

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Driftline needs Python 3.11 or newer; name one with: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@echo "Making $(VENV): torch and the rest are about 6 GB, one to three minutes the first time."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m driftline.streams.warm  # compiles the window engine: up to a minute, once
	@touch $@

demo: setup  ## run the demonstration: a real training, watched, evaluated, stored (about two minutes)
	@$(BIN)/driftline demo

test: setup  ## run the tests, but for the long ones; only some with TEST="tests/sim -k planted"
	@$(PYTEST) -m "not long" --junitxml=.pytest_cache/tests.xml $(TEST)

test-rest: setup  ## run what only test-all adds: brokers that fail, long simulations
	@$(PYTEST) -m long --junitxml=.pytest_cache/tests-rest.xml
	@$(MAKE) --no-print-directory sim SEEDS=60 SIM="--first 1000"

test-all: test test-rest  ## run all tests

test-long:  ## run all tests for hours: 2,000 seeds of the simulation, 100 kills, 50 times the random examples
	@DRIFTLINE_TEST_PROFILE=long $(MAKE) --no-print-directory test-all
	@$(MAKE) --no-print-directory sim SEEDS=2000
	@$(BIN)/python benchmarks/faults.py --kills 100

test-times:  ## write what the last tests took to tests/durations.json and docs/testing.md
	@$(BIN)/python tests/support/slowest.py

sim: setup  ## simulate SEEDS=200 lives of the whole system, with every fault that has a name
	@PYTHONPATH=tests/sim $(BIN)/python -m simulation --seeds $(SEEDS) $(SIM)

mutants: setup  ## put known bugs into copies of the sources, one by one: a test must notice each
	@$(BIN)/python tests/mutants/mutants.py $(MUTANTS)

lint: setup  ## formatter, linter and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

constraints: setup  ## refresh constraints.txt to the newest versions that fit
	$(BIN)/uv pip compile --quiet --universal --upgrade --extra dev --no-emit-package driftline \
		--custom-compile-command "make constraints" pyproject.toml --output-file constraints.txt

clean:  ## remove the environment and caches (not driftline-data)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
