# `make test` and `make train` do everything on a fresh machine with Python 3.11 and a C++ compiler.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
OUT ?= runs/digits

.PHONY: all env build test train lint format bench clean

all: build

# The environment is made anew when a requirement changes. torch comes first: our extension is built against it.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q --no-compile -c constraints.txt torch==2.13.0 numpy setuptools wheel
	$(BIN)/pip install -q --no-compile -c constraints.txt --no-build-isolation -e '.[triton,trainer,bench,dev]'
	touch $@

env: $(VENV)/.ready

build: env
	$(BIN)/python setup.py -q build_ext

test: build
	$(BIN)/python -m pytest

train: build
	$(BIN)/carlg train --dataset digits --select last --out $(OUT)
	@echo "report: $(OUT)/report.html"

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

bench: build
	$(BIN)/python -m benchmarks.run

clean:
	rm -rf build dist *.egg-info carlg_kernels/_C.so
