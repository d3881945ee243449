# make demo: the whole recipe with the built-in tiny model, from nothing to a table and a report
# make test: lint, types and tests
# Both make a virtual environment in .venv with the tested versions of constraints.txt.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHONS ?= python3 python3.13 python3.12 python3.11 python
# The settings of docs/scales/sokoban-minutes.yaml, seed 0
DEMO_ARGS ?= sokoban_easy sampling.max_tokens_base=32 selfplay.groups=96 sft.epochs=2 sft.batch_size=32 sft.lr=2e-3 sft.eval_worlds=0 \
	ppo.steps=40 ppo.val_every=20 eval.worlds=256 eval.world_model_worlds=0 model.threads=1 --out runs/demo --resume

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --no-input --disable-pip-version-check -c constraints.txt

export PYTHONUTF8 := 1

.PHONY: help demo test lint format clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/.installed
	$(BIN)/spa run $(DEMO_ARGS)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# make format: what ruff can repair
format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# make clean: caches, build outputs and the demo's run; other runs and .venv stay
clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs/demo
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

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(PIP) -e '.[dev]'
	@touch $@
