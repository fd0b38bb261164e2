SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

BIN := .venv/bin

# Spark's workers would otherwise run whatever python3 is first on PATH, and spark-submit some other
# Spark that SPARK_HOME names; tests and demo must not meet the Airflow that AIRFLOW_HOME may name.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export AIRFLOW_HOME := $(CURDIR)/.airflow
export LANG ?= C.UTF-8
unexport SPARK_HOME

# The Java that setup found: only where Spark runs.
WITH_JAVA = JAVA_HOME="$$(cat .tools/java-home)"

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: venv java ## prepare everything: uv, .venv, Java; instant when nothing changed

.PHONY: demo
demo: setup ## run the demo
	@$(WITH_JAVA) $(BIN)/python -m tests.system.demo

# A worker a core; one file stays with one worker, since its tests share servers and Spark sessions.
# tests/conftest.py puts the longest files first; xdist's own order is by the number of tests.
# The archive halves what the start of each of their JVMs costs; without it they are only slower.
ARCHIVE := .tools/spark-classes.jsa
PYTEST = $(WITH_JAVA) $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 10

$(ARCHIVE): requirements.lock | setup
	@echo "tests: archiving the classes that Spark loads"
	@$(WITH_JAVA) $(BIN)/python -m tests.support.class_archive $(CURDIR)/$@ > .tools/class-archive.log 2>&1 \
		|| echo "tests: no archive, see .tools/class-archive.log"

.PHONY: test
test: setup check $(ARCHIVE) ## run the checks, then the tests that guard exactness: about 20 minutes on two cores
	$(PYTEST) -m 'not slow and not system'

.PHONY: test-all
test-all: test ## run `make test`, then all other tests but those of `make system`
	$(PYTEST) -m 'slow and not system'

.PHONY: coverage
coverage: setup $(ARCHIVE) ## run the tests of `make test` and list the lines and branches that none reaches
	$(PYTEST) -m 'not slow and not system' --cov airflow_provider_lance --cov-branch --cov-report term-missing:skip-covered

.PHONY: system
system: setup $(ARCHIVE) ## run the system tests of supervision: a real Airflow, its processes killed
	$(WITH_JAVA) $(BIN)/pytest -m system

.PHONY: matrix
matrix: setup ## install the wheel beside old and new versions, and stream; COMBINATIONS="oldest newest" chooses
	@$(WITH_JAVA) $(BIN)/python -m tests.matrix $(COMBINATIONS)

.PHONY: chaos
chaos: setup ## run the crash laboratory: 300 rounds of kills and store faults
	@$(WITH_JAVA) $(BIN)/python -m tests.chaos --rounds $(or $(ROUNDS),300) --seed $(or $(SEED),1)

.PHONY: bench
bench: setup ## run the benchmarks, small: about 10 minutes
	@$(WITH_JAVA) $(BIN)/python -m benchmarks

.PHONY: bench-full
bench-full: setup ## run the benchmarks as the documentation's figures were made
	@$(WITH_JAVA) $(BIN)/python -m benchmarks --full

.PHONY: check
check: venv ## lint, formatting, types, import borders
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: venv ## mend formatting and what the linter can mend
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

.PHONY: docs
docs: venv ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build -W -E -a --keep-going -b html docs docs/_build/html

.PHONY: lock
lock: ## resolve requirements.lock again, moving only what must move
	@.ci/setup lock

.PHONY: clean
clean: ## remove what tests, tools and builds left; keeps .venv and .tools
	rm -rf .airflow .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf build dist docs/_build derby.log metastore_db spark-warehouse
	find . \( -path ./.venv -o -path ./.tools -o -path ./.git \) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: venv java
venv:
	@.ci/setup venv

java:
	@.ci/setup java
