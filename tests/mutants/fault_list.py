"""The faults as they are listed: ``faults/*.toml``, a file per part of the library.

[[fault]]
name = "the NaN check skipped"      # unique; what the report says
function = "read_gradient"          # qualified name: "SimBackend.apply", "_sequence"
text = "if check and"               # stands once in that function, which one source file defines
becomes = "if False and"
tests = ["test_x", "test_y[cpu]", "test_file::test_z"]     # found by name under tests/
only = "cpu"                        # optional: as pytest's -k
hangs = true                        # optional: that the tests do not end counts as found
crashes = true                      # optional: that the tests end by a segmentation fault does
seconds = 300                       # optional: after which they do not
also = [{ function = "f", text = "a", becomes = "b" }]     # optional: planted with it
needs = "jax"                       # optional: a top-level module without which the tests are
                                    # skipped; where it is not found, so is the fault: "not tried"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Fault", "FaultListError", "Place", "read_faults"]

SECONDS = 180.0


class FaultListError(Exception):
    """An entry of the list is malformed, or does not fit the sources any more."""


@dataclass(frozen=True)
class Place:
    """A text in a function, and what is put in its stead."""

    function: str
    text: str
    becomes: str


@dataclass(frozen=True)
class Fault:
    """A fault, where it is planted, and the tests that are to find it."""

    part: str
    name: str
    places: tuple[Place, ...]
    tests: tuple[str, ...]
    only: str
    hangs: bool
    crashes: bool
    seconds: float
    needs: str = ""


def _place(entry: dict[str, Any], where: str) -> Place:
    try:
        place = Place(entry.pop("function"), entry.pop("text"), entry.pop("becomes"))
    except KeyError as error:
        raise FaultListError(f"{where} has no {error}") from None
    if place.text == place.becomes:
        raise FaultListError(f"{where} changes nothing: text and becomes are equal")
    return place


def _fault(part: str, entry: dict[str, Any]) -> Fault:
    where = f"{part}: fault {entry.get('name', '?')!r}"
    places = [_place(entry, where)]
    for more in entry.pop("also", []):
        places.append(_place(more, where))
    try:
        fault = Fault(
            part,
            entry.pop("name"),
            tuple(places),
            tuple(entry.pop("tests")),
            entry.pop("only", ""),
            entry.pop("hangs", False),
            entry.pop("crashes", False),
            float(entry.pop("seconds", SECONDS)),
            entry.pop("needs", ""),
        )
    except KeyError as error:
        raise FaultListError(f"{where} has no {error}") from None
    if entry or not fault.tests:
        raise FaultListError(f"{where} has unknown keys {sorted(entry)}, or no tests")
    return fault


def read_faults(folder: Path) -> list[Fault]:
    """Return all faults of a folder's lists, in the order of the files' names."""
    faults = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("fault", []):
            faults.append(_fault(path.stem, entry))
    names = [fault.name for fault in faults]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FaultListError(f"names that two faults have: {', '.join(twice)}")
    return faults
