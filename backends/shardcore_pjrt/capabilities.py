"""What tables devices can have; known without JAX."""

from __future__ import annotations

from typing import Final

from shardcore.backend import Capabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES: Final = Capabilities(
    # Without float64, which JAX has not unless all of the program changes to it.
    dtypes=("float32", "float16", "bfloat16"),
    exchanges=("exact",),
    device_arrays=True,
    slot_dtypes=("float32", "float16", "bfloat16"),
)
