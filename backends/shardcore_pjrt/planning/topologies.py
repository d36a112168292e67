"""The TPU topologies that a plan may name, and the memory of their devices.

A topology is named as libtpu names it, ``<generation>:<A>x<B>[x<C>]``, where the numbers count
chips. A device of JAX is a chip on v5e, v5p and v6e, and one of a chip's two cores on v3,
v4 and tpu7x (on v4, unless the user joins the two).

================  ===============  ==============  ============================
generation        GiB in a chip    devices a chip  GiB free for a program, each
================  ===============  ==============  ============================
v3                32               2               15.48
v4                32               2               15.25
v5e               16               1               15.75
v5p               96 (95 GB sold)  1               95.74
v6e               32               1               31.25
tpu7x             192              2               94.75
================  ===============  ==============  ============================

The first column is from the pages of the generations in Google's documentation of Cloud TPU. The
last is what the compiler of libtpu 0.0.42.1 itself says when it refuses a program that is too large
(``exceeds available HBM (15.75G)``): the memory without what the runtime keeps for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

__all__ = ["LISTED", "Topology", "generation_of", "topology"]

_GIB: Final = 1 << 30


@dataclass(frozen=True)
class Topology:
    """Chips of one generation, and how they are connected.

    Attributes
    ----------
    name : str
        As libtpu takes it.
    chips : int
    devices_per_chip : int
    hbm : int
        Bytes that programs of one device may use.

    Examples
    --------
    >>> found = topology("v5p:2x2x2")
    >>> found.generation, found.chips, found.devices, round(found.hbm / 2**30, 2)
    ('v5p', 8, 8, 95.74)
    """

    name: str
    chips: int
    devices_per_chip: int
    hbm: int

    @property
    def generation(self) -> str:
        """The part before the colon."""
        return self.name.partition(":")[0]

    @property
    def devices(self) -> int:
        """How many devices JAX sees."""
        return self.chips * self.devices_per_chip

    @property
    def sparsecores(self) -> int:
        """How many SparseCores each device has that a table can lie in."""
        return _SPARSECORES.get(self.generation, 0)


_FLAT: Final = "2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_CUBES: Final = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16"
# Devices of a chip, GiB free on each, shapes from small to large.
_GENERATIONS: Final[Mapping[str, tuple[int, float, str]]] = {
    "v3": (2, 15.48, "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32"),
    "v4": (2, 15.25, _CUBES),
    "v5e": (1, 15.75, _FLAT),
    "v5p": (1, 95.74, _CUBES),
    "v6e": (1, 31.25, _FLAT),
    "tpu7x": (2, 94.75, _CUBES),
}

_SPARSECORES: Final[Mapping[str, int]] = {"v5p": 4, "v6e": 2, "tpu7x": 2}


def _listed() -> Mapping[str, Topology]:
    return {
        found.name: found
        for generation, (devices, gib, shapes) in _GENERATIONS.items()
        for shape in shapes.split()
        for found in (
            Topology(
                f"{generation}:{shape}",
                math.prod(map(int, shape.split("x"))),
                devices,
                int(gib * _GIB),
            ),
        )
    }


LISTED: Final[Mapping[str, Topology]] = _listed()
"""The topologies by name: those of a generation one after the other, from small to large."""


def topology(name: str) -> Topology:
    """Return a listed topology.

    Parameters
    ----------
    name : str
        Such as ``"v5e:4x4"``.

    Raises
    ------
    ShardcoreTypeError
        If it is no string.
    ShardcoreValueError
        If it is not listed; the message lists those that are.

    Examples
    --------
    >>> topology("v4:2x2x1").devices
    8
    """
    if not isinstance(name, str):
        raise ShardcoreTypeError(f"topology must be a str, got {name!r}")
    found = LISTED.get(name)
    if found is None:
        known = "; ".join(
            f"{generation}:{', '.join(shapes.split())}"
            for generation, (_, _, shapes) in _GENERATIONS.items()
        )
        raise ShardcoreValueError(f"topology must be one of {known}; got {name!r}")
    return found


def generation_of(name: str) -> list[Topology]:
    """Return the listed topologies of a generation, from small to large.

    Examples
    --------
    >>> [found.name for found in generation_of("v6e")][:3]
    ['v6e:2x2', 'v6e:2x4', 'v6e:4x4']
    """
    return [found for found in LISTED.values() if found.generation == name]
