# make demo: plain RL against planning in a learned world model, with the built-in tiny model: a table, a report, one world played
# make test: lint, types, security, the documentation site and tests
# make test-slow: the longest tests, which make test leaves out
# make test-browser: the pages in a browser (chromium)
# make screenshots: the same, then PNGs of made-up runs, or of RUN=FOLDER, in build/screenshots
# make test-real: the recipe in small on a pretrained model (SPA_REAL_MODEL=FOLDER, else SmolLM2-135M, downloaded once)
# make test-oldest: the tests with the oldest versions that pyproject.toml allows, installed in build/oldest
# make test-scale: several ranks (processes) against one, on this machine's CPU
# make faults: runs that are killed, interrupted or out of disk space, and resumed: a line of figures each
# All make a virtual environment in .venv with the tested versions of constraints.txt.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHONS ?= python3 python3.13 python3.12 python3.11 python3.14 python
DEMO_WORLD ?= frozen_lake env.max_actions_per_turn=1 env.max_turns=10 agent.penalize_extra_actions=true sampling.max_tokens_base=12 model.threads=1
DEMO_ARGS ?= selfplay.groups=600 selfplay.group_size=2 selfplay.deduplicate=true sft.epochs=4 sft.batch_size=32 sft.eval_worlds=8 \
	practice.worlds=800 practice.whole=true practice.epochs=2 practice.rehearsal=0.25 ppo.steps=30 ppo.val_every=15 \
	eval.worlds=128 eval.world_model_worlds=8 variants=[vanilla,plan] --out runs/demo --resume
DEMO_PLAY := spa play $(DEMO_WORLD) agent.planner=lookahead --skip 4

APART := not real and not gpu and not browser and not scale and not faults
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --no-input --disable-pip-version-check -c constraints.txt

export PYTHONUTF8 := 1
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes would compile the package anew

.PHONY: help demo test test-slow test-real test-oldest test-scale test-browser faults screenshots lint security fuzz format bench docs clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/.installed
	$(BIN)/spa run $(DEMO_WORLD) $(DEMO_ARGS)
	@echo && echo "A test world, played with plans over the predictions of stage 2:"
	@$(BIN)/$(DEMO_PLAY) --model runs/demo/sft-plan

test: $(VENV)/.installed-dev $(VENV)/.installed-docs
	@$(MAKE) --no-print-directory -j 3 lint security docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and $(APART)"

test-slow: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and $(APART)"

test-real: $(VENV)/.installed-dev
	@test -n "$${SPA_REAL_MODEL:-}" || $(BIN)/spa model get smollm2-135m
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m real tests/test_real.py

test-browser: $(VENV)/.installed-dev
	@$(PIP) -e '.[browser]'
	$(BIN)/python -m pytest -m browser tests/report

screenshots: test-browser
	PYTHONPATH=. $(BIN)/python -m tests.report.screenshots build/screenshots $(RUN)

test-oldest:
	@$(MAKE) --no-print-directory VENV=build/oldest build/oldest/bin/python
	build/oldest/bin/python scripts/oldest_versions.py > build/oldest.txt
	@build/oldest/bin/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt torch
	@build/oldest/bin/python -m pip install --quiet --quiet --disable-pip-version-check -r build/oldest.txt -e .
	OMP_NUM_THREADS=1 build/oldest/bin/python -m pytest -n 2 --dist worksteal -m "not slow and $(APART)"

test-scale: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m scale tests/scale

faults: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s -m faults tests/faults

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# make security: what bandit finds in the package; SECURITY.md has the threat model
security: $(VENV)/.installed-dev
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src

# make fuzz: libFuzzer (atheris, in build/fuzz) on parser, levels, countdown, episodes; SECONDS=600 each; what it finds in build/fuzz
fuzz: $(VENV)/.installed-dev
	@$(PIP) --target build/fuzz/packages --upgrade --no-deps atheris
	PYTHONPATH=src:build/fuzz/packages $(BIN)/python -m tests.fuzz $(or $(SECONDS),600) build/fuzz $(TARGETS)

# make format: what ruff can repair
format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# make bench: the benchmarks against their peers, one table of ratios; BENCH="rollout --repeats 3" chooses
bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks $(BENCH)

# make docs: the documentation site, in site/; fails on a broken link
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # not --quiet: it would count no warning
	@echo "site/index.html"

# make clean: caches, build outputs and the demo's run; other runs and .venv stay
clean:
	rm -rf build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs/demo
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@for python in $(PYTHONS); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			echo "Making $(VENV) with $$("$$python" --version)"; \
			exec "$$python" -m venv $(VENV); \
		fi; \
	done; \
	echo "Python 3.11 or newer is needed and none of these is: $(PYTHONS). Give one with: make PYTHONS=/path/to/python" >&2; \
	exit 1

# torch first and alone: where several builds of it are offered, nothing else has a say in which one is taken.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing (a few minutes the first time)"
	@$(PIP) torch
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(PIP) -e '.[dev]'
	@touch $@
