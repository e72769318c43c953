# make demo and make test build what they need; nothing else has to be set up.
PYTHON ?= python3
BIN := .venv/bin
SET ?= friedman

.DEFAULT_GOAL := help
.PHONY: help venv demo test docs dist lint types bench clean

help:  ## show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: .venv/.ready  ## build .venv with the pinned versions

# What the command line needs; tests and docs need more.
.venv/.front: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no '$(PYTHON)'; set PYTHON=/path/to/python3.11+" >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "bayesrule needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[front]'
	touch $@

.venv/.ready: .venv/.front tests/peers/requirements.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/peers/requirements.txt
	touch $@

demo: .venv/.front  ## compare methods on a data set inside scikit-learn; table and report
	$(BIN)/bayesrule compare $(SET) --splits 2 --out demo

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready
	$(BIN)/mypy

test: lint types  ## ruff, the type checker, pytest and doctests
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10

docs: .venv/.ready  ## the site, in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict --quiet

dist:  ## a wheel in dist/, tried in an environment that has nothing else
	rm -rf dist build/lib build/bdist.* build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt torch
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt "$$(echo dist/bayesrule-*.whl)[front]"
	build/wheel/bin/bayesrule --help > /dev/null
	build/wheel/bin/python -I tests/try_wheel.py
	@ls dist/*.whl

bench: .venv/.ready  ## speed as multiples of an Adam step, on a quiet machine
	$(BIN)/python -m benchmarks speed

clean:  ## remove everything that make builds
	rm -rf .venv build dist demo .pytest_cache .mypy_cache .ruff_cache
