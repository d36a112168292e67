"""Commands in messages: they name packages, which can be installed wherever shardcore came from."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from shardcore.extras import pip_install

OF_AN_INDEX = re.compile(r"pip install.*shardcore\\?\[")
ROOT = Path(__file__).parents[1]
REQUIRED = [
    "numpy>=2",
    "jax<0.13,>=0.10; extra == 'jax'",
    'packaging>=24 ; extra == "jax"',
    "jaxlib; extra == 'jax-and-more'",
    "odd[part]>=1; python_version > '3' and extra == \"odd\"",
]


def test_the_packages_of_an_extra_are_named(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", {"shardcore": REQUIRED}.get)
    assert pip_install("jax") == "pip install 'jax<0.13,>=0.10' 'packaging>=24'"
    again = "pip install --force-reinstall 'jax<0.13,>=0.10' 'packaging>=24'"
    assert pip_install("jax", "--force-reinstall") == again
    assert pip_install("odd") == "pip install 'odd[part]>=1'"


def test_a_clone_that_is_not_installed_names_itself(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    in_the_clone = "pip install '.[jax]' in the clone of shardcore"
    for requires in (absent, {"shardcore": None}.get, {"shardcore": ["numpy>=2"]}.get):
        monkeypatch.setattr(importlib.metadata, "requires", requires)
        assert pip_install("jax") == in_the_clone


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the sources are not beside the tests")
def test_no_command_needs_an_index_that_has_shardcore():
    found = []
    for folder in ("shardcore", "backends", "plugins", "bench", "docs", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".pyx", ".md"):
                text = path.read_text(encoding="utf-8")
                found += [
                    (path.name, one) for one in re.findall(r"pip install.*shardcore\\?\[", text)
                ]
    assert found == []
