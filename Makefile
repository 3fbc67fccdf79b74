# Everything runs in the project's own environment, made on first use with the versions of requirements.txt.
# TORCH=2.15.0 makes one beside it, .venv-2.15.0, with that torch and the Triton that belongs to it.
PYTHON ?= python3
VENV := .venv$(if $(TORCH),-$(TORCH))
BIN := $(VENV)/bin
OTHER_TORCH := $(if $(TORCH),s/^torch==.*/torch==$(TORCH)/; s/^triton==[^;]*/triton/)

.PHONY: demo picture report test lint bench clean sanitize help

## demo: the main job, an experiment of the paper with all its arms, its table and its page
demo: $(VENV)/ready
	$(BIN)/noisyact reproduce unique --preset short --seeds 1 --out out/demo
	$(BIN)/noisyact report out/demo -o out/demo/report.html

## picture: the picture of the README, a network that starts saturated, with and without noise
picture: $(VENV)/ready
	$(BIN)/python examples/saturated_start.py

## report: the page of the results at the paper's size
report: $(VENV)/ready
	$(BIN)/noisyact report results -o out/report.html

## test: lint, then the tests on every core; with TORCH=2.15.0 the tests on that torch
test: $(if $(TORCH),$(VENV)/ready,lint)
	$(BIN)/python -m pytest -q -rs -n auto

## lint: ruff and pyright
lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

## bench: the speed of activations and recurrent layers
bench: $(VENV)/ready
	$(BIN)/python -m noisyact_lab.bench activations
	$(BIN)/python -m noisyact_lab.bench recurrent

# The C kernels are compiled by the install, so their sources are among what it depends on.
$(VENV)/ready: requirements.txt pyproject.toml hatch_build.py $(wildcard src/noisyact/ops/*/*.[ch]) $(wildcard src/noisyact/ops/recurrent/cpu/*.[ch]) src/noisyact/ops/native/build.py
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'noisyact needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	sed '$(OTHER_TORCH)' requirements.txt > $(VENV)/requirements.txt
	@echo "Installing $$(grep -c == $(VENV)/requirements.txt) packages into $(VENV), $$(grep '^torch==' $(VENV)/requirements.txt) among them. This takes minutes and 3 to 7 GB."
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -r $(VENV)/requirements.txt
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

## clean: remove the environments and all outputs
clean:
	rm -rf .venv .venv-* out src/noisyact/ops/native/libraries

## sanitize: the C kernels' tests and fuzzers under AddressSanitizer and UndefinedBehaviorSanitizer
sanitize: $(VENV)/ready
	$(BIN)/python tests/support/sanitized.py

## help: this list
help:
	@sed -n 's/^## /make /p' Makefile
