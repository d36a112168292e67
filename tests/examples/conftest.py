"""The examples as users run them: each a process of its own, in a folder with its files."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def script():
    """Return a function: name -> the path of an example."""

    def script_of(name):
        path = DOCS / "examples" / name
        if not path.is_file():
            pytest.skip("the documents are not beside these tests")
        return path

    return script_of


@pytest.fixture(scope="session")
def run(script):
    """Return a function: (folder, name, arguments) -> what the example prints, or how it ends."""

    def run_in(folder, name, *arguments, fails=False):
        done = subprocess.run(
            [sys.executable, "-W", "error", script(name), *map(str, arguments)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run_in


@pytest.fixture(scope="session")
def imported(script):
    """Return a function: name -> the example as a module."""

    def module_of(name):
        path = script(f"{name}.py")
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]

    return module_of


@pytest.fixture(scope="session")
def page(script):
    """Return a function: name -> the text of a page of the documents."""

    def text_of(name):
        script(name.replace(".md", ".py"))
        return (DOCS / name).read_text(encoding="utf-8")

    return text_of


@pytest.fixture
def commands(page, run, tmp_path):
    """Return a function: page -> (lines shown, lines printed) by each command of it, in order."""

    def results(name):
        found = re.findall(
            r"^    \$ python docs/examples/(.*)\n((?:    [^$].*\n)*)", page(name), re.M
        )
        assert found
        for command, shown in found:
            lines = [line.removeprefix("    ") for line in shown.splitlines()]
            yield lines, run(tmp_path, *shlex.split(command)).splitlines()

    return results


@pytest.fixture
def excerpts(page):
    """Return a function: page -> [(script, excerpt shown)]."""
    shown = r"^```python\n# examples/(\w+\.py)\n(.*?)^```$"
    return lambda name: re.findall(shown, page(name), re.DOTALL | re.MULTILINE)
