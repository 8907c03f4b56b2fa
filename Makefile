# Every target works from a clean clone: each that needs the environment depends on `setup`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2
# EXTRAS=dev leaves torch out: then the device's tests are not collected, and everything else runs.
EXTRAS ?= dev,gpu
PYTEST := $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long lint check bench gpu docs reproduce

help:  ## print what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv if absent and install kvrm with the tools for development

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

run: setup  ## compare six decoders on a built-in trace: a table, and the path of the figure
	$(BIN)/kvrm compare azure-conv-like --policy static --policy bucketed --policy dynamic --policy graph-paged \
	    --policy kv-rm --policy kv-rm-delta --out runs/first --force

test: lint  ## lint, types, and the tests: normal, core interpreted, core with bounds checked
	$(PYTEST) -n $(JOBS)
	KVRM_CORE=interpreted $(PYTEST) -n $(JOBS) -m 'core and not long'
	KVRM_CORE=boundscheck $(PYTEST) -n $(JOBS) -m 'core and not long'

test-long: setup  ## the tests that take minutes: thousands of random pairs, packaging, soak
	$(PYTEST) -n $(JOBS) -m long --hypothesis-profile=long

lint: setup  ## ruff and mypy; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint  ## lint, and the quick tests once; changes nothing in the tree
	$(PYTEST) -n $(JOBS) -p no:cacheprovider

bench: setup  ## speed and memory of the simulator, one core
	$(BIN)/python -m tests.bench

gpu: setup  ## the device's tests: on the accelerator where there is one, else on the CPU
	$(PYTEST) tests/gpu

docs: setup  ## check that the commands of the README and the docs work as written
	$(PYTEST) tests/cli/test_docs.py

reproduce: setup  ## remake figures and tables in place; FIGURE=placement: only that (public traces: ../shared/traces)
	$(BIN)/python -m tests.reproduce $(FIGURE)
