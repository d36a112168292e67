"""The door is imported when it is asked for, and says what is missing. Runs without TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )


TOLD = """
try:
    import shardcore.tf
except Exception as error:
    from shardcore.errors import UnavailableError
    print(isinstance(error, UnavailableError), isinstance(error, ImportError), error)
"""


def test_nothing_imports_tensorflow_unasked():
    code = "import sys, shardcore as sc; sc.optimizers.SGD(0.1); sc.backends()\n"
    names = ("tensorflow", "keras", "jax", "shardcore.tf")
    done = run(code + f"print([name for name in {names} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("missing", ["tensorflow", "keras"])
def test_without_tensorflow_the_import_says_so(missing):
    done = run(f"import sys\nsys.modules[{missing!r}] = None\n{TOLD}")
    told = (
        "True True shardcore.tf needs the package tensorflow, of 2.18 or later: pip install "
        "tensorflow\n"
    )
    assert done.stdout == told, done.stderr


def test_keras_on_another_framework_is_told():
    keras = pytest.importorskip("keras", reason="keras is not installed")
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    pytest.importorskip("jax", reason="jax is not installed")
    done = run(TOLD, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    told = (
        f"True False shardcore.tf needs Keras 3 on TensorFlow, got Keras {keras.__version__} on "
        "jax: set the environment variable KERAS_BACKEND=tensorflow before keras is imported\n"
    )
    assert done.stdout == told, done.stderr
