"""The tables that devices can hold; this module does without JAX."""

from __future__ import annotations

from typing import Final

from shardcore.backend import Capabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES: Final = Capabilities(
    # Without float64, which JAX has only if the whole program changes to it.
    dtypes=("float32", "float16", "bfloat16"),
    exchanges=("exact",),
    device_arrays=True,
    slot_dtypes=("float32", "float16", "bfloat16"),
)
