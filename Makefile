# Every target sets up what it needs in an environment of its own, from a fresh clone.
# Needed: Python 3.11+ with headers and venv, a C compiler, make, a package index.

PYTHON ?= python3
DEMO_ARGS ?=

.PHONY: demo test lint bench clean

.venv-demo/ready: pyproject.toml setup.py $(shell find shardcore backends plugins -name '*.p[yx][xdi]*' -o -name '*.h')
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet --upgrade pip
	.venv-demo/bin/python -m pip install --quiet '.[demo]'
	touch $@

.venv-test/ready: pyproject.toml setup.py $(shell find shardcore backends plugins -name '*.p[yx][xdi]*' -o -name '*.h')
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/python -m pip install --quiet --upgrade pip
	.venv-test/bin/python -m pip install --quiet --editable '.[demo,lint,test]'
	touch $@

demo: .venv-demo/ready  ## the main job
	.venv-demo/bin/shardcore demo $(DEMO_ARGS)

test: .venv-test/ready  ## all tests, doctests included
	.venv-test/bin/python -P -m pytest --doctest-modules shardcore backends plugins
	.venv-test/bin/python -P -m pytest

lint: .venv-test/ready  ## style and types
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy

bench: .venv-test/ready  ## measure
	.venv-test/bin/python -P -m pytest bench --benchmark-enable --benchmark-only

clean:
	rm -rf .venv-demo .venv-test build dist *.egg-info demo-output
	find shardcore plugins -name '*.so' -delete
	find shardcore plugins -name '*.c' -delete
