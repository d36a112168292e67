"""Whether the kernels of a source tree were compiled from the sources that are in it now.

Only a source tree can be otherwise: a clone that was never built, or that has moved on since.
Every build leaves a record in the tree it was built from, a checksum of the kernels' sources, one
for each kind of Python. An installed package has no record and needs none.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

__all__ = ["checksum", "is_source_tree", "record", "require_built"]

BUILT_FOR: Final = EXTENSION_SUFFIXES[0].rsplit(".", 1)[0]
"""The ends of compiled modules' names: the kind of Python they are for."""

_COMPILED: Final = (
    "shardcore/_core",
    "shardcore/engine",
    "shardcore/store",
    "shardcore/tf",
    "shardcore/threads",
    "shardcore/optimizer/include",
    "plugins/shardcore_optimizers",
)
_SOURCES: Final = {".pyx", ".pxd", ".pxi", ".h"}
_OUR_OWN: Final = ("backends", "plugins")


def is_source_tree(root: Path) -> bool:
    """Return whether a folder is a clone of shardcore, or an unpacked source distribution."""
    return (root / "setup.py").is_file() and all((root / name).is_dir() for name in _COMPILED)


def record(root: Path) -> Path:
    """Return the file in which a build writes the checksum of what it compiled."""
    return root / _COMPILED[0] / f"{BUILT_FOR.lstrip('.')}.built"


def checksum(root: Path) -> str:
    """Return the checksum of all that is compiled in a source tree.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> root = Path(mkdtemp())
    >>> folder = root / "shardcore" / "_core"
    >>> folder.mkdir(parents=True)
    >>> empty = checksum(root)
    >>> _ = (folder / "rows.pyx").write_text("def rows(): ...")
    >>> checksum(root) == empty
    False
    """
    import hashlib  # not needed where nothing is checked

    paths = [path for name in _COMPILED for path in (root / name).glob("*")]
    found = hashlib.sha256()
    for path in sorted(path for path in paths if path.suffix in _SOURCES):
        source = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
        found.update(source)
    return found.hexdigest()


def require_built(root: Path) -> None:
    """Check the tree that kernels are imported from, if it is one, and let it be one tree.

    Its backends and plugins are then imported from it too, and not from an older copy that is
    installed elsewhere.

    Raises
    ------
    ImportError
        If the tree was not built for this Python, or not from the sources that it has now.
    """
    if not is_source_tree(root):
        return
    where = f"shardcore is imported from its source tree, {root}, "
    try:
        built = record(root).read_text(encoding="ascii")
    except FileNotFoundError:
        raise ImportError(
            f"{where}which is not built for this Python ({BUILT_FOR.lstrip('.')}): "
            "run 'pip install .' in it, or run Python from elsewhere",
            name="shardcore",
        ) from None
    if built != checksum(root):
        raise ImportError(
            f"{where}where the compiled modules are older than their sources: run 'pip install .' "
            "or 'python setup.py build_ext --inplace' in it, or run Python from elsewhere",
            name="shardcore",
        )
    ours = [str(root / name) for name in _OUR_OWN]
    sys.path[:0] = [path for path in ours if path not in sys.path]
