"""Draw ``docs/layers.svg``: the folders of `shardcore` as layers, by the imports in the code.

A folder is one box, a module at the root of the package is one too. A box stands above all that it
imports; lines are the imports that do not follow from others. Run it after an import was added::

    python docs/draw_layers.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = Path(__file__).with_name("layers.svg")

Graph = dict[str, set[str]]
"""The imports of each name."""

_WIDTH, _HEIGHT, _GAP, _LEVEL = 150, 46, 18, 92


def packages() -> list[Path]:
    """Return the folders of all packages of the distribution, the core first."""
    found = [ROOT / "shardcore"]
    for container in ("backends", "plugins"):
        found += sorted(path.parent for path in (ROOT / container).glob("*/__init__.py"))
    return found


def modules(package: Path) -> dict[str, Path]:
    """Return the modules of a package by their dotted names, compiled ones with their stubs."""
    found = {}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyx")]):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of `known` that a file imports, for types and inside functions too."""
    if path.suffix == ".pyx":
        return set(_cimports(path)) & known.keys()
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                found.add(inside if inside in known else node.module)
    return found & known.keys()


def _cimports(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[:1] == ["from"] and words[2:3] in (["import"], ["cimport"]):
            yield words[1]


def module_graph(package: Path) -> Graph:
    """Return which modules of a package import which others of it."""
    known = modules(package)
    return {name: imports(path, known) - {name} for name, path in known.items()}


def room(module: str) -> str:
    """Return the folder or the root module that a module belongs to.

    >>> room("shardcore.ids.ragged"), room("shardcore.errors"), room("shardcore")
    ('ids', 'errors', '__init__')
    """
    return ([*module.split(".")[1:2], "__init__"])[0]


def room_graph(package: Path) -> Graph:
    """Return which folders of a package import which."""
    graph: Graph = {}
    for name, imported in module_graph(package).items():
        graph.setdefault(room(name), set()).update(room(one) for one in imported)
    return {name: found - {name} for name, found in graph.items()}


def levels(graph: Graph) -> list[list[str]]:
    """Return names in levels, each above all that it imports; the ground is first.

    >>> levels({"roof": {"wall", "ground"}, "wall": {"ground"}, "ground": set()})
    [['ground'], ['wall'], ['roof']]
    """
    level: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        level[name] = 1 + max((level[below] for below in graph.get(name, ())), default=-1)
    count = max(level.values()) + 1
    return [sorted(name for name, at in level.items() if at == here) for here in range(count)]


def direct(graph: Graph) -> Graph:
    """Return a graph without the imports that follow from others.

    >>> sorted(direct({"a": {"b", "c"}, "b": {"c"}, "c": set()})["a"])
    ['b']
    """
    below: Graph = {}
    for name in TopologicalSorter(graph).static_order():
        below[name] = set().union(*({one} | below[one] for one in graph[name]))
    return {
        name: {one for one in found if not any(one in below[other] for other in found)}
        for name, found in graph.items()
    }


def picture() -> str:
    """Return the picture as SVG."""
    graph = room_graph(ROOT / "shardcore")
    rows = levels(graph)
    widest = max(len(row) for row in rows)
    width = widest * (_WIDTH + _GAP) + _GAP
    height = len(rows) * _LEVEL + _GAP
    place = {}
    for at, row in enumerate(rows):
        left = (width - len(row) * (_WIDTH + _GAP) + _GAP) / 2
        for number, name in enumerate(row):
            place[name] = (left + number * (_WIDTH + _GAP), height - (at + 1) * _LEVEL + _GAP)
    counts = dict.fromkeys(graph, 0)
    for module in modules(ROOT / "shardcore"):
        counts[room(module)] += 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for name, found in sorted(direct(graph).items()):
        for below in sorted(found):
            (x0, y0), (x1, y1) = place[name], place[below]
            parts.append(
                f'<path d="M{x0 + _WIDTH / 2:g} {y0 + _HEIGHT:g} C{x0 + _WIDTH / 2:g} {y1 - 20:g} '
                f'{x1 + _WIDTH / 2:g} {y0 + _HEIGHT + 20:g} {x1 + _WIDTH / 2:g} {y1:g}" '
                'fill="none" stroke="#9aa5b1"/>'
            )
    for name, (x, y) in sorted(place.items()):
        folder = (ROOT / "shardcore" / name).is_dir()
        label = f"{name}/" if folder else name
        parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" '
            f'fill="{"#e3f0ff" if folder else "#f7f3e8"}" stroke="#52606d"/>'
        )
        middle = y + (_HEIGHT / 2 if folder else _HEIGHT / 2 + 5)
        parts.append(f'<text x="{x + _WIDTH / 2:g}" y="{middle:g}" font-size="15">{label}</text>')
        if folder:
            parts.append(
                f'<text x="{x + _WIDTH / 2:g}" y="{y + 38:g}" font-size="11" fill="#52606d">'
                f"{counts[name]} modules</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    try:
        PICTURE.write_text(picture(), encoding="utf-8")
    except CycleError as error:
        raise SystemExit(f"folders import each other in a circle: {error.args[1]}") from error
