# `make demo` and `make test` do all their own set-up; python3 and a package registry are enough.
PYTHON ?= $(if $(filter Windows_NT,$(OS)),python,python3)
VENV ?= .venv
# Windows puts programs in another folder of an environment.
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# Without an NVIDIA GPU the constraints keep torch at the release whose CPU build is enough.
CONSTRAINTS := $(shell command -v nvidia-smi >/dev/null 2>&1 || echo "-c constraints-cpu.txt")

# Coverage costs little from Python 3.12 on, where the interpreter itself records the lines that ran; before, tests take
# about 40% longer. `make test COVERAGE=` skips it.
COVERAGE ?= --cov --cov-report=term
COVERAGE_CORE := $(shell $(PYTHON) -c "import sys; print('sysmon' if sys.version_info >= (3, 12) else 'ctrace')")

.PHONY: demo test test-fast test-gpu torture lint docs dist benchmarks clean

# Shorter: make demo MINUTES=2
demo: $(VENV)/.installed
	$(BIN)/stochseg demo $(if $(MINUTES),--minutes $(MINUTES))

# Two processes of one thread each beat one process of two: the tensors of the tests are small.
test: $(VENV)/.installed-dev
	COVERAGE_CORE=$(COVERAGE_CORE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup $(COVERAGE)

# The mathematics, the files and the commands, in minutes: for systems other than Linux.
test-fast: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/analysis tests/core tests/data tests/metrics tests/networks \
		tests/models/test_base.py tests/models/test_saving.py tests/cli/test_app.py tests/cli/test_predict.py \
		tests/inference/test_pictures.py tests/inference/test_nifti.py tests/inference/test_gather.py \
		tests/test_config.py tests/test_files.py tests/test_owners.py tests/test_types.py

# In one process: tests that share a GPU would compete for its memory.
test-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m gpu tests/gpu

# Hours: kills, fuzzing and flipped bits, seeded; repeat the command to continue. Shorter: make torture KILLS=20 SECONDS=60
KILLS ?= 200
SECONDS ?= 1800
torture: $(VENV)/.installed-dev
	mkdir -p runs/torture
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.kills --kills $(KILLS) --out runs/torture/kills.csv
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.fuzz --seconds $(SECONDS) --out runs/torture/fuzz.csv
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture.bits --out runs/torture/bits.csv

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, in site/; open site/index.html, no server needed.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and source distribution, in dist/. STOCHSEG_REPOSITORY=https://… is the address that their links lead to.
dist: $(BIN)/python
	$(BIN)/pip install --quiet build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*

benchmarks: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/reverse_step.py
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/imports.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/learning.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints-cpu.txt
	$(BIN)/pip install --quiet $(CONSTRAINTS) -e .
	touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints-cpu.txt
	$(BIN)/pip install --quiet $(CONSTRAINTS) -e ".[dev]"
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist site .coverage .pytest_cache .mypy_cache .ruff_cache
