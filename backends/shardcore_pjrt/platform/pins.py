"""The metadata of an installed distribution: its version, and the versions it pins others to.

Only metadata is read, nothing is imported, so that a listing of the backends stays quick. Of the
version rules of PEP 440 this reads those that pins use: ``==``, ``==…*``, ``!=``, ``<=``,
``>=`` and ``<``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

__all__ = ["Pin", "installed", "meets", "pins_of"]

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_CLAUSE = re.compile(r"(==|!=|<=|>=|<)\s*([^\s*]+?)(\.\*)?")
_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[._-]?(?P<phase>alpha|beta|preview|pre|rc|a|b|c)[._-]?(?P<number>\d*))?"
    r"(?:[._-]?(?P<post>post|rev|r)[._-]?(?P<revision>\d*))?"
    r"(?:[._-]?dev[._-]?(?P<dev>\d+))?"
    r"(?:\+.*)?",
    re.IGNORECASE,
)
_PHASES = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}


@dataclass(frozen=True)
class Pin:
    """One requirement that a distribution has of another.

    Parameters
    ----------
    name : str
        The other distribution, in lower case with dashes.
    extras : str
        The extras asked of it, such as ``"[with-cuda]"``, or "".
    specifier : str
        The versions that will do, such as ``"==0.0.42.*"``, or "" for any.
    extra : str or None
        The extra that the requirement belongs to, None if it always holds.
    """

    name: str
    extras: str
    specifier: str
    extra: str | None

    def __str__(self) -> str:
        return f"{self.name}{self.extras}{self.specifier}"


def installed(name: str) -> str | None:
    """Return the version of an installed distribution, or None.

    Examples
    --------
    >>> installed("a-distribution-that-is-not-there") is None
    True
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def pins_of(name: str) -> list[Pin]:
    """Return the requirements of an installed distribution; none if it is not installed.

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
        parts = _REQUIREMENT.fullmatch(line.strip())
        if parts is None or parts[3].startswith("@"):  # a direct reference names no version
            continue
        extra = _EXTRA.search(parts[4] or "")
        pins.append(
            Pin(
                re.sub("[-_.]+", "-", parts[1]).lower(),
                parts[2] or "",
                parts[3].replace(" ", ""),
                extra[1] if extra else None,
            )
        )
    return pins


def meets(found: str, specifier: str) -> bool:
    """Return whether a specifier allows a version.

    Parameters
    ----------
    found : str
        A version. Its local part, after "+", does not count.
    specifier : str
        Clauses joined by commas. A clause that is not of the kinds above rules nothing out: an
        installation is refused only for what is known to be wrong with it.

    Examples
    --------
    >>> meets("0.0.42.1", "==0.0.42.*"), meets("0.0.51", "==0.0.42.*")
    (True, False)
    >>> meets("0.10.2", ">=0.10.1,<=0.10.2"), meets("0.11.0rc1", "<0.11")
    (True, False)
    """
    return all(_meets_clause(found, clause.strip()) for clause in specifier.split(",") if clause)


_Key = tuple[int, tuple[int, ...], tuple[float, int], float, float]


def _meets_clause(found: str, clause: str) -> bool:
    parts = _CLAUSE.fullmatch(clause)
    ours = _key(found)
    wanted = _key(parts[2]) if parts is not None else None
    if parts is None or ours is None or wanted is None:
        return True
    operator = parts[1]
    if parts[3]:
        if operator not in ("==", "!="):
            return True
        length = len(_release(parts[2]))
        release = _release(found)
        prefix = (*release, *[0] * (length - len(release)))[:length]
        same = (ours[0], prefix) == (wanted[0], _release(parts[2]))
        return same == (operator == "==")
    if operator == "<":  # a release candidate of the version ruled out is ruled out with it
        its_candidate = ours[:2] == wanted[:2] and _is_early(ours) and not _is_early(wanted)
        return ours < wanted and not its_candidate
    return {
        "==": ours == wanted,
        "!=": ours != wanted,
        "<=": ours <= wanted,
        ">=": ours >= wanted,
    }[operator]


def _is_early(key: _Key) -> bool:
    """Return whether a version is a candidate or a development version."""
    return key[2][0] != math.inf or key[4] != math.inf


def _release(text: str) -> tuple[int, ...]:
    parts = _VERSION.fullmatch(text)
    return tuple(map(int, parts["release"].split("."))) if parts is not None else ()


def _key(text: str) -> _Key | None:
    """Return the key that versions are ordered by, or None if the text is no version."""
    parts = _VERSION.fullmatch(text.strip())
    if parts is None:
        return None
    release = _release(text.strip())
    while release[1:] and release[-1] == 0:
        release = release[:-1]
    phase: tuple[float, int] = (math.inf, 0)
    if parts["phase"]:
        phase = (_PHASES[parts["phase"].lower()], int(parts["number"] or 0))
    elif parts["dev"] and not parts["post"]:
        phase = (-math.inf, 0)  # 1.0.dev1 comes before 1.0a1
    return (
        int(parts["epoch"] or 0),
        release,
        phase,
        int(parts["revision"] or 0) if parts["post"] else -math.inf,
        int(parts["dev"]) if parts["dev"] else math.inf,
    )
