"""What `import shardcore` and finding the plugins cost, in a fresh interpreter each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

MODULE_BUDGET: Final = 23
"""Modules that the import may load beyond those of NumPy, pluggy and shardcore itself.

And beyond those of `importlib.metadata`, which finds the plugins: 10 more in Python 3.12.
"""

FORBIDDEN: Final = {"jax", "ml_dtypes", "pyarrow", "scipy", "torch", "tensorflow", "matplotlib"}
PLUGINS: Final = {"shardcore_cpu", "shardcore_sim", "shardcore_optimizers"}

IMPORT: Final = """
import json, sys
import importlib.metadata, numpy, pluggy
before = set(sys.modules)
import shardcore
print(json.dumps(sorted(set(sys.modules) - before)))
"""

DISCOVER: Final = """
import json
import shardcore
print(json.dumps([name for name, info in shardcore.backends().items() if info.available]))
"""


def run(code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "SHARDCORE_PLUGINS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.benchmark(group="start", min_rounds=5)
def test_import(benchmark: Callable[..., Any]) -> None:
    loaded = benchmark(run, IMPORT)
    packages = {name.partition(".")[0] for name in loaded}
    assert "shardcore" in packages
    assert packages & FORBIDDEN == set()
    assert packages & PLUGINS == set()
    others = [name for name in loaded if name.partition(".")[0] != "shardcore"]
    assert len(others) <= MODULE_BUDGET, f"{len(others)} modules loaded: {others}"


@pytest.mark.benchmark(group="start", min_rounds=5)
def test_plugin_discovery(benchmark: Callable[..., Any]) -> None:
    assert {"cpu", "sim"} <= set(benchmark(run, DISCOVER))
