"""The version is written once, in ``shardcore/__init__.py``; what is installed says the same."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shardcore as sc

READ = """
from setuptools.config.pyprojecttoml import read_configuration
print(read_configuration("pyproject.toml", expand=True)["project"]["version"])
"""
PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_the_version_installed_is_that_of_the_modules():
    assert importlib.metadata.version("shardcore") == sc.__version__, "install it again"


@pytest.mark.skipif(
    not (PROJECT.parent / "setup.py").is_file(), reason="the sources are not beside these tests"
)
def test_the_version_that_a_build_takes_is_that_of_the_modules():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ],
        cwd=PROJECT.parent,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{sc.__version__}\n", done.stderr
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    assert "version" not in project


def test_a_build_imports_nothing_to_read_the_version():
    """It is a literal: a checkout that is not compiled yet cannot be imported."""
    line = f'__version__ = "{sc.__version__}"\n'
    assert Path(sc.__file__).read_text(encoding="utf-8").count(line) == 1
