"""The version is written once, in ``shardcore/__init__.py``; what is installed says the same."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shardcore as sc

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_the_version_installed_is_that_of_the_modules():
    assert importlib.metadata.version("shardcore") == sc.__version__, "install it again"


@pytest.mark.skipif(
    not (PROJECT.parent / "setup.py").is_file(), reason="the sources are not beside these tests"
)
def test_the_version_that_a_build_takes_is_that_of_the_modules():
    pytest.importorskip("setuptools")
    code = (  # in a process of its own: setuptools wants to be imported before distutils
        "import sys; from setuptools.config.pyprojecttoml import read_configuration as read; "
        "print(read(sys.argv[1], expand=True)['project']['version'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, PROJECT], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == sc.__version__
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    assert "version" not in project


def test_a_build_imports_nothing_to_read_the_version():
    """It is a literal: a checkout that is not compiled yet cannot be imported."""
    line = f'__version__ = "{sc.__version__}"\n'
    assert Path(sc.__file__).read_text(encoding="utf-8").count(line) == 1
