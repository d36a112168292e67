"""Fetch what the machine with the accelerator lacks: ``python bench/accelerator_pack.py``.

That machine has Python 3.12, jax and torch for its device, a C compiler, and no package index. The
sources travel as they are, and beside them, in one folder of wheels, what builds them, what they
need at run time, and pytest for the suite. Run it where there is an index; then carry the folder
with the clone, and run ``bench/accelerator_build.py`` there.

A script of the standard library alone, not a module of `bench`: there is nothing built yet.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path("accelerator-wheels")
WANTED: Final = (
    "setuptools>=77",
    "cython>=3.1",
    "wheel",
    "pluggy>=1.5",
    "packaging>=24",
    "pytest>=8",
    "hypothesis>=6.100",
)
"""Without NumPy, ml_dtypes and SciPy: jax brings them, and in versions that suit it."""
LIMIT: Final = 64 << 20


def download(python: str, platform: str, folder: Path) -> list[str]:
    """Return the command that fetches the wheels for another Python and platform."""
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)),
        *("--only-binary", ":all:", "--python-version", python, "--platform", platform),
        *WANTED,
    ]


def tracked_bytes(root: Path) -> int:
    """Return the size of the files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    return sum((root / name).stat().st_size for name in listed.split("\0") if name)


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch the wheels; return 1 if all together is too large to travel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default="3.12", help="of the machine; default: 3.12")
    parser.add_argument("--platform", default="manylinux2014_x86_64", help="of its wheels")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    for old in options.folder.glob("*.whl"):
        old.unlink()
    subprocess.run(download(options.python, options.platform, options.folder), check=True)
    wheels = sorted(options.folder.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:6.2f} MiB  {wheel.name}")
    sources = tracked_bytes(Path(__file__).resolve().parents[1])
    total = sources + sum(wheel.stat().st_size for wheel in wheels)
    print(f"{sources / 2**20:6.2f} MiB  tracked files")
    verdict = "travels" if total <= LIMIT else "is too much"
    print(f"{total / 2**20:6.2f} MiB  of {LIMIT >> 20} MiB: {verdict}")
    return 0 if total <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
