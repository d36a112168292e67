"""How kernels go through rows on this processor: how they ask for rows ahead, and update blocks.

None of it changes a bit of a result.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shardcore._core import cpu
from shardcore._core.constants import ASKING

__all__ = ["PACE", "Pace", "pace_of"]


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
    row_by_row : bool
        Whether a function that takes rows one by one gets them so, see `UpdateFunction`.
    """

    asking: int
    block: int
    block_bytes: int
    sections: int
    ahead: int
    row_by_row: bool


_ZEN_5: Final = Pace(ASKING["into first"], 16, 2560, 1, 16, False)
"""Its first cache takes rows that are asked for far ahead: sums take 0.6 to 0.9 of the time that
the second allows. Larger blocks take up to twice the time: what is asked for for the rows that
come, and what the function does, overlap only where they alternate."""

_ZEN_4: Final = Pace(ASKING["by lines"], 32, 1 << 13, 1, 16, True)
"""And of those before it. The first cache has few miss buffers: rows asked for into it come at two
thirds of the second's rate, and updates take up to twice the time. Smaller blocks take up to a
third longer, those that leave the first cache a fifth; rows one by one, on Zen 3, a fifth less."""

_OTHER: Final = Pace(ASKING["by pairs"], 32, 1 << 20, 4, 32, False)
"""Measured on Intel's. One range of rows takes a fifth longer there than four."""


def pace_of(amd_family: int) -> Pace:
    """Return what suits a processor, by the family of AMD's; 0 for other makers'.

    Examples
    --------
    >>> pace_of(26).block, pace_of(25).block
    (16, 32)
    """
    if amd_family == 0:
        return _OTHER
    return _ZEN_5 if amd_family >= 26 else _ZEN_4


PACE: Final = pace_of(cpu.amd_family())
