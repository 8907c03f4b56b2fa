# Every target works from a clean clone: each that needs the environment depends on `setup`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2
# EXTRAS=dev leaves torch out: then the device's tests are not collected, and everything else runs.
EXTRAS ?= dev,gpu
PYTEST := $(BIN)/python -m pytest -q
# make gpu: the interpreter that has torch (empty: the environment's or python3, whichever sees CUDA), the folder of
# results, and the folder of wheels for what that interpreter lacks.
GPU_PYTHON     ?=
GPU_CANDIDATES := $(addprefix --python ,$(or $(GPU_PYTHON),$(BIN)/python $(PYTHON)))
GPU_PACKAGES   := hypothesis platformdirs pydantic pytest simpy tomli-w
OUT            ?= runs/gpu
WHEELS         ?= wheels

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long lint check bench gpu gpu-wheels docs reproduce

help:  ## print what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

bench: setup  ## speed and memory of the simulator and of reading traces, one core
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench_traces

# Not `setup`: where the device is, nothing can be installed. Only where no interpreter has torch is it tried.
gpu:  ## all that needs a device, under 8 minutes, into runs/gpu (OUT=): profile, raw tables, report, tests
ifeq ($(GPU_PYTHON),)
	@$(PYTHON) -m tests.gpu_everything --find $(GPU_CANDIDATES) || $(MAKE) setup
endif
	@$(PYTHON) -m tests.gpu_everything --out $(OUT) --wheels $(WHEELS) $(GPU_CANDIDATES)

gpu-wheels:  ## fill wheels/ with what an image of Python 3.11 or 3.12 that has torch may lack
	for version in 3.11 3.12; do \
	    $(PYTHON) -m pip download --quiet --disable-pip-version-check --dest $(WHEELS) --only-binary :all: \
	        --platform manylinux2014_x86_64 --python-version $$version -c constraints.txt $(GPU_PACKAGES) || exit 1; \
	done

docs: setup  ## check the commands that the README and the docs show, and remake screenshots and definitions
	$(PYTEST) tests/cli/test_docs.py
	$(BIN)/python -m tests.remake_docs

reproduce: setup  ## remake figures and tables in place; FIGURE=placement: only that (public traces: ../shared/traces)
	$(BIN)/python -m tests.reproduce $(FIGURE)
