# Builds .venv from the exact pins of ci/constraints.txt and works in it.
#
#   make fuzz    fuzz the built-in decoder; other options of `slotfuzz run`: make fuzz RUN="--seed 3 --schedules 100"
#   make test    linters, types, import floors, tests
#   make test-long   the tests that take longest: kills, full disks, nights, what a load costs, twins in searches
#   make engines     the real engines that install quickly (15 s, 380 MB): make test runs their tests where they are
#
# Another interpreter: make test PYTHON=python3.12. Where pip looks for packages is pip's own configuration.

PYTHON ?= python3
RUN ?= --seconds 30

BIN := .venv/bin
BUILT := .venv/.built
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint ci/constraints.txt

.PHONY: fuzz test test-long engines

fuzz: $(BUILT)
	$(BIN)/slotfuzz run $(RUN)

test: $(BUILT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2

test-long: $(BUILT)
	$(BIN)/pytest -n 2 -m long

engines: $(BUILT)
	$(PIP) xllamacpp openvino-genai

# torch comes first and by its pin, so that no other package's open range picks a build. The build tools come with it, not
# in pip's own build environment, which knows no pins. The stamp is written last: what was left half-built is built again.
$(BUILT): pyproject.toml ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "PYTHON must be Python 3.11 or newer, got $(PYTHON) ($$($(PYTHON) --version 2>&1))" >&2; exit 2; }
	@echo "building .venv (a minute, and torch to download)"
	$(PYTHON) -m venv --clear .venv
	$(PIP) torch hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
