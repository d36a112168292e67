"""The versions that installed distributions pin of each other.

Only metadata is read, nothing is imported, so that a listing of the backends stays quick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

__all__ = ["Pin", "pins_of"]


@dataclass(frozen=True)
class Pin:
    """One requirement that a distribution has of another.

    Parameters
    ----------
    name : str
        The other distribution, in lower case with dashes.
    extras : tuple of str
        The extras asked of it.
    specifier : SpecifierSet
        The versions that it allows.
    """

    name: str
    extras: tuple[str, ...]
    specifier: SpecifierSet

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{self.specifier}"

    def allows(self, found: str) -> bool:
        """Return whether a version is one of those; a text that is no version is not judged.

        Examples
        --------
        >>> pin = Pin("libtpu", (), SpecifierSet("==0.0.42.*"))
        >>> pin.allows("0.0.42.1"), pin.allows("0.0.51")
        (True, False)
        """
        try:
            parsed = Version(found)
        except InvalidVersion:
            return True
        return self.specifier.contains(parsed, prereleases=True)


def pins_of(name: str, extras: Iterable[str] = ()) -> list[Pin]:
    """Return the requirements of an installed distribution; none if it is not installed.

    Parameters
    ----------
    name : str
    extras : iterable of str
        Extras whose requirements count too.

    Examples
    --------
    >>> [str(pin) for pin in pins_of("shardcore") if pin.name == "numpy"]
    ['numpy>=2']
    """
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return []
    pins = []
    for line in lines:
        try:
            asked = Requirement(line)
        except InvalidRequirement:  # pip would not have installed it
            continue
        holds = asked.marker is None or any(
            asked.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        )
        if holds and asked.url is None:  # a direct reference names no version
            own = tuple(sorted(asked.extras))
            pins.append(Pin(canonicalize_name(asked.name), own, asked.specifier))
    return pins
