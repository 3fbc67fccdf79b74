# All targets run in the virtual environment .venv, which is created on first use with the versions in requirements.txt.
# TORCH=2.15.0 uses a second environment, .venv-2.15.0, with that torch release and the Triton release it depends on.
PYTHON ?= python3
VENV := .venv$(if $(TORCH),-$(TORCH))
BIN := $(VENV)/bin
OTHER_TORCH := $(if $(TORCH),s/^torch==.*/torch==$(TORCH)/; s/^triton==[^;]*/triton/)

.PHONY: demo picture report test lint bench clean sanitize help

## demo: run one of the paper's experiments with all its arms, and write its table and report
demo: $(VENV)/ready
	$(BIN)/noisyact reproduce unique --preset short --seeds 1 --out out/demo
	$(BIN)/noisyact report out/demo -o out/demo/report.html

## picture: draw the README's picture, a network that starts saturated, with and without noise
picture: $(VENV)/ready
	$(BIN)/python examples/saturated_start.py

## report: write the report of the results at the paper's size
report: $(VENV)/ready
	$(BIN)/noisyact report results -o out/report.html

# One more worker than cores, because some tests wait for other processes.
## test: lint, then run the tests on all cores (TORCH=2.15.0: only the tests, with that torch release)
test: $(if $(TORCH),$(VENV)/ready,lint)
	$(BIN)/python -m pytest -q -rs -n $$(($$(nproc) + 1))

## lint: check the code with ruff and pyright
lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

## bench: measure the speed of activations and recurrent layers
bench: $(VENV)/ready
	$(BIN)/python -m noisyact_lab.bench activations
	$(BIN)/python -m noisyact_lab.bench recurrent

# Installing the package compiles the C kernels, so the environment also depends on their sources.
$(VENV)/ready: requirements.txt pyproject.toml hatch_build.py $(wildcard src/noisyact/ops/*/*.[ch]) $(wildcard src/noisyact/ops/recurrent/cpu/*.[ch]) src/noisyact/ops/native/build.py
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'noisyact needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	sed '$(OTHER_TORCH)' requirements.txt > $(VENV)/requirements.txt
	@echo "Installing $$(grep -c == $(VENV)/requirements.txt) packages into $(VENV), including $$(grep '^torch==' $(VENV)/requirements.txt). This takes several minutes and 3 to 7 GB."
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -r $(VENV)/requirements.txt
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

## clean: remove the environments and all outputs
clean:
	rm -rf .venv .venv-* out src/noisyact/ops/native/libraries

## sanitize: run the C kernels' tests and fuzzers under AddressSanitizer and UndefinedBehaviorSanitizer
sanitize: $(VENV)/ready
	$(BIN)/python tests/support/sanitized.py

## help: list the targets
help:
	@sed -n 's/^## /make /p' Makefile
