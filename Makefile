# The commands that people and CI both call. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test sim mutants lint constraints clean
SEEDS ?= 200
TEST ?=

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

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

test: setup  ## run all tests
	@$(BIN)/pytest $(TEST)

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
