# Every target sets up what it needs in an environment of its own, from a fresh clone.
# Needed: Python 3.11+ with headers and venv, a C compiler, make, a package index.

PYTHON ?= python3
DEMO_ARGS ?=
# What test-pjrt installs, and with which extras: "jax" in place of "tpu" and "sparsecore" leaves libtpu out.
PJRT_FROM ?= --editable .
PJRT_EXTRAS ?= test,tpu,sparsecore,example
# Such as "--sample 10", or the name of a part or of a fault.
MUTANTS_ARGS ?=

# What test-peers compares with, at the versions that were compared; the last two without what they
# ask for, which is more than the tests need. Some has no packages for the newest Python.
PEERS ?= torch==2.13.0 tensorflow-cpu==2.21.0 jax==0.10.2 flax==0.12.8 polars==2.1.0 pandas==3.1.1
BARE_PEERS ?= fbgemm-gpu-cpu==1.8.0 jax_tpu_embedding==0.1.0

.PHONY: demo check test test-pjrt battery test-peers test-clone test-pages test-aarch64 test-long compile-tpu mutants lint bench clean

# Installations are editable: what is Python runs as it is now; what is compiled is watched here.
# The version is one in the metadata too, which an installation copies.
COMPILED := shardcore/__init__.py $(shell find shardcore plugins -name '*.p[yx][xdi]' -o -name '*.h')

.venv-demo/ready: pyproject.toml setup.py $(COMPILED)
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet --upgrade pip
	.venv-demo/bin/python -m pip install --quiet --editable '.[demo]'
	touch $@

.venv-test/ready: pyproject.toml setup.py $(COMPILED)
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/python -m pip install --quiet --upgrade pip
	.venv-test/bin/python -m pip install --quiet --editable '.[demo,lint,test]'
	touch $@

.venv-pjrt/ready: pyproject.toml setup.py $(COMPILED)
	$(PYTHON) -m venv .venv-pjrt
	.venv-pjrt/bin/python -m pip install --quiet --upgrade pip
	.venv-pjrt/bin/python -m pip install --quiet $(PJRT_FROM)'[$(PJRT_EXTRAS)]'
	touch $@

.venv-peers/ready: pyproject.toml setup.py $(COMPILED)
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --upgrade pip
	.venv-peers/bin/python -m pip install --quiet $(PEERS)
	.venv-peers/bin/python -m pip install --quiet --no-deps $(BARE_PEERS)
	.venv-peers/bin/python -m pip install --quiet --editable '.[test]'
	touch $@

# With Cython, as kernels with a fault in them are compiled in a copy of the tree.
.venv-mutants/ready: pyproject.toml setup.py
	$(PYTHON) -m venv .venv-mutants
	.venv-mutants/bin/python -m pip install --quiet --upgrade pip
	.venv-mutants/bin/python -m pip install --quiet 'setuptools>=77' 'cython>=3.1'
	.venv-mutants/bin/python -m pip install --quiet --editable '.[demo,test]'
	touch $@

demo: .venv-demo/ready  ## the main job
	.venv-demo/bin/shardcore demo $(DEMO_ARGS)

DOCTESTS := --doctest-modules shardcore backends plugins --ignore=backends/shardcore_pjrt \
	--ignore=shardcore/jax --ignore=shardcore/tf --ignore=shardcore/torch
# Each process takes neighbours, which share what is made once, and then of what others have left.
IN_PARALLEL := -n auto --dist worksteal

check: lint  ## style, types, doctests and a tenth of the tests: a minute
	.venv-test/bin/python -P -m pytest -q $(DOCTESTS)
	.venv-test/bin/python -P -m pytest -q --tenth $(IN_PARALLEL)

# What tries samples by chance tries a third as many as in .ci/run; each run has a seed of its own.
test: export SHARDCORE_TEST_SECONDS ?= 1
test: .venv-test/ready  ## all tests, doctests included
	.venv-test/bin/python -P -m pytest $(DOCTESTS)
	.venv-test/bin/python -P -m pytest $(IN_PARALLEL)

# Several processes wait for each other, and libtpu lets one process in: those run alone. The
# conformance suite compiles thousands of programs, more than one process should.
ON_EIGHT := JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 \
	.venv-pjrt/bin/python -P -m pytest

OF_PROCESSES := tests/shardcore_pjrt/test_processes.py tests/shardcore_pjrt/test_own_samples.py

