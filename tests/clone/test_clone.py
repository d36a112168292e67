"""The README's commands in a fresh clone, and what runs from inside the clone after each of them.

Python looks for modules in the current folder first, so there it finds the clone's own, whatever is
installed. These tests compile; they take minutes, and run with ``make test-clone``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = (
    *("setup.py", "pyproject.toml", "MANIFEST.in", "Makefile", "README.md", "LICENSE"),
    *("shardcore", "backends", "plugins", "tests", "bench"),
)
MADE = ("*.so", "*.c", "*.built", "__pycache__", "*.egg-info")
KEPT = "machine.c"  # of shardcore_bench: a source
SETTINGS = ("PYTHONPATH", "PYTHONSAFEPATH", "SHARDCORE_PLUGINS", "SHARDCORE_BACKEND", "MAKEFLAGS")

pytestmark = [
    pytest.mark.clone,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="these tests are not in a clone"),
]


def made(folder, names):
    return shutil.ignore_patterns(*MADE)(folder, names) - {KEPT}


def copy_of_the_sources(folder):
    folder.mkdir(exist_ok=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=made)
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


def run(folder, *command, code=0, **settings):
    """Return what a command prints in a folder, after it has ended as expected."""
    env = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    env["SHARDCORE_QUICK"] = "1"  # which modules run is asked, not how fast; `make test` builds all
    env.update(settings)
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def make(folder, *words):
    return run(folder, "make", *words, f"PYTHON={sys.executable}")


def make_demo(folder):
    return make(folder, "demo", f"DEMO_ARGS=--short --output-dir {folder / 'demo-output'}")


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


WHOLE = """
import sys
import numpy as np
import shardcore as sc
table = sc.TableConfig(10, 4, name="t")
for backend in ("cpu", "sim"):
    engine = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.Adagrad(0.1), backend)
    engine.enqueue([[1, 2], []])
    engine.apply_gradients(np.ones_like(engine.dequeue()))
import shardcore_cpu, shardcore_sim, shardcore_optimizers._update_baseline as update
for module in (sc, shardcore_cpu, shardcore_sim, update):
    print(module.__file__)
