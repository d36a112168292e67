"""`make lint` and the hooks before a commit run the same tools, in the same exact versions."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOOKS = ROOT / ".pre-commit-config.yaml"

pytestmark = pytest.mark.skipif(not HOOKS.is_file(), reason="the sources are not beside the tests")


def test_lint_and_hooks_run_the_same_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = project["optional-dependencies"]["lint"]
    assert {re.fullmatch(r"(\w+)==[\d.]+", one)[1] for one in pinned} == {"mypy", "ruff"}
    hooks = re.findall(r'"((?:mypy|ruff)[^"]*)"', HOOKS.read_text(encoding="utf-8"))
    assert len(hooks) == 3
    assert set(hooks) == set(pinned)


def test_hooks_run_what_lint_runs():
    lint = re.search(
        r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M
    )
    commands = [line.split("/bin/")[1] for line in lint[1].splitlines()]
    assert commands == ["ruff check .", "ruff format --check .", "mypy"]
    entries = re.findall(r"entry: (.*)", HOOKS.read_text(encoding="utf-8"))
    assert [one.replace(" --force-exclude", "") for one in entries] == [
        "ruff check",
        "ruff format",
        "mypy",
    ]
