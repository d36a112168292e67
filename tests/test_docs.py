"""The code in README.md and docs/: it runs, and the packages it shows are those that tests install.

A block whose first line is ``# some/file.py`` shows a file of a package in ``tests/plugins/site``,
which `test_conformance.py` installs and runs. All other Python blocks of a page run here, one after
the other, in a process of their own, and print what the comments beside them show.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
SITE = HERE / "plugins" / "site"
PACKAGES = {
    "docs/writing-a-backend.md": SITE / "acme_backend",
    "docs/a-backend-in-sqlite.md": SITE / "acme_sqlite",
    "docs/writing-an-optimizer.md": SITE / "acme_optimizer",
    "docs/an-optimizer-in-c.md": SITE / "acme_lion",
}
NEEDED = {"docs/torch.md": "torch"}
"""What the code of a page needs beside what all tests need; where it is missing, it is skipped."""

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the documents are not beside these tests"
)


def blocks(page: str) -> list[tuple[str, str | None, str]]:
    """Return (language, file shown or None, code) of each block of a page."""
    found = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        first, _, rest = code.partition("\n")
        shown = re.fullmatch(r"(?:# |/\* )([\w./]+\.(?:py|toml|c))(?: \*/)?", first)
        found.append((language, shown[1], rest) if shown else (language, None, code))
    return found


def code_of(page: str) -> str:
    return "\n".join(
        block for language, shown, block in blocks(page) if language == "python" and not shown
    )


RUN = """
import json, sys
printed = {}
def record(*values, sep=" "):
    text = sep.join(map(str, values))
    printed.setdefault(sys._getframe(1).f_lineno, []).extend(text.split("\\n"))
exec(compile(sys.stdin.read(), "the page", "exec"), {"__name__": "__main__", "print": record})
json.dump(printed, sys.stdout)
"""


def printed_by(code: str, folder: Path) -> dict[int, list[str]]:
    """Return what code prints, by the line in which the call of `print` begins."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*map(str, PACKAGES.values()), *filter(None, [inherited])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN],
        input=code,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {int(line): texts for line, texts in json.loads(done.stdout).items()}


def shown_in(code: str) -> dict[int, list[str]]:
    """Return the comments at the end of every `print`, and alone on the lines that follow it."""
    comments = {
        token.start[0]: token
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            line = node.end_lineno
            texts = [comments[line].string] if line in comments else []
            while (after := comments.get(line := line + 1)) and after.line.lstrip()[0] == "#":
                texts.append(after.string)
            found[node.lineno] = [text.removeprefix("#").removeprefix(" ") for text in texts]
    return found


def differences(code: str, folder: Path) -> list[str]:
    """Return where what is shown beside a `print` is not what it prints."""
    printed, found = printed_by(code, folder), []
    for line, shown in shown_in(code).items():
        texts = printed.get(line, [])
        # One line may be explained: ``# 1: one host now``.
        explained = len(texts) == len(shown) == 1 and shown[0].startswith(f"{texts[0]}: ")
        if texts != shown and not explained:
            found.append(f"line {line} shows {shown}, but prints {texts}")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_runs_and_prints_what_is_shown(page, tmp_path):
    code = code_of(page)
    if page in NEEDED and importlib.util.find_spec(NEEDED[page]) is None:
        pytest.skip(f"{NEEDED[page]} is not installed")
    if not code:
        pytest.skip("the page has no code to run")
    assert differences(code, tmp_path) == []


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
    assert differences(code, tmp_path) == found


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
