"""The plugin of ``make test-peers``: a test that is skipped, in whatever way, fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = "import pytest\n"
SKIPS = {
    "a module": BEGIN + "pytest.importorskip('no_such_peer')\ndef test_a(): pass\n",
    "a mark": BEGIN + "@pytest.mark.skip(reason='no peer')\ndef test_a(): pass\n",
    "a fixture": BEGIN
    + "@pytest.fixture\ndef peer(): pytest.importorskip('no_such_peer')\ndef test_a(peer): pass\n",
    "a test": BEGIN + "def test_a(): pytest.skip('no peer')\n",
}
RUNS = {
    "a pass": (0, "def test_a(): pass\n"),
    "an expected failure": (0, BEGIN + "@pytest.mark.xfail\ndef test_a(): assert False\n"),
    "a failure": (1, "def test_a(): assert False\n"),
}


def run(folder, code, *options):
    (folder / "test_it.py").write_text(code)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_it.py"],
        cwd=folder,
        # Others' plugins are not asked about, and take most of the time.
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("how", SKIPS)
def test_what_is_skipped_fails(how, tmp_path):
    assert run(tmp_path, SKIPS[how]).returncode in (0, 5)  # 5: nothing was collected
    done = run(tmp_path, SKIPS[how], "-p", "no_skips")
    assert done.returncode in (1, 2)  # 2: it failed while tests were collected
    assert " may not be skipped in this run. Skipped: " in done.stdout


@pytest.mark.parametrize("how", RUNS)
def test_all_else_is_as_it_was(how, tmp_path):
    code, text = RUNS[how]
    assert run(tmp_path, text).returncode == code
    assert run(tmp_path, text, "-p", "no_skips").returncode == code
