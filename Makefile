# All targets run in the virtual environment .venv, which is created on first use with the versions in requirements.txt.
# TORCH=2.15.0 uses a second environment, .venv-2.15.0, with that torch release and the Triton release it depends on, and
# PYTHON=python3.13 one with that Python, .venv-py3.13.
PYTHON ?= python3
OTHER_PYTHON := $(if $(filter file,$(origin PYTHON)),,$(shell $(PYTHON) -c 'import sys; print("py%d.%d" % sys.version_info[:2])'))
VENV := .venv$(if $(TORCH),-$(TORCH))$(if $(OTHER_PYTHON),-$(OTHER_PYTHON))
BIN := $(VENV)/bin
OTHER_TORCH := $(if $(TORCH),s/^torch==.*/torch==$(TORCH)/; s/^triton==[^;]*/triton/)

DEMO := reference,leak,nan,curriculum,nan-annealed,nanil-annealed

.PHONY: demo picture report docs test lint bench wheels clean sanitize help

# The paper's arms and a control without noise: less than three minutes on two cores, also beside other work.
## demo: run one of the paper's experiments, and write its table and report
demo: $(VENV)/ready
	$(BIN)/noisyact reproduce unique --preset short --seeds 1 --arms $(DEMO) --out out/demo
	$(BIN)/noisyact report out/demo -o out/demo/report.html

## picture: draw the README's picture, a network that starts saturated, with and without noise
picture: $(VENV)/ready
	$(BIN)/python examples/saturated_start.py

## report: write the report of the results at the paper's size
report: $(VENV)/ready
	$(BIN)/noisyact report results -o out/report.html

# -W: a warning is an error; -n: a reference that leads nowhere is a warning.
## docs: build the documentation into out/docs
docs: $(VENV)/ready
	$(BIN)/python -m sphinx -b html -W -n --keep-going -q docs out/docs
	@echo "out/docs/index.html"

# One more worker than cores, because some tests wait for other processes. With worksteal a worker gets neighbouring
# tests, which share what a module sets up.
## test: lint, then run the tests on all cores (TORCH=2.15.0, PYTHON=python3.13: only the tests, with that version)
test: $(if $(TORCH)$(OTHER_PYTHON),$(VENV)/ready,lint)
	$(BIN)/python -m pytest -q -rs -n $$(($$(nproc) + 1)) --dist worksteal --record-versions

## lint: check the code with ruff and pyright
lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --threads $$(nproc)

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

# In an environment of its own, because it needs zig and no torch.
## wheels: build the sdist and the wheels of all platforms into dist/, and check the Linux ones with auditwheel
wheels: .venv-wheels/ready
	.venv-wheels/bin/python release/wheels.py
	.venv-wheels/bin/python release/emulated.py

.venv-wheels/ready: release/requirements.txt
	$(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/python -m pip install --progress-bar off --disable-pip-version-check -r release/requirements.txt
	touch $@

## clean: remove the environments and all outputs
clean:
	rm -rf .venv .venv-* dist out src/noisyact/ops/native/libraries

## sanitize: run the C kernels' tests and fuzzers under AddressSanitizer and UndefinedBehaviorSanitizer
sanitize: $(VENV)/ready
	$(BIN)/python tests/support/kernels/sanitized.py

## help: list the targets
help:
	@sed -n 's/^## /make /p' Makefile
