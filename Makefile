# Two commands do everything: `make demo` and `make test`. Both set up what they need on the way.
PYTHON ?= python3
# torch is installed first: its CPU build is enough here, and the package itself asks only for torch>=2.6.
TORCH ?= torch==2.13.0
# Test processes at once. Files, not single tests, are handed out: tests of one file share loaded models.
TEST_JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PARALLEL = -n $(TEST_JOBS) --dist loadfile
CLANG_FORMATTED = $(shell git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh')

NATIVE_SOURCES = $(shell find kernels images host_runtime/transport host_runtime/cuda CMakeLists.txt -name '*.[chS]' \
	-o -name '*.cc' -o -name '*.cmake' -o -name '*.ld' -o -name '*.map' -o -name CMakeLists.txt)

.PHONY: help setup demo test test-fast lint format bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(VENV)/.system-packages: .ci/system-packages
	@sh .ci/system-packages $(PYTHON)
	@mkdir -p $(VENV) && touch $@

$(VENV)/.installed: $(VENV)/.system-packages pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	@touch $@
	@touch $(VENV)/.native

# The native parts are built by the package build; again only when one of their sources changed.
$(VENV)/.native: $(VENV)/.installed $(NATIVE_SOURCES)
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

setup: $(VENV)/.native ## make .venv with duckctl (editable) and everything it needs

demo: setup ## the main job: a lab of ducks, sharded weights, two answered prompts
	$(BIN)/duckctl demo

test: setup ## every test
	$(BIN)/python -m pytest tests $(PARALLEL)

test-fast: setup ## the tests that take less than a few seconds each
	$(BIN)/python -m pytest tests -m 'not slow' $(PARALLEL)

lint: setup ## ruff, mypy --strict, clang-format; C and C++ are built with -Werror by setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CLANG_FORMATTED)

format: setup ## format Python, C and C++
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CLANG_FORMATTED)

bench: setup ## the kernels against this machine's memory roofline
	$(BIN)/duckctl bench kernels

clean: ## remove build outputs and the virtual environment
	rm -rf $(VENV) build
