"""The code in README.md and docs/: it runs, and the packages it shows are those that tests install.

A block whose first line is ``# some/file.py`` shows a file of a package under ``tests/site``, which
`test_conformance.py` installs and runs. All other Python blocks of a page run here, one after the
other, in a process of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGES = {
    "docs/writing-a-backend.md": HERE / "site" / "acme_backend",
    "docs/writing-an-optimizer.md": HERE / "site" / "acme_optimizer",
}
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
        shown = re.fullmatch(r"# ([\w./]+\.(?:py|toml))", first)
        found.append((language, shown[1], rest) if shown else (language, None, code))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_runs(page, tmp_path):
    code = "\n".join(
        block for language, shown, block in blocks(page) if language == "python" and not shown
    )
    if not code:
        pytest.skip("the page has no code to run")
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*map(str, PACKAGES.values()), *filter(None, [inherited])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PACKAGES)
def test_files_of_a_page_are_those_of_the_package(page):
    shown = {file: code for _, file, code in blocks(page) if file}
    package = PACKAGES[page]
    files = {
        str(path.relative_to(package)): path.read_text(encoding="utf-8")
        for path in package.rglob("*.*")
        if path.suffix in (".py", ".toml")
    }
    assert shown == files
