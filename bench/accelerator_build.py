"""Build shardcore with no package index, and measure: ``python bench/accelerator_build.py``.

For a machine as `accelerator_pack` describes it, in the root of the clone. It makes an environment
that sees what the machine has (jax, torch, NumPy), installs the carried wheels and the clone into
it, and runs ``python -m bench.accelerator`` with the arguments after ``--``. Building takes about a
minute; a ``--minutes`` that is not given leaves room for it in a call of nine minutes.

A script of the standard library alone: nothing else is there before it has run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
WHEELS: Final = Path("accelerator-wheels")
CALL_MINUTES: Final = 9.0
INSTALLED: Final = (
    "setuptools>=77", "cython>=3.1", "wheel", "pluggy", "packaging", "pytest", "hypothesis",
)  # fmt: skip


def site_folders() -> list[str]:
    """Return the folders of packages that this Python sees."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def pip(python: Path, *arguments: str) -> None:
    """Run pip in the environment, with no index and no newer version of what the machine has."""
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--no-index", *arguments],
        cwd=ROOT,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
    )


def built(folder: Path, wheels: Path) -> Path:
    """Return the Python of an environment with shardcore in it."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    # Not resolved: it is a link to the Python outside, which would be used instead.
    python = folder.absolute() / "bin" / "python"
    # This Python may itself be of an environment, whose packages no system's folder shows.
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    inside = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True)
    outside = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site_folders()}
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(outside)]
    Path(inside.stdout.strip(), "machine.pth").write_text("".join(lines), encoding="utf-8")
    # Upgraded: what an environment or the machine has already may be too old to build with.
    pip(python, "--find-links", str(wheels.resolve()), "--upgrade", *INSTALLED)
    pip(python, "--no-build-isolation", "--no-deps", "--editable", ".")
    return python


def main(argv: Sequence[str] | None = None) -> int:
    """Build and measure; return the exit code of the measurement."""
    begin = perf_counter()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheels", type=Path, default=WHEELS)
    parser.add_argument("--environment", type=Path, default=Path(".venv-accelerator"))
    parser.add_argument("rest", nargs="*", help="for bench.accelerator, after --")
    options = parser.parse_args(argv)
    python = built(options.environment, options.wheels)
    seconds = perf_counter() - begin
    print(f"built in {seconds:.0f} s", flush=True)
    rest = list(options.rest)
    if "--minutes" not in rest:
        rest += ["--minutes", f"{max(1.0, CALL_MINUTES - seconds / 60 - 0.5):.2f}"]
    return subprocess.run([str(python), "-m", "bench.accelerator", *rest], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
