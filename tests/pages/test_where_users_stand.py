"""Each page in an environment of its own, away from any clone: only what the page says to install.

What a page shows is pasted: its files into a folder, where the page's commands are then run, its
program into Python. Environments are made and packages fetched, which takes minutes; ``make
test-pages`` runs these tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from pages import PAGES, ROOT, blocks, code_of, differences

SETTINGS = ("PYTHONPATH", "PYTHONSAFEPATH", "SHARDCORE_PLUGINS", "SHARDCORE_BACKEND", "MAKEFLAGS")
ENV = {name: value for name, value in os.environ.items() if name not in SETTINGS}

pytestmark = [
    pytest.mark.clone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="these tests are not in a clone"),
]


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this clone, which CI has built already."""
    if "SHARDCORE_WHEEL" in os.environ:
        return Path(os.environ["SHARDCORE_WHEEL"])
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--quiet")
    run(ROOT, *pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (found,) = folder.glob("*.whl")
    return found


def installs(page: str) -> list[list[str]]:
    """Return what follows each ``pip install`` of a page, with its quotes taken off."""
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = re.findall(r"`pip install ([^`]+)`", text)
    return [[word.strip("'") for word in command.split()] for command in commands]


def new_environment(folder: Path, wheel: Path, page: str) -> Path:
    """Install shardcore, and what the page says to; return Python.

    A dot is the clone, whose extras the wheel has too; for a page that shows a package it is that.
    """
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet")
    run(folder, *pip, wheel)
    for words in installs(page):
        package = "-e" in words
        run(
            folder, *pip, *(word if package else re.sub(r"^\.", str(wheel), word) for word in words)
        )
    return python


def pages_with(*, package: bool) -> list[str]:
    """Return the pages that show code to run, or those that show a whole package."""
    found = []
    for page in PAGES:
        shows_package = any(file == "pyproject.toml" for _, file, _ in blocks(page))
        if shows_package == package and (package or code_of(page)):
            found.append(page)
    return found


@pytest.mark.parametrize("page", pages_with(package=False))
def test_the_program_of_a_page_runs_with_what_the_page_installs(page, wheel, tmp_path):
    python = new_environment(tmp_path, wheel, page)
    assert differences(code_of(page), tmp_path, python, ENV) == []


@pytest.mark.parametrize("page", pages_with(package=True))
def test_the_package_of_a_page_installs_and_passes_its_tests(page, wheel, tmp_path):
    for _, file, code in blocks(page):
        if file:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(code, encoding="utf-8")
    assert installs(page)[-1][-2:] == ["-e", ".[test]"]
    python = new_environment(tmp_path, wheel, page)
    told = run(tmp_path, python.with_name("pytest"))
    assert re.search(r"^=+ \d{2,} passed.* in [\d.]+s", told, re.MULTILINE), told
    assert differences(code_of(page), tmp_path, python, ENV) == []


def example_commands(page: str) -> list[list[str]]:
    """Return the words of each command of a page that runs a script of ``docs/examples``."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [line.split() for line in re.findall(r"^    \$ python docs/examples/(.*)$", text, re.M)]


@pytest.mark.parametrize("page", [page for page in PAGES if example_commands(page)])
def test_the_examples_of_a_page_run_with_what_the_page_installs(page, wheel, tmp_path):
    python = new_environment(tmp_path, wheel, page)
    for script, *words in example_commands(page):
        run(tmp_path, python, "-W", "error", ROOT / "docs" / "examples" / script, *words)
