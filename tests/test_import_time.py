"""What `import shardcore` costs, and what comes with it: no framework that was not asked for."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import pytest

TIMES_NUMPYS = 2.0
"""Of NumPy's own import, which is timed in the same runs: a slow machine is slow with both. It was
1.0 to 1.1 when this was written, 1.5 beside three busy programs."""

FRAMEWORKS = {
    "flax", "jax", "jaxlib", "keras", "ml_dtypes", "optax", "pandas", "polars", "pyarrow", "scipy",
    "tensorflow", "torch", "torchrec",
}  # fmt: skip

TIMED = """
import json, sys, time
times = [time.process_time()]  # of this process: other programs make the clock on the wall run on
import numpy
times.append(time.process_time())
import shardcore as sc
times.append(time.process_time())
sc.backends()
sc.optimizers.SGD(0.1)
sc.ShardedEmbedding(sc.FeatureConfig(sc.TableConfig(5, 2)), sc.optimizers.SGD(0.1))([[1]])
print(json.dumps([times, sorted(sys.modules)]))
"""


def run(folder):
    """Return the seconds of NumPy's import, those of ours, and the packages after a lookup."""
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
    (start, numpy_imported, all_imported), modules = json.loads(done.stdout)
    packages = {name.partition(".")[0] for name in modules}
    return numpy_imported - start, all_imported - numpy_imported, packages


@pytest.mark.slow
def test_it_takes_little_more_than_numpys(tmp_path):
    run(tmp_path)  # writes the bytecode
    ratios = [ours / numpys for numpys, ours, _ in (run(tmp_path) for _ in range(5))]
    assert statistics.median(ratios) <= TIMES_NUMPYS, ratios


def test_no_framework_is_imported_unasked(tmp_path):
    _, _, packages = run(tmp_path)
    assert "shardcore" in packages
    assert packages & FRAMEWORKS == set()
