"""How kernels go through rows on this processor: how they ask for rows ahead, and update blocks.

None of it changes a bit of a result.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shardcore._core import cpu
from shardcore._core.constants import ASKING

__all__ = ["NEVER", "PACE", "Pace", "pace_of"]

NEVER: Final = 1 << 62
"""More bytes than any row has."""


class Pace(NamedTuple):
    """How kernels go through rows.

    Attributes
    ----------
    asking : int
        How rows are asked for ahead: one of `ASKING`.
    block : int
        Most rows handed to an optimizer's function at a time.
    block_bytes : int
        Most bytes of them and of their slots.
    sections : int
        Ranges of rows that an update goes through side by side; a power of two.
    ahead : int
        Rows between asking for one and updating it.
    alone_bytes : int
        Least bytes of a row and its slots with which a function that takes rows one by one, see
        `UpdateFunction`, gets them so; `NEVER` if blocks are always as fast.
    """

    asking: int
    block: int
    block_bytes: int
    sections: int
    ahead: int
    alone_bytes: int


_ZEN_5: Final = Pace(ASKING["into first"], 16, 2560, 1, 16, NEVER)
"""Its first cache takes rows that are asked for far ahead: sums take 0.6 to 0.9 of the time that
the second allows. Larger blocks take up to twice the time: what is asked for for the rows that
come, and what the function does, overlap only where they alternate."""

_ZEN_4: Final = Pace(ASKING["by lines"], 32, 1 << 14, 1, 16, 1 << 10)
"""The first cache has few miss buffers: rows asked for into it come at two thirds of the second's
rate, and updates take up to twice the time. Smaller blocks take up to a third longer. Rows one by
one take 0.9 to 1.6 times as long as in blocks, wide ones 0.7 to 1.0."""

_ZEN_3: Final = Pace(ASKING["by lines"], 32, 1 << 13, 1, 16, 1 << 8)
"""And of those before it. As above, but blocks that leave the first cache take a fifth longer, and
rows one by one a fifth less, unless they are narrow: a call for each takes too long."""

_OTHER: Final = Pace(ASKING["by pairs"], 32, 1 << 20, 4, 32, NEVER)
"""Measured on Intel's. One range of rows takes a fifth longer there than four."""


def pace_of(amd_family: int, avx512: bool = False) -> Pace:
    """Return what suits a processor, by the family of AMD's; 0 for other makers'.

    Zen 3 and Zen 4 are one family, of which Zen 4 has AVX-512.

    Examples
    --------
    >>> pace_of(26).block, pace_of(25).block
    (16, 32)
    >>> pace_of(25, avx512=True).alone_bytes, pace_of(25).alone_bytes
    (1024, 256)
    """
    if amd_family == 0:
        return _OTHER
    if amd_family >= 26:
        return _ZEN_5
    return _ZEN_4 if avx512 else _ZEN_3


PACE: Final = pace_of(cpu.amd_family(), cpu.features()["avx512f"])
