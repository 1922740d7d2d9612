# Every target prepares .venv by itself; only the first time takes long.
# Options for the command behind a target: make test ARGS="-k causal"
# Another interpreter:                     make setup PYTHON=/path/to/python3

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-newest demo test test-gpu check bench soak docs native native-test kernel dist clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## prepare .venv with the pinned versions of constraints.txt
	@echo "$(VENV) is ready."

setup-newest: ## make .venv anew with the newest versions that pip finds; TORCH=2.11 picks those of torch
	@set -e; $(find_python); \
	"$$python" -m venv --clear $(VENV); \
	$(PIP) install $(if $(TORCH),"torch==$(TORCH).*",torch); \
	$(PIP) install -e '.[dev]'; \
	touch $(READY)

demo: $(READY) kernel ## see masked attention at work
	@$(BIN)/rearview demo $(ARGS)

test: $(READY) kernel ## run the tests; ARGS="-k name" picks some
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# Compiling kernels takes most of the time, so many processes share it; Triton keeps what they compile.
test-gpu: ## run the contract and the tests of the engine for Hopper GPUs, on such a GPU, with the python3 that has CUDA
	@PYTHONPATH=src $(or $(PYTHON),python3) -m pytest -n 12 -p no:cacheprovider -p no:benchmark -k hopper \
	    tests/attention/test_hopper.py tests/attention/test_hopper_schedule.py tests/attention/test_conformance.py $(ARGS)

check: $(READY) ## lint, format and types, all three even if one fails
	@failed=0; \
	$(BIN)/ruff check . || failed=1; \
	$(BIN)/ruff format --check . || failed=1; \
	$(BIN)/pyright || failed=1; \
	exit $$failed

bench: $(READY) kernel ## measure side by side with the alternatives
	@$(BIN)/python -m bench $(ARGS)

soak: $(READY) kernel ## kills, faults, power cuts, long loops and random calls for ten minutes; ARGS="--minutes 60"
	@$(BIN)/python -m bench soak $(ARGS)

# Material for MkDocs recommends its successor on every start, unless it is told not to. With --quiet, --strict would
# see no warnings.
docs: $(READY) kernel ## build the site of the documentation into site/; every warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)
	@echo "site/index.html is ready."

native: ## compile the CPU kernel into the source tree, only what changed; KERNEL=reference: the naive one
	@$(or $(wildcard $(BIN)/python),python3) native/build.py --kernel $(or $(KERNEL),native)

native-test: ## test the CPU kernel by itself: against the definition, with sanitizers, under valgrind
	@$(or $(wildcard $(BIN)/python),python3) native/tests/run.py $(ARGS)

# What the other targets run on: brought up to date, or, without a compiler, left out with a word.
kernel: $(READY)
	@$(BIN)/python native/build.py --optional

# The wheel is built from the sdist, so that neither has what the other lacks. auditwheel gives a wheel of Linux the tag
# of the oldest systems that it runs on; tags of other systems are right as they are.
dist: $(READY) ## build the sdist and the wheel of this platform for PyPI into dist/, and check both
	@rm -rf dist build/dist
	@REARVIEW_NATIVE=require $(BIN)/python -m build --no-isolation --outdir build/dist
	@mkdir dist && mv build/dist/*.tar.gz dist/
	@if [ "$$(uname)" = Linux ]; then PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/dist/*.whl; \
	    else mv build/dist/*.whl dist/; fi
	@$(BIN)/twine check --strict dist/*
	@if [ "$$(uname)" = Linux ]; then $(BIN)/auditwheel show dist/*.whl; fi

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis src/rearview/attention/engines/native/lib
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last. Without it .venv is made anew, so what a failed install left is never used; with an old
# one the packages are brought up to date in place.
# torch goes first and alone, at its exact pin: a looser requirement may pick a build with gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	@set -e; \
	if [ ! -e $(READY) ]; then \
	    $(find_python); \
	    echo "Setting up $(VENV) with $$("$$python" --version); the first time takes a minute or two."; \
	    "$$python" -m venv --clear $(VENV); \
	else \
	    echo "Bringing $(VENV) up to date."; \
	fi; \
	$(PIP) install -c constraints.txt "$$(grep '^torch==' constraints.txt)"; \
	$(PIP) install -c constraints.txt -e '.[dev]'; \
	touch $(READY)

# Sets $$python to the first interpreter that is new enough and can make environments, or explains what is missing.
define find_python
python=; unfit=; \
for name in $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3); do \
    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
    if "$$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then python="$$name"; break; fi; \
    unfit="$$name"; \
done; \
if [ -z "$$python" ] && [ -n "$$unfit" ]; then \
    echo "rearview: $$unfit has no venv module. Install it (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; \
elif [ -z "$$python" ]; then \
    echo "rearview: needs Python 3.11 or newer$(if $(PYTHON),; $(PYTHON) is not,, and found none on PATH). Or name one: make setup PYTHON=/path/to/python3" >&2; exit 1; \
fi
endef
