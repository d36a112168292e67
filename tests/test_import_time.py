"""What `import shardcore` costs, and what comes with it: no framework that was not asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SECONDS = 0.15
"""Beyond NumPy, of this process's own time: other programs make the clock on the wall run on."""

FRAMEWORKS = {
    "flax", "jax", "jaxlib", "keras", "ml_dtypes", "optax", "pandas", "polars", "pyarrow", "scipy",
    "tensorflow", "torch", "torchrec",
}  # fmt: skip

TIMED = """
import json, sys, time
import numpy
before = time.process_time()
import shardcore as sc
took = time.process_time() - before
sc.backends()
sc.optimizers.SGD(0.1)
sc.ShardedEmbedding(sc.FeatureConfig(sc.TableConfig(5, 2)), sc.optimizers.SGD(0.1))([[1]])
print(json.dumps([took, sorted(sys.modules)]))
"""


def run(folder):
    """Return the seconds, and the packages that are there after a lookup."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled to bytecode
    done = subprocess.run(
        [sys.executable, "-P", "-c", TIMED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    took, modules = json.loads(done.stdout)
    return took, {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytecode")
    run(folder)  # writes the bytecode
    return [run(folder) for _ in range(5)]


def test_it_takes_little_more_than_numpys(runs):
    assert min(took for took, _ in runs) <= SECONDS


def test_no_framework_is_imported_unasked(runs):
    for _, packages in runs:
        assert "shardcore" in packages
        assert packages & FRAMEWORKS == set()
