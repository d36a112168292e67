"""The door is imported when it is asked for, and says what is missing. Runs without torch too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def run(code):
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def test_nothing_imports_torch_unasked():
    code = "import sys, shardcore as sc; sc.optimizers.SGD(0.1); sc.backends()\n"
    done = run(
        code + "print([name for name in ('torch', 'shardcore.torch') if name in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_without_torch_the_import_says_so():
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "try:\n    import shardcore.torch\n"
        "except ImportError as error:\n"
        "    from shardcore.errors import UnavailableError\n"
        "    print(isinstance(error, UnavailableError), error)"
    )
    done = run(code)
    told = "True shardcore.torch needs the package torch: pip install torch\n"
    assert done.stdout == told, done.stderr


@pytest.mark.parametrize(
    ("before", "then", "threads"),
    [
        ("torch.set_num_threads(3)", "", 3),
        ("", "torch.set_num_threads(5)", 5),
        ("torch.set_num_threads(3)", "torch.set_num_threads(1)", 1),
        ("sc.set_num_threads(7); torch.set_num_threads(3)", "", 7),
        ("torch.set_num_threads(3)", "sc.set_num_threads(7); torch.set_num_threads(2)", 7),
        ("os.environ['SHARDCORE_NUM_THREADS'] = '6'; torch.set_num_threads(3)", "", 6),
        (f"os.environ['SHARDCORE_NUM_THREADS'] = '{CORES}'", "torch.set_num_threads(64)", CORES),
    ],
)
def test_threads_are_torchs_unless_told(before, then, threads):
    pytest.importorskip("torch", reason="torch is not installed")
    code = (
        f"import os, torch\nimport shardcore as sc\n{before}\n"
        "import shardcore.torch as st\n"
        "module = st.Embedding(4, 2)\nmodule(torch.tensor([1]))\n"
        f"{then}\nmodule(torch.tensor([1]))\nprint(sc.get_num_threads())"
    )
    done = run(code)
    assert done.stdout == f"{threads}\n", done.stderr
