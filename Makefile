# The front door. `make` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
DEMO := $(VENV)/demo-installed
UV := $(or $(shell command -v uv),$(BIN)/uv)
PIP := $(BIN)/python -m pip --disable-pip-version-check
UVPIP = $(UV) pip install --python $(BIN)/python $${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"}
WHAT = --constraint constraints.txt --editable '.[$(1)]'
SEEDS ?= 200
FAULTS ?= 100
SEED ?= 0
TOOLS := build/proof-env
SPLIT ?= dev
LAUNCHES ?= 200
SECONDS ?= 300
KILLS ?= 50
MINUTES ?= 10
GPUS := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU ')

.PHONY: help setup demo test test-fast test-system check format bench proof gpu soak fuzz mutants rig guest violence docs site man \
	coverage wheel workflows clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## the environment in .venv, with everything that the demo and the tests need

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("seerd needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; another one: make demo PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	@rm -rf $(VENV)
	@if command -v uv >/dev/null; then uv venv --quiet --seed --python $(PYTHON) $(VENV); \
	else $(PYTHON) -m venv $(VENV) || { echo "type this, then make again: sudo apt-get install python3-venv"; exit 1; }; fi

# uv takes seconds where pip takes minutes, and chooses the build of torch that fits this machine.
# It reads no pip.conf, so pip has the last word.
$(DEMO): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing into $(VENV), once: 1 GB; 5 GB where torch comes with CUDA"
	@test -x $(UV) || $(PIP) install --constraint constraints.txt uv || true
	@$(UVPIP) --torch-backend=auto $(call WHAT,demo) \
	|| { echo "trying the build of torch that every machine gets: 5 GB in all on Linux"; \
	$(UVPIP) $(call WHAT,demo); } \
	|| { echo "trying pip, with its own settings"; $(PIP) install $(call WHAT,demo); }
	@touch $(DEMO)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing what the tests need into $(VENV), once: 2 GB; 6 GB where torch comes with CUDA"
	@test -x $(UV) || $(PIP) install --constraint constraints.txt uv || true
	@$(UVPIP) $(call WHAT,dev) \
	|| { echo "trying pip, with its own settings"; $(PIP) install $(call WHAT,dev); }
	@touch $(STAMP)

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO))  ## the main job on this machine: tunes a network on handwritten digits, about 3 minutes
	@$(BIN)/seerd run examples/digits/spec.toml $(if $(filter-out 0,$(GPUS)),--set cluster.gpus=$(GPUS))
	@rm -rf build/demo && $(BIN)/seerd best last --to build/demo >/dev/null && cd examples/digits && ../../$(BIN)/python evaluate.py ../../build/demo

test: setup  ## every test that this machine can run; what it cannot is listed at the end
	@mkdir -p build
	@echo "the daemon among simulated faults, $(FAULTS) runs that were never played (build/faults.json)"
	@$(BIN)/python -m tests.faults --fresh $(FAULTS) >build/faults.json
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --durations=20

test-fast: setup  ## the tests to run while working: a minute and a half, no root, any system
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m fast -n logical

test-system:  ## the tests that need root, network namespaces or sshd: sudo make test-system
	@test -e $(STAMP) || { echo "run make setup before, without sudo"; exit 1; }
	SEERD_CI=1 PYTHONDONTWRITEBYTECODE=1 $(BIN)/python -m pytest -m system -p no:cacheprovider

guest:  ## whole systems on the rig, made once from this machine's Debian packages: sudo make guest
	@test "$$(id -u)" = 0 || { echo "make guest needs root, and has done nothing: sudo make guest"; exit 1; }
	@test -e $(STAMP) || { echo "run make setup before, without sudo"; exit 1; }
	@bench/testbed/rig/build-distribution build/guest/root
	SEERD_GUEST=build/guest/root PYTHONDONTWRITEBYTECODE=1 $(BIN)/python -m pytest tests/guest -n 2 -p no:cacheprovider
	@echo "how long one boots here, in seconds from the first that is billed"
	@PYTHONDONTWRITEBYTECODE=1 $(BIN)/python -m tests.guest

