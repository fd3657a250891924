# Every target with its line of help: plain `make`.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
PROCESSES ?= 3
ROUNDS ?= 50
SEED ?= 1

.PHONY: help setup demo test soak check format bench proto clean

help: ## List every target
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything pinned (quick when nothing changed)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 1; }
	@sh .ci/java || exit 1
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "Installing what is pinned into $(VENV): some minutes the first time, and some 2 GB."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: setup ## Run SQL on an embedded TiDB, capture it through Spark into files, and check the result
	$(BIN)/tidemill demo

test: setup ## Run the tests
	@sh .ci/packages
	@$(BIN)/tidemill warm
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder $(TESTS)

soak: setup ## Kill, break and replay at random for as long as you like: make soak ROUNDS=200 SEED=7 TESTS=tests/e2e
	@sh .ci/packages
	@$(BIN)/tidemill warm
	TIDEMILL_ROUNDS=$(ROUNDS) TIDEMILL_SEED=$(SEED) $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist load $(TESTS)

check: setup ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## Put the code in its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Measure; writes bench/results.json
	$(BIN)/python -m bench

proto: setup ## Generate the wire code from proto/
	$(BIN)/python proto/generate.py

clean: ## Remove what the targets made
	rm -rf $(VENV) build bench/results.json .mypy_cache .ruff_cache .hypothesis
