"""The door is imported when it is asked for, and says what is missing. Runs without JAX too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardcore.extras import pip_install

ROOT = Path(__file__).parents[2]


def run(code, *options, folder=None):
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )


def test_nothing_imports_jax_unasked():
    code = "import sys, shardcore as sc; sc.optimizers.SGD(0.1); sc.backends()\n"
    done = run(
        code + "print([name for name in ('jax', 'shardcore.jax') if name in sys.modules])", "-P"
    )
    assert done.stdout == "[]\n", done.stderr


def test_without_jax_the_import_says_so():
    code = (
        "import sys\nsys.modules['jax'] = None\n"
        "try:\n    import shardcore.jax\n"
        "except ImportError as error:\n"
        "    from shardcore.errors import UnavailableError\n"
        "    print(isinstance(error, UnavailableError), error)"
    )
    done = run(code, "-P")
    told = f"True shardcore.jax needs the package jax: {pip_install('jax')}\n"
    assert done.stdout == told, done.stderr


@pytest.mark.parametrize("options", [(), ("-P",)])
def test_jax_is_the_package_of_that_name(options):
    pytest.importorskip("jax", reason="jax is not installed")
    code = "import shardcore.jax, jax, shardcore.jax.function as f\nprint(f.jax is jax, jax.jit)"
    done = run(code, *options, folder=ROOT)
    assert done.stdout.startswith("True <function jit"), done.stderr