check: setup  ## lint, format, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## bring the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## every benchmark; each prints JSON
	@for file in $(filter-out $(addprefix bench/,account.py cheap_peers.py drawn.py eight.py gpu.py),$(wildcard bench/*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# the other tools' environments, pinned: their versions of numpy are not ours
$(TOOLS)/%/installed: bench/proof/requirements-%.txt
	@$(PYTHON) -m venv $(TOOLS)/$* && $(TOOLS)/$*/bin/python -m pip install --quiet --requirement $<
	@touch $@

proof: setup $(TOOLS)/tools/installed $(TOOLS)/dyhpo/installed  ## beside other tools on recorded curves, 12 hours at most, goes on where it was: make proof FOLDER=CURVES SPLIT=dev
	$(BIN)/python -m bench.proof $(FOLDER) --split $(SPLIT) --results build/proof/$(SPLIT).jsonl

gpu: setup  ## what can only be seen where there is a GPU, in eight minutes, as JSON; goes on where it was
	@$(BIN)/python bench/gpu.py

soak: setup  ## the real daemon and the core among faults, from seeds: make soak SEEDS=10000
	$(BIN)/python -m tests.faults --seeds $(SEEDS)
	SEERD_SOAK_SEEDS=$(SEEDS) SEERD_EXAMPLES=$(SEEDS) $(BIN)/python -m pytest tests/core tests/planner tests/properties tests/test_other_versions_for_real.py --timeout=0

fuzz: setup  ## hostile input for SECONDS, guided by coverage, and the tests with it at length: make fuzz SECONDS=300
	$(PIP) install --quiet $(call WHAT,fuzz)
	SEERD_FUZZ=20 $(BIN)/python -m pytest tests/fuzz --timeout=0
	$(BIN)/python -m tests.fuzz.guided $(SECONDS)

mutants: setup  ## a test of the tests: deliberate mistakes, or ones at random: make mutants DRAWN=500 SEED=7
	$(BIN)/python -m tests.mutants $(if $(DRAWN),--drawn $(DRAWN) --seed $(SEED))

rig: setup  ## rented instances at length: make rig LAUNCHES=200
	SEERD_STORM_LAUNCHES=$(LAUNCHES) SEERD_RIG_LONG=1 $(BIN)/python -m pytest tests/aws/test_ec2_storm.py tests/aws/test_ec2_many.py tests/test_ec2_runs.py --timeout=0

violence: setup  ## hurts real runs, here and on rented instances: make violence KILLS=50 MINUTES=10
	$(BIN)/python -m tests.violence --kills $(KILLS) --minutes $(MINUTES)

coverage: setup  ## which lines the fast tests reach, in the tests' own processes (build/coverage.xml)
	PYTEST_ADDOPTS="--cov --cov-report=term --cov-report=xml:build/coverage.xml" $(MAKE) test-fast

wheel: setup  ## wheel and sdist in dist/, tried in an environment that has nothing else
	.ci/wheel $(BIN)/python

workflows: setup  ## the forge's workflows, with actionlint (which its installation fetches)
	$(PIP) install --quiet $(call WHAT,workflows)
	$(BIN)/actionlint

man: setup  ## the manual page, from the commands: man -l build/seerd.1
	@mkdir -p build
	$(BIN)/python docs/man.py >build/seerd.1

docs: setup  ## what in docs/ is made from the code: diagrams, commands, Python, pictures
	$(BIN)/python docs/diagrams.py
	$(BIN)/python docs/commands.py
	$(BIN)/python docs/python_page.py
	$(BIN)/python docs/pictures.py

site: setup  ## the documentation as a site that needs no network: build/site/index.html
	$(BIN)/python docs/site.py

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
