# `make up` to use Outrider, `make test` to work on it. See README.md.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin
ARGS ?=
# three workers on two cores: the tests wait for containers more than they compute
PYTEST := $(BIN)/python -m pytest -q -n 3 --dist loadfile

.PHONY: help up down setup setup-dev test test-podman5 test-all test-again soak check format bench lock vllm-verdicts schema drawing clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

up: setup ## set everything up and start Outrider with a small model: make up ARGS="--detach"
	@exec $(BIN)/outrider up $(ARGS)

down: setup ## end what `make up` started
	@exec $(BIN)/outrider down $(ARGS)

setup: ## the virtual environment that `outrider up` needs
	@deploy/setup.sh run

setup-dev: ## the virtual environment that the tests need
	@deploy/setup.sh dev

test: setup-dev ## the tests, without the slow ones
	@$(PYTEST) -m "not slow" --budgets $(ARGS)

test-podman5: ## the same in a Debian 13 of its own, for its Podman 5 and Python 3.13; needs root
	@tests/podman5.sh $(PYTEST) -m "not slow" $(ARGS)

test-all: setup-dev ## all tests; their record goes into the repository (fetches 3 GB the first time)
	@$(BIN)/python -m tests.fetching
	@$(PYTEST) --record tests/full_run.json $(ARGS)

test-again: setup-dev ## what failed in the last run of all tests, once it is mended
	@$(PYTEST) --again tests/full_run.json $(ARGS)

soak: setup-dev ## half an hour of everything at once, and then what is left (OUTRIDER_SOAK_MINUTES); part of test-all
	@$(BIN)/python -m pytest -q tests/endurance/test_soak.py $(ARGS)

check: setup-dev ## format, lint, types, imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup-dev ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup-dev ## measure speed and size against their limits; wants an idle machine
	@$(BIN)/python -m tests.bench.run $(ARGS)

COMPILE = $(BIN)/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --all-build-deps

lock: setup-dev ## resolve the dependencies anew, within pyproject.toml's bounds
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-tools
	@$(COMPILE) --upgrade --output-file requirements.lock pyproject.toml
	@$(COMPILE) --upgrade --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml

vllm-verdicts: setup-dev ## put every command line for vLLM to its own parser again (2.5 GB the first time)
	@$(BIN)/python -m tests.runtimes.vllm.recording

schema: setup-dev ## write the configuration's published schema
	@$(BIN)/outrider config schema > deploy/outrider.schema.json

drawing: setup-dev ## draw the lifecycle's table into orchestrator/design.md
	@$(BIN)/python -m orchestrator.lifecycle_drawing

clean: ## remove the virtual environment and all caches
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
