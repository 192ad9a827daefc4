# Penumbra. Every target does the set-up it needs; nothing has to be installed or activated first but Python ≥ 3.11.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp

# cpu, or gpu on a machine with an NVIDIA driver (see README.md); what .venv was set up for is remembered in it.
INSTALLED := $(shell cat $(VENV)/.accelerator 2>/dev/null)
ACCELERATOR ?= $(or $(INSTALLED),cpu)
ifneq ($(INSTALLED),)
ifneq ($(INSTALLED),$(ACCELERATOR))
$(error $(VENV) was set up for ACCELERATOR=$(INSTALLED) and one environment holds one; type 'make clean' first)
endif
endif
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

FBGEMM_cpu := fbgemm-gpu-cpu
FBGEMM_gpu := fbgemm-gpu fbgemm-gpu-genai
EXTRAS_cpu := dev
EXTRAS_gpu := dev,gpu

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install everything, pinned

# torch first, so that what follows meets the build that is there; torchrec and fbgemm without their dependencies,
# because torchrec asks for a wheel that needs the NVIDIA driver (docs/decisions.md).
$(STAMP): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Penumbra needs Python 3.11 or newer, found '$(PYTHON)'; name one with make setup PYTHON=..." >&2; exit 1; }
	@test -n "$(FBGEMM_$(ACCELERATOR))" || { echo "ACCELERATOR must be cpu or gpu, got '$(ACCELERATOR)'" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing torch"
	@$(PIP) torch==2.13.0
	@echo "installing torchrec and $(FBGEMM_$(ACCELERATOR))"
	@$(PIP) --no-deps torchrec $(FBGEMM_$(ACCELERATOR))
	@echo "installing the rest"
	@$(PIP) --no-warn-conflicts -e '.[$(EXTRAS_$(ACCELERATOR))]'
	@echo $(ACCELERATOR) > $(VENV)/.accelerator
	@touch $@

demo: setup ## train a DLRM on synthetic clicks: 2 trainers, 2 embedding shards
	@$(BIN)/python -m services demo

test: setup ## the fast tests
	$(BIN)/python -m pytest -m "not slow"

test-all: setup ## every test
	$(BIN)/python -m pytest

lint: setup ## ruff, mypy --strict, layer contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## throughput of the training loop, as JSON
	$(BIN)/python -m benchmarks.throughput

clean: ## remove .venv, caches and runs/demo*; other runs stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache runs/demo*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