test-pjrt: .venv-pjrt/ready  ## the backend pjrt: on eight CPU devices, and compiled for TPUs without one
	JAX_PLATFORMS=cpu .venv-pjrt/bin/python -P -m pytest --doctest-modules --pyargs shardcore_pjrt
	$(ON_EIGHT) $(IN_PARALLEL) -m "not libtpu" tests/shardcore_pjrt bench/bench_pjrt.py tests/examples/test_index.py \
		$(addprefix --ignore=,$(OF_PROCESSES) tests/shardcore_pjrt/test_conformance.py)
	$(ON_EIGHT) $(IN_PARALLEL) -m "not libtpu" tests/shardcore_pjrt/test_conformance.py
	$(ON_EIGHT) $(OF_PROCESSES)
	$(ON_EIGHT) -m libtpu tests/shardcore_pjrt
	JAX_PLATFORMS=cpu PYTHONPATH=tests/peers \
		.venv-pjrt/bin/python -P -m pytest -p no_skips tests/shardcore_optimizers/test_optimizers_in_jax.py

# Another run of the same batches: SHARDCORE_TEST_SEED, which is printed first.
BATCHES ?= 600

battery: .venv-pjrt/ready  ## random batches on 1, 2, 3 and 8 devices, by the rules of TPUs and GPUs, beside cpu; counted
	SHARDCORE_TEST_BATCHES=$(BATCHES) $(ON_EIGHT) -s tests/shardcore_pjrt/test_battery.py

test-peers: .venv-peers/ready  ## against torch, FBGEMM, TensorFlow, SparseCore, polars, pandas; with JAX; a missing one fails
	JAX_PLATFORMS=cpu PYTHONPATH=tests/peers .venv-peers/bin/python -P -m pytest -p no_skips \
		tests/shardcore_optimizers/test_optimizers_against_peers.py \
		tests/shardcore_optimizers/test_optimizers_against_sparsecore.py tests/shardcore_bench \
		tests/features/test_frames.py tests/features/test_weight_columns.py tests/ids/test_hashing_against_tensorflow.py \
		tests/examples/test_criteo.py tests/torch tests/jax tests/tf \
		"tests/test_docs.py::test_code_of_a_page_runs_and_prints_what_is_shown[docs/doors.md]" \
		"tests/test_docs.py::test_code_of_a_page_runs_and_prints_what_is_shown[docs/torch.md]" \
		"tests/test_docs.py::test_code_of_a_page_runs_and_prints_what_is_shown[docs/jax.md]" \
		"tests/test_docs.py::test_code_of_a_page_runs_and_prints_what_is_shown[docs/tensorflow.md]"
	JAX_PLATFORMS=cpu .venv-peers/bin/python -P -m pytest -q --doctest-modules shardcore/torch shardcore/jax shardcore/tf

# Seconds of interrupts per mode, backend and pair; every bytecode, 250 forks per mode and backend.
SECONDS ?= 60

test-long: .venv-test/ready  ## interrupts, forks and torn rows at length: an hour or two
	SHARDCORE_TEST_SECONDS=$(SECONDS) .venv-test/bin/python -P -m pytest -v tests/hostile \
		-o faulthandler_timeout=0

test-clone: .venv-test/ready  ## the README's commands in fresh copies of this clone; minutes of compiling
	.venv-test/bin/python -P -m pytest -m clone tests/clone -o faulthandler_timeout=0

# Which tests: the arguments of tests/aarch64/run, else those of the kernels.
test-aarch64:  ## the kernels' tests on AArch64, emulated; root, debootstrap, qemu, a cross compiler; a quarter of an hour
	PYTHON="$(PYTHON)" tests/aarch64/run

# SHARDCORE_WHEEL names a wheel of this clone that is built already.
test-pages: .venv-test/ready  ## every page in an environment with only what it says to install; minutes of fetching
	.venv-test/bin/python -P -m pytest -m clone tests/pages -n 2 --dist worksteal

compile-tpu: .venv-pjrt/ready  ## every optimizer and width for four TPUs and one of 256 chips; 20 minutes
	JAX_PLATFORMS=cpu .venv-pjrt/bin/python -m bench.ahead_of_time --full

mutants: .venv-mutants/ready  ## plant every known fault in a copy; its test must find it; half an hour
	.venv-mutants/bin/python tests/mutants $(MUTANTS_ARGS)

lint: .venv-test/ready  ## style and types
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy

bench: .venv-test/ready  ## measure
	.venv-test/bin/python -P -m pytest bench --benchmark-enable --benchmark-only

clean:
	rm -rf .venv-demo .venv-test .venv-pjrt .venv-peers .venv-mutants build dist *.egg-info demo-output
	find shardcore plugins '(' -name '*.so' -o -name '*.c' -o -name '*.built' ')' ! -name machine.c -delete
