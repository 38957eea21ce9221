# `make help` lists the targets. Each of them installs what it needs on its first run.

SHELL := /bin/bash
# Where this is set, as in many container images, each process compiles all that it imports: 20 s
# instead of 8 s for this package, some hundred times in the tests.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
# An empty value installs the newest versions: `make venv CONSTRAINTS=`.
CONSTRAINTS ?= constraints.txt
EXTRAS ?= dev,docs,ax,optuna,xopt,baybe,fully-bayesian
# Test processes. Each runs one thread, so that they do not compete for the cores, and whole files,
# so that what the tests of a file share is made once, in the order of tests/conftest.py.
WORKERS ?= 2
BY_FILE := --dist loadfile --no-loadscope-reorder

# The first interpreter that runs and is new enough.
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(or $(if $(CONSTRAINTS),$(shell sed -n '/^torch==/p' $(CONSTRAINTS))),torch)
TYPED := $(wildcard botorch_calib benchmarks tests)
# `make tutorials EXAMPLES=` leaves the examples out.
EXAMPLES ?= $(wildcard examples/*.py)
# Later tutorials take longer, and start first, so that no core is idle at the end.
TUTORIALS := $(shell ls -r tutorials/[0-9]*.py)
executed = $(patsubst %.py,build/%.executed,$(1))
FIGURES := docs/images/drawn/.all
SOURCES := $(shell find botorch_calib tutorials/scripts examples/experiments -name '*.py')
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: venv
venv: $(STAMP) ## Create the virtual environment and install the package for development

# torch comes first and alone: it is the largest download, and a retry need not repeat it. Nothing is
# compiled before its first import: compiling all 20,000 files takes over a minute.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --upgrade pip
	$(BIN)/python -m pip install --no-compile "$(TORCH)"
	$(BIN)/python -m pip install --no-compile -e ".[$(EXTRAS)]" $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	touch $@

.PHONY: demo
demo: $(STAMP) ## Run the demonstration
	$(BIN)/python -m benchmarks.demo

.PHONY: test
test: $(STAMP) ## Run the tests, without the slow ones
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE)

.PHONY: test-slow
test-slow: $(STAMP) ## Run the slow tests: statistical validity and crashes
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) -m slow

# MKL chooses its kernels by the processor, and sums differ in their last digits. Two of its
# settings stand for other processors than this one.
.PHONY: test-processors
test-processors: $(STAMP) ## Run the tests as on an old processor, on one with AVX2 and on this one
	@failed=; for setting in MKL_CBWR=COMPATIBLE MKL_CBWR=AVX2 "-u MKL_CBWR"; do \
		echo "== env $$setting"; env $$setting $(MAKE) test || failed="$$failed [$$setting]"; \
	done; test -z "$$failed" || { echo "Failed under$$failed" >&2; exit 1; }

# `make test-downstream CLIENTS=xopt` runs one. Their tests import three more packages.
.PHONY: test-downstream
test-downstream: $(STAMP) ## Run the own tests of Ax, Optuna, Xopt, blop and BayBE against our classes
	$(BIN)/python -m pip install hypothesis pyfakefs tenacity
	$(ONE_THREAD) $(BIN)/python -m tests.downstream.run $(CLIENTS)

.PHONY: test-cuda
test-cuda: $(STAMP) ## Run the tests that have a device on a GPU
	$(BIN)/python -m pytest --device cuda

.PHONY: snapshots
snapshots: $(STAMP) ## Record the texts of tests/snapshots anew
	UPDATE_SNAPSHOTS=1 $(ONE_THREAD) $(BIN)/python -m pytest -q tests/snapshots

.PHONY: lint
lint: $(STAMP) ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)

.PHONY: format
format: $(STAMP) ## Sort imports, apply the safe fixes and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(STAMP) ## Measure speed
	$(BIN)/python -m benchmarks perf

.PHONY: gpu
gpu: $(STAMP) ## Measure speed on a GPU; writes benchmarks/tables/gpu.md
	$(BIN)/python -m benchmarks gpu

.PHONY: tutorials
tutorials: $(call executed,$(TUTORIALS) $(EXAMPLES)) ## Execute the tutorials and examples that are stale; notebooks lie beside them

# Times of files say nothing in a fresh clone, which holds the notebooks: a file in build says when
# each was executed here.
build/%.executed: %.py docs/execute.py $(SOURCES) $(STAMP)
	@echo "== $<"
	@mkdir -p $(@D)
	@MPLBACKEND=module://matplotlib_inline.backend_inline JUPYTER_PREFER_ENV_PATH=1 \
		PYTHONPATH=$(CURDIR)/examples $(ONE_THREAD) $(BIN)/python docs/execute.py "$<"
	@touch "$@"

# Sphinx would draw stale figures as well.
$(FIGURES): docs/drawn_figures.py $(wildcard docs/figures/*.py) $(SOURCES) $(STAMP)
	@$(ONE_THREAD) $(BIN)/python $<
	@touch $@

.PHONY: docs
docs: pages site ## Run the longer examples of pages, build build/docs; warnings are errors

.PHONY: pages
pages: $(STAMP) ## Run the longer examples of pages
	$(ONE_THREAD) $(BIN)/python -m pytest -q -m slow tests/test_docs.py tests/asynchronous/test_dask.py

.PHONY: site
site: $(STAMP) $(FIGURES) ## Build build/docs from the committed notebooks; warnings are errors
	$(ONE_THREAD) $(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet \
		-b html -d build/doctrees docs build/docs

.PHONY: links
links: $(STAMP) ## Check the documentation's links to the web
	$(BIN)/python -m sphinx --quiet -b linkcheck -d build/doctrees-links docs build/links

.PHONY: versions
versions: $(STAMP) ## Write docs/versions.md, where `make test` has passed
	$(BIN)/python docs/versions.py

.PHONY: build
build: $(STAMP) ## Build the wheel and the source distribution into dist
	rm -rf dist
	$(BIN)/python -m build

.PHONY: changes
changes: $(STAMP) ## Show the section that the files in changes/ would add to CHANGELOG.md
	$(BIN)/towncrier build --draft --version next

# As the release workflow does: what is built is checked, installed into an empty environment and run.
.PHONY: release-check
release-check: build ## Check the wheel and the source distribution in an environment of their own
	rm -rf build/release && $(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) dist/*.whl
	build/release/bin/python -m pip check
	build/release/bin/python -m pip install --quiet twine
	build/release/bin/twine check --strict dist/*
	cd build && release/bin/python ../tutorials/quickstart.py
	rm -rf build/sdist && mkdir build/sdist && tar -xzf dist/*.tar.gz --strip-components=1 -C build/sdist
	cd build/sdist && $(abspath $(BIN))/python -m pytest -q tests/benchmarks/test_structure.py \
		tests/benchmarks/test_tables.py tests/test_architecture.py tests/test_links.py

.PHONY: clean
clean: ## Delete built files and caches, but keep the virtual environment
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
