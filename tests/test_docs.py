"""The code in README.md and docs/: it runs, and the packages it shows are those that tests install.

A block whose first line is ``# some/file.py`` shows a file of a package in ``tests/plugins/site``,
which `test_conformance.py` installs and runs. All other Python blocks of a page run here, one after
the other, in a process of their own, and print what the comments beside them show.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, blocks, code_of, differences, shown_in

HERE = Path(__file__).parent
SITE = HERE / "plugins" / "site"
PACKAGES = {
    "docs/writing-a-backend.md": SITE / "acme_backend",
    "docs/a-backend-in-sqlite.md": SITE / "acme_sqlite",
    "docs/writing-an-optimizer.md": SITE / "acme_optimizer",
    "docs/an-optimizer-in-c.md": SITE / "acme_lion",
}
NEEDED = {
    "docs/doors.md": ["torch", "tensorflow", "optax", "pyarrow"],
    "docs/jax.md": ["optax"],
    "docs/tensorflow.md": ["tensorflow"],
    "docs/torch.md": ["torch"],
}
"""What the code of a page needs beside what all tests need; where it is missing, it is skipped."""

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the documents are not beside these tests"
)


def differences_here(code: str, folder: Path) -> list[str]:
    """Return where what is shown is not what is printed in the environment of these tests."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*map(str, PACKAGES.values()), *filter(None, [inherited])])
    return differences(code, folder, sys.executable, {**os.environ, "PYTHONPATH": path})


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_runs_and_prints_what_is_shown(page, tmp_path):
    code = code_of(page)
    for name in NEEDED.get(page, ()):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if not code:
        pytest.skip("the page has no code to run")
    assert differences_here(code, tmp_path) == []


def test_the_readme_shows_what_it_prints():
    assert len(shown_in(code_of("README.md"))) >= 9


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("print(1)  # 1", []),
        ("print(1)  # 1: the answer", []),
        ("print('a\\n b')\n# a\n#  b", []),
        ("x = 3  # not printed\nprint(\n    x\n)\n# 3\n", []),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    print(e)\n# division by zero", []),
        ("print(1)  # 2", ["line 1 shows ['2'], but prints ['1']"]),
        ("print(1)  # 11: the answer", ["line 1 shows ['11: the answer'], but prints ['1']"]),
        ("print(1)", ["line 1 shows [], but prints ['1']"]),
        ("if 0:\n    print(1)  # 1", ["line 2 shows ['1'], but prints []"]),
        ("print('a\\n b')  # a\n# b", ["line 1 shows ['a', 'b'], but prints ['a', ' b']"]),
        ("print(1)  # 1\n# and more", ["line 1 shows ['1', 'and more'], but prints ['1']"]),
    ],
)
def test_what_is_shown_wrongly_is_found(code, found, tmp_path):
    assert differences_here(code, tmp_path) == found


def test_the_lines_of_each_door_are_as_many_as_the_table_says():
    """A block that begins with ``# PyTorch: with the door``, say, holds the lines that count."""
    counted = {}
    for _, _, code in blocks("docs/doors.md"):
        place = re.match(r"# ([\w ]+): (framework alone|engine by hand|with the door)\n", code)
        if place:
            lines = [line for line in code.splitlines()[1:] if line.strip()]
            assert not any(line.lstrip().startswith("#") for line in lines)
            counted[place.groups()] = len(lines)
    text = (ROOT / "docs" / "doors.md").read_text(encoding="utf-8")
    (head, *table) = re.findall(r"^\| ([^-].*) \|$", text, re.M)
    ways = head.split(" | ")[1:]
    told = {
        (door, way): int(number)
        for door, *numbers in (row.split(" | ") for row in table)
        for way, number in zip(ways, numbers, strict=True)
    }
    assert {key: number for key, number in told.items() if number} == counted


SURFACE = {
    *("shardcore", "shardcore.testing"),
    *(f"shardcore.{name}" for name in ("backend", "optimizer", "store", "ids", "sharding")),
    *(f"shardcore.{name}" for name in ("initializers", "dtypes", "validation", "planning")),
    *(f"shardcore.{name}" for name in ("errors", "plugins")),
}


@pytest.mark.parametrize("page", PACKAGES)
def test_files_of_a_page_import_the_declared_surface_only(page):
    imported = set()
    for path in PACKAGES[page].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {one.name for one in node.names}
    ours = {name for name in imported if name.split(".")[0] == "shardcore"}
    assert "shardcore.testing" in ours
    assert ours <= SURFACE


def test_the_stability_note_names_the_declared_surface():
    text = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:shardcore)?\.(\w+)`", text[: text.index("## What a plugin")]))
    assert named >= {name.partition(".")[2] for name in SURFACE if "." in name}


@pytest.mark.parametrize("page", PACKAGES)
def test_files_of_a_page_are_those_of_the_package(page):
    shown = {file: code for _, file, code in blocks(page) if file}
    package = PACKAGES[page]
    files = {
        str(path.relative_to(package)): path.read_text(encoding="utf-8")
        for path in package.rglob("*.*")
        if path.suffix in (".py", ".toml", ".c")
    }
    assert shown == files