"""


def check_from_inside(clone, environment):
    """Run from inside the clone what the README says, and see that the clone's own modules ran."""
    python = clone / environment / "bin" / "python"
    files = run(clone, python, "-c", WHOLE).split()
    for path, folder in zip(files, ("shardcore", "backends", "backends", "plugins"), strict=True):
        assert Path(path).is_relative_to(clone / folder)
    for command in ([python.with_name("shardcore")], [python, "-m", "shardcore.cli"]):
        told = run(clone, *command, "info")
        assert told.startswith("shardcore      0.1.0\n")
        assert "  cpu: available (from shardcore:shardcore_cpu)\n" in told
        assert "  sim: available (from shardcore:shardcore_sim)\n" in told
        assert "could not be loaded" not in told
    compare = ("-m", "shardcore", "bench", "--quick", "--peers", "NumPy", "--only")
    for group in ("partition", "lookup"):
        told = run(clone, python, *compare, group)
        assert (" | NumPy: divmod + stable argsort | " in told) == (group == "partition")
        assert "### 1 thread\n" in told
    told = run(clone, python, "-m", "bench.accelerator", "--platform", "cpu", "--small", code=1)
    hint = "jax is not installed; pip install 'jax<0.13,>=0.10' 'packaging>=24'"
    assert hint in told.splitlines()[-1]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a clone in which `make demo` has run, and what that printed."""
    folder = copy_of_the_sources(tmp_path_factory.mktemp("clone"))
    return folder, make_demo(folder)


def test_after_make_demo(clone):
    folder, printed = clone
    assert re.search(r"^step \d+ restored into a fresh engine on 3 hosts: all ", printed, re.M)
    assert re.search(r"^finished in [\d.]+ seconds$", printed, re.M)
    check_from_inside(folder, ".venv-demo")


def test_after_the_environment_of_make_test(clone):
    folder, _ = clone
    make(folder, ".venv-test/ready")
    check_from_inside(folder, ".venv-test")
    run(folder, ".venv-test/bin/python", "-m", "pytest", "-q", "tests/_core/test_offsets.py")


def test_make_demo_runs_the_sources_as_they_are_now(clone):
    folder, _ = clone
    edit(
        folder / "plugins" / "shardcore_demo" / "run.py", "finished in ", "finished, as edited, in "
    )
    assert re.search(r"^finished, as edited, in [\d.]+ seconds$", make_demo(folder), re.M)
    kernel = folder / "shardcore" / "_core" / "cpu.pyx"
    kernel.write_text(kernel.read_text() + "\n\ndef added():\n    return 'compiled now'\n")
    ask = [folder / ".venv-demo" / "bin" / "python", "-c"]
    ask.append("from shardcore._core.cpu import added; print(added())")
    assert "where the compiled modules are older than their sources" in run(folder, *ask, code=1)
    make_demo(folder)
    assert run(folder, *ask) == "compiled now\n"


def test_after_pip_install(tmp_path):
    clone = copy_of_the_sources(tmp_path / "clone")
    left_later = clone / "shardcore" / "left_later.py"
    left_later.write_text("")
    run(clone, sys.executable, "-m", "venv", ".venv")
    python = clone / ".venv" / "bin" / "python"
    told = run(clone, python, "-c", "import shardcore", code=1)
    assert f"source tree, {clone}, which is not built for this Python" in told.splitlines()[-1]
    run(clone, python, "-m", "pip", "install", "--quiet", ".")
    check_from_inside(clone, ".venv")

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in run(elsewhere, python, "-c", WHOLE).split():
        assert Path(path).is_relative_to(clone / ".venv")

    # The clone moves on: a kernel changes and a module goes.
    left_later.unlink()
    kernel = clone / "shardcore" / "_core" / "cpu.pyx"
    kernel.write_text(kernel.read_text() + "\n# edited\n")
    told = run(clone, python, "-c", "import shardcore", code=1)
    assert "where the compiled modules are older than their sources" in told
    run(elsewhere, python, "-c", "import shardcore.left_later")
    run(clone, python, "-m", "pip", "install", "--quiet", ".")
    check_from_inside(clone, ".venv")
    told = run(elsewhere, python, "-c", "import shardcore.left_later", code=1)
    assert told.endswith("ModuleNotFoundError: No module named 'shardcore.left_later'\n")


@pytest.fixture(scope="module")
def with_cython(tmp_path_factory):
    """Return a clone beside an environment in which its setup.py can run, and that Python."""
    folder = tmp_path_factory.mktemp("built")
    clone = copy_of_the_sources(folder / "clone")
    run(folder, sys.executable, "-m", "venv", "environment")
    python = folder / "environment" / "bin" / "python"
    needed = ("setuptools>=77", "cython>=3.1", "numpy>=2", "pluggy>=1.5")
    run(folder, python, "-m", "pip", "install", "--quiet", *needed)
    return clone, python


def compiler(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


NO_COMPILER = (
    "error: shardcore is compiled where it is installed, and there is no C compiler: absent-cc was "
    "not found; install gcc or clang, or name yours in CC"
)


@pytest.mark.parametrize("editable", [False, True])
def test_without_a_compiler_one_sentence_says_so(with_cython, editable):
    clone, python = with_cython
    words = ("install", "--no-build-isolation", "--no-deps", *["-e"] * editable, ".")
    told = run(clone, python, "-m", "pip", *words, code=1, CC="absent-cc")
    assert told.count(NO_COMPILER) == 1
    (length,) = re.findall(r"\[(\d+) lines? of output\]", told)
    assert int(length) <= 5
    assert "Traceback" not in told


def test_a_compiler_without_the_headers_of_python_is_told(with_cython, tmp_path):
    clone, python = with_cython
    body = "echo 'probe.c:1:10: fatal error: Python.h: No such file or directory' >&2; exit 1"
    cc = compiler(tmp_path / "cc", body)
    for command in ("build", "build_ext"):
        told = run(clone, python, "setup.py", "-q", command, code=1, CC=cc)
        assert told.splitlines()[-1].startswith(
            f"error: shardcore is compiled where it is installed, and {cc} cannot compile for "
        )
        assert told.endswith(
            ", whose headers it needs (python3-dev or python3-devel): "
            "probe.c:1:10: fatal error: Python.h: No such file or directory\n"
        )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="one instruction set is compiled here")
def test_an_instruction_set_that_the_compiler_does_not_take_is_left_out(with_cython, tmp_path):
    clone, python = with_cython
    body = """
for word in "$@"; do
    case $word in -march=x86-64-v[34]) echo "cc: error: bad value '$word'" >&2; exit 1;; esac
done
exec gcc "$@"
"""
    suffix = EXTENSION_SUFFIXES[0]
    for folder, name in (("shardcore/_core", "rows"), ("plugins/shardcore_optimizers", "_update")):
        (clone / folder / f"{name}_v4{suffix}").write_text("of another compiler")
    settings = {"CC": compiler(tmp_path / "cc", body), "SHARDCORE_QUICK": "0"}
    told = run(clone, python, "setup.py", "build_ext", "--inplace", **settings)
    for name in ("v3", "v4"):
        line = f"not compiled for {name}, which the compiler does not take: "
        assert f"{line}cc: error: bad value '-march=x86-64-{name}'\n" in told
    built = {path.name.removesuffix(suffix) for path in clone.rglob(f"*{suffix}")}
    assert {"rows_baseline", "_update_baseline"} <= built
    assert not [name for name in built if name.endswith(("_v3", "_v4"))]
    ask = "from shardcore.store import instruction_set; print(instruction_set.NAME)"
    assert run(clone, python, "-c", ask) == "baseline\n"
