# Everything runs in the project's own environment, made on first use with the versions of requirements.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo picture report test lint bench clean

# The main job: an experiment of the paper with all its arms, its table and its page.
demo: .venv/ready
	$(BIN)/noisyact reproduce unique --preset short --seeds 1 --out out/demo
	$(BIN)/noisyact report out/demo -o out/demo/report.html

# The picture of the README: a network that starts saturated, with and without noise.
picture: .venv/ready
	$(BIN)/python examples/saturated_start.py

# The page of the results at the paper's size.
report: .venv/ready
	$(BIN)/noisyact report results -o out/report.html

test: lint
	$(BIN)/python -m pytest -q -rs -n auto

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/ready
	$(BIN)/python -m noisyact.bench activations
	$(BIN)/python -m noisyact.bench recurrent

# The C kernels are compiled by the install, so their sources are among what it depends on.
.venv/ready: requirements.txt pyproject.toml hatch_build.py $(wildcard src/noisyact/ops/*/*.[ch]) src/noisyact/ops/native/build.py
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'noisyact needs Python 3.11 or newer')"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf .venv out src/noisyact/ops/native/libraries

# The C kernels under AddressSanitizer and UndefinedBehaviorSanitizer: the kernels' tests and fuzzers, no error allowed.
sanitize: .venv/ready
	$(BIN)/python tests/sanitized.py
.PHONY: sanitize
