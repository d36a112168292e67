"""What tables in SparseCores can be, and how they lie if nobody says."""

from __future__ import annotations

from typing import Final, Literal

from shardcore.backend import Capabilities

__all__ = ["CAPABILITIES", "DEFAULT_LAYOUT"]

CAPABILITIES: Final = Capabilities(
    dtypes=("float32",),
    placements=("row",),
    exchanges=("exact",),
    quantization=False,
    device_arrays=True,
    slot_dtypes=("float32",),
    max_norm=False,
)

DEFAULT_LAYOUT: Final[Literal["div", "mod"]] = "mod"
"""Successive rows on different devices, then on different cores of them: none has all hot ones."""
