"""A source tree that is not built, or not from its present sources, says so when it is imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import shardcore
from shardcore._core import source_tree
from shardcore._core.source_tree import checksum, is_source_tree, record, require_built

KIND = EXTENSION_SUFFIXES[0].removeprefix(".").rsplit(".", 1)[0]
SOURCES = (
    "shardcore/_core/rows.pyx",
    "shardcore/_core/a.h",
    "shardcore/engine/life.pyx",
    "shardcore/store/steps.pyx",
    "shardcore/tf/operation.pyx",
    "shardcore/threads/lock.pyx",
    "shardcore/optimizer/include/c.h",
    "plugins/shardcore_optimizers/b.pxi",
)


@pytest.fixture
def tree(tmp_path):
    """Return a folder with the marks of a source tree."""
    for name in ("setup.py", *SOURCES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}")
    return tmp_path


@pytest.fixture
def built(tree):
    record(tree).write_text(checksum(tree))
    return tree


def test_a_build_is_of_all_that_is_compiled():
    root = Path(__file__).parents[2]
    if not is_source_tree(root):
        pytest.skip("the sources are not beside these tests")
    found = [
        path
        for container in ("shardcore", "backends", "plugins")
        for path in (root / container).rglob("*")
        if path.suffix in source_tree._SOURCES
    ]
    folders = {root / name for name in source_tree._COMPILED}
    assert {path.parent for path in found} == folders


def refuses(root, rest):
    message = f"shardcore is imported from its source tree, {root}, {rest}"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$") as raised:
        require_built(root)
    assert raised.value.name == "shardcore"


NOT_BUILT = (
    f"which is not built for this Python ({KIND}): run 'pip install .' in it, "
    "or run Python from elsewhere"
)
OLDER = (
    "where the compiled modules are older than their sources: run 'pip install .' or "
    "'python setup.py build_ext --inplace' in it, or run Python from elsewhere"
)


def test_a_tree_that_was_never_built(tree):
    refuses(tree, NOT_BUILT)


def test_a_tree_that_was_built_for_another_python(built):
    record(built).rename(record(built).with_name("cpython-399-x86_64-linux-gnu.built"))
    refuses(built, NOT_BUILT)


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_has_changed(name, built, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    require_built(built)
    text = (built / name).read_text()
    (built / name).write_text(text.replace("this", "that"))
    refuses(built, OLDER)
    (built / name).write_text(text)
    require_built(built)


def test_a_source_that_came_went_or_was_renamed(built):
    added = built / "shardcore" / "_core" / "new.pxd"
    added.write_text("")
    refuses(built, OLDER)
    added.unlink()
    (built / SOURCES[0]).rename(built / "shardcore" / "_core" / "lines.pyx")
    refuses(built, OLDER)
    (built / "shardcore" / "_core" / "lines.pyx").unlink()
    refuses(built, OLDER)


def test_what_is_not_compiled_is_no_part_of_it(built, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (built / "shardcore" / "_core" / "rows.c").write_text("made from rows.pyx")
    (built / "shardcore" / "_core" / "notes.py").write_text("")
    require_built(built)


@pytest.mark.parametrize("missing", ["setup.py", "shardcore/_core", "plugins/shardcore_optimizers"])
def test_what_is_installed_is_left_alone(missing, tree, monkeypatch):
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    path = tree / missing
    path.rename(tree / "gone")
    assert not is_source_tree(tree)
    require_built(tree)
    assert sys.path == before


def test_backends_and_plugins_come_from_the_same_tree(built, monkeypatch):
    monkeypatch.setattr(sys, "path", ["elsewhere", str(built / "plugins")])
    require_built(built)
    assert sys.path == [str(built / "backends"), "elsewhere", str(built / "plugins")]
    require_built(built)
    assert sys.path == [str(built / "backends"), "elsewhere", str(built / "plugins")]


def test_import_of_an_unbuilt_copy_is_one_clear_error(tmp_path):
    package = Path(shardcore.__file__).parent
    compiled = shutil.ignore_patterns("*.so", "*.c", "*.built", "__pycache__")
    shutil.copytree(package, tmp_path / "shardcore", ignore=compiled)
    (tmp_path / "plugins" / "shardcore_optimizers").mkdir(parents=True)
    (tmp_path / "setup.py").touch()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for module in ("shardcore", "shardcore.store.table", "shardcore.cli"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            cwd=tmp_path,
            env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert done.stderr.count("Error") == 1 + done.stderr.count("raise ImportError")
        last = done.stderr.splitlines()[-1]
        assert last == (
            f"ImportError: shardcore is imported from its source tree, {tmp_path}, {NOT_BUILT}"
        )
