"""Where a fault is planted and which tests are to find it: by names and text, never by path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fault_list import Fault, FaultListError, Place

__all__ = ["COMPILED", "find_place", "find_tests", "planted"]

PACKAGES = ("shardcore", "backends", "plugins")
COMPILED = (".pyx", ".pxi")

# A function or class of Cython: "cdef inline int64_t f(", "cpdef f(", "def f(", "cdef class C:".
_HEAD = re.compile(r"( *)(?:(?:cp?def|def)\b[^=(#]*?\b(\w+)\(|(?:cdef )?class (\w+)\b)")

Span = tuple[int, int]


@cache
def _functions(root: Path) -> dict[str, list[tuple[Path, Span]]]:
    """Return qualified name -> where its definitions stand, begin and end, in lines from 0."""
    found: dict[str, list[tuple[Path, Span]]] = {}
    for path in _sources(root):
        text = path.read_text(encoding="utf-8")
        spans = _of_cython(text) if path.suffix in COMPILED else _of_python(ast.parse(text), "")
        for name, span in spans:
            found.setdefault(name, []).append((path, span))
    return found


def _of_python(node: ast.AST, outer: str) -> Iterator[tuple[str, Span]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{outer}{child.name}"
            first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
            yield name, (first - 1, child.end_lineno or first)
            yield from _of_python(child, f"{name}.")
        else:
            yield from _of_python(child, outer)


def _of_cython(text: str) -> Iterator[tuple[str, Span]]:
    lines = text.splitlines()
    outer: list[tuple[int, str]] = []
    for at, line in enumerate(lines):
        head = _HEAD.match(line)
        if head is None:
            continue
        indent, name = len(head[1]), head[2] or head[3]
        outer = [one for one in outer if one[0] < indent]
        outer.append((indent, name))
        yield ".".join(one for _, one in outer), (at, _end_of_block(lines, at, indent))


def _end_of_block(lines: list[str], at: int, indent: int) -> int:
    depth = 0  # the head may go over several lines, of any indent
    while True:
        code = lines[at].split("#")[0]
        depth += code.count("(") + code.count("[") - code.count(")") - code.count("]")
        at += 1
        if depth <= 0 or at == len(lines):
            break
    while at < len(lines):
        text = lines[at].strip()
        if text and not text.startswith("#") and len(lines[at]) - len(lines[at].lstrip()) <= indent:
            break
        at += 1
    return at


def _sources(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for suffix in (".py", *COMPILED):
            yield from sorted((root / package).rglob(f"*{suffix}"))


def _in_lines(lines: list[str], span: Span) -> str:
    return "".join(lines[span[0] : span[1]])


def find_place(root: Path, place: Place) -> tuple[Path, Span]:
    """Return the one source file whose function holds the text, and the function's lines."""
    holding: list[tuple[Path, Span, int]] = []
    named = []
    for path, span in _functions(root).get(place.function, []):
        named.append(f"{path.relative_to(root)}:{span[0] + 1}")
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if count := _in_lines(lines, span).count(place.text):
            holding.append((path, span, count))
    if not named:
        raise FaultListError(
            f"no function {place.function!r} is left under {', '.join(PACKAGES)}: "
            "name the one that does now what it did"
        )
    if not holding:
        raise FaultListError(
            f"function {place.function!r} ({', '.join(named)}) does not hold the text any more:\n"
            f"{place.text}"
        )
    times = sum(count for *_, count in holding)
    if times > 1:
        places = ", ".join(
            f"{path.relative_to(root)}:{span[0] + 1} {count} times" for path, span, count in holding
        )
        raise FaultListError(
            f"function {place.function!r} holds the text more than once ({places}): "
            f"take more of it\n{place.text}"
        )
    return holding[0][:2]


def planted(root: Path, place: Place) -> tuple[Path, str]:
    """Return a source file, and its text with the fault in it."""
    path, span = find_place(root, place)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    function = _in_lines(lines, span).replace(place.text, place.becomes)
    text = "".join(lines[: span[0]]) + function + "".join(lines[span[1] :])
    if path.suffix == ".py":
        try:
            compile(text, str(path), "exec")
        except SyntaxError as error:
            raise FaultListError(f"what it becomes is no Python: {error}") from None
    return path, text


@cache
def _tests(root: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(name, []).append(path)
    return found


def find_tests(root: Path, fault: Fault) -> list[str]:
    """Return the node ids of a fault's tests."""
    ids = []
    for given in fault.tests:
        stem, _, test = given.rpartition("::")
        name, bracket, parameters = test.partition("[")
        paths = [path for path in _tests(root).get(name, []) if stem in ("", path.stem)]
        if len(paths) != 1:
            places = ", ".join(str(path.relative_to(root)) for path in paths) or "nowhere"
            raise FaultListError(f"test {given!r} must stand once under tests, it stands {places}")
        ids.append(f"{paths[0].relative_to(root)}::{name}{bracket}{parameters}")
    return ids
