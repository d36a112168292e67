"""The functions of a directory of Python files, each with the module that it comes from."""

from __future__ import annotations

import ast
import io
import os
import re
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreOSError, ShardcoreValueError

__all__ = ["Corpus", "functions_of", "read_corpus", "standard_library"]

# Left out: tests, installed packages, and the two programs (an editor and a translator) that live
# among the standard library's modules.
_SKIPPED: Final = frozenset(
    ["__pycache__", "dist-packages", "idle_test", "idlelib", "lib2to3", "site-packages"]
)
_TEST: Final = re.compile(r"tests?|test_.*")


@dataclass(frozen=True)
class Corpus:
    """Functions and where they come from.

    Parameters
    ----------
    texts : list of str
        The source text of each function, without the functions defined inside it.
    modules : tuple of str
        The distinct modules, in alphabetical order.
    labels : ndarray of int64, shape (functions,)
        Index of each function's module in `modules`.
    unreadable : int
        Files that were left out because they are no Python of this version.
    """

    texts: list[str]
    modules: tuple[str, ...]
    labels: NDArray[np.int64]
    unreadable: int

    @property
    def largest_share(self) -> float:
        """The accuracy of always answering with the largest module."""
        return float(np.bincount(self.labels).max() / self.labels.size)

    @property
    def largest_module(self) -> str:
        """The module with the most functions."""
        return self.modules[int(np.bincount(self.labels).argmax())]


def standard_library() -> Path:
    """Return the directory of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def read_corpus(source: Path, min_functions: int, max_functions: int | None = None) -> Corpus:
    """Read the functions of all Python files below a directory, tests left out.

    The module of a function is the top-level entry of `source` that holds it: a package's name, or
    a file's without ``.py``.

    Parameters
    ----------
    source : pathlib.Path
        A directory.
    min_functions : int
        Modules with fewer functions are left out.
    max_functions : int, optional
        Stop, in alphabetical order, after the module with which this number is reached.

    Raises
    ------
    ShardcoreOSError
        If `source` is no directory that can be listed.
    ShardcoreValueError
        If fewer than two modules are left.
    """
    found: list[tuple[str, str]] = []
    kept = unreadable = 0
    for module, files in _modules(source):
        texts: list[str] = []
        for file in files:
            try:
                texts += functions_of(file.read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError):
                unreadable += 1
        found += [(module, text) for text in texts]
        kept += len(texts) if len(texts) >= min_functions else 0
        if max_functions is not None and kept >= max_functions:
            break
    counts = Counter(module for module, _ in found)
    modules = sorted(module for module, count in counts.items() if count >= min_functions)
    if len(modules) < 2:
        raise ShardcoreValueError(
            f"source must hold two modules of at least {min_functions} functions, got "
            f"{len(modules)} in {source}"
        )
    index = {module: number for number, module in enumerate(modules)}
    chosen = [(index[module], text) for module, text in found if module in index]
    return Corpus(
        texts=[text for _, text in chosen],
        modules=tuple(modules),
        labels=np.array([label for label, _ in chosen], np.int64),
        unreadable=unreadable,
    )


def functions_of(code: bytes) -> list[str]:
    r"""Return the source text of every function of a Python file, in the order of the file.

    A function defined inside another is a function of its own, and its lines belong to it alone:
    no line is in two texts. Decorators belong to their function.

    Parameters
    ----------
    code : bytes
        The whole file.

    Raises
    ------
    SyntaxError, ValueError, RecursionError
        If it is no Python of the running version, or nested too deep for its parser.

    Examples
    --------
    >>> functions_of(b"def outer():\n    def inner():\n        return 1\n    return inner\n")
    ['def outer():\n    return inner', '    def inner():\n        return 1']
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's escape sequences
        tree = ast.parse(code)
    encoding, _ = tokenize.detect_encoding(io.BytesIO(code).readline)
    lines = io.StringIO(code.decode(encoding), newline=None).read().split("\n")
    spans = sorted(
        (min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    owners = np.full(len(lines) + 1, -1)
    for number, (first, last) in enumerate(spans):  # inner ones come later and take their lines
        owners[first : last + 1] = number
    return [
        "\n".join(lines[line - 1] for line in range(first, last + 1) if owners[line] == number)
        for number, (first, last) in enumerate(spans)
    ]


def _modules(source: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield the modules below `source` in alphabetical order, with their files."""
    try:
        entries = sorted(source.iterdir())
    except OSError as error:
        raise ShardcoreOSError(f"source {source} cannot be listed: {error}") from error
    files: dict[str, list[Path]] = {}
    for entry in entries:
        if entry.is_dir() and _is_library(entry.name):
            files.setdefault(entry.name, []).extend(_python_files(entry))
        elif entry.is_file() and entry.suffix == ".py" and _is_library(entry.stem):
            files.setdefault(entry.stem, []).append(entry)
    yield from sorted(files.items())


def _python_files(package: Path) -> Iterator[Path]:
    for directory, subdirectories, names in os.walk(package):
        subdirectories[:] = sorted(filter(_is_library, subdirectories))
        for name in sorted(names):
            if name.endswith(".py") and _is_library(name.removesuffix(".py")):
                yield Path(directory, name)


def _is_library(name: str) -> bool:
    return name not in _SKIPPED and not name.startswith(".") and not _TEST.fullmatch(name)
