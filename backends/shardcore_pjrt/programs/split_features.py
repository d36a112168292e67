"""The activations of a stack of many features, cut into one array per feature.

XLA compiles every array that a program returns on its own: 10 ms each on a CPU, and a lookup of 856
features took minutes. Beyond `AT_ONCE` features a lookup returns its bags as one list; one small
program for all features of a size, called for some of them at a time, then cuts them out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from shardcore_pjrt.mesh.placed_arrays import AXIS
from shardcore_pjrt.mesh.placing import over_devices
from shardcore_pjrt.programs.compiled import Programs

__all__ = ["AT_ONCE", "per_feature"]

AT_ONCE: Final = 32
"""Features whose activations one program returns."""


def split_program(mesh: Mesh, bags: int, count: int) -> Callable[..., tuple[jax.Array, ...]]:
    """Return a program (activations, first) -> those of `count` features of `bags` local bags.

    The first of them begins at the local bag `first` of every device.
    """

    def split(activations: jax.Array, first: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            lax.dynamic_slice_in_dim(activations, first + at * bags, bags) for at in range(count)
        )

    cut = Spec(AXIS, None)
    per_device = jax.shard_map(
        split, mesh=mesh, in_specs=(cut, Spec()), out_specs=(cut,) * count, check_vma=False
    )
    program: Callable[..., tuple[jax.Array, ...]] = jax.jit(
        per_device, out_shardings=(over_devices(mesh),) * count
    )
    return program


def per_feature(
    mesh: Mesh, programs: Programs, found: Sequence[jax.Array], bags: Sequence[int]
) -> list[jax.Array]:
    """Return the activations of each feature, (devices * bags, dim).

    Parameters
    ----------
    mesh : Mesh
        Of the tables.
    programs : Programs
    found : sequence of array
        What the lookup program returned: these, or one array of them all.
    bags : sequence of int
        Local bags of each feature.
    """
    if len(bags) <= AT_ONCE:
        return list(found)
    (activations,) = found
    arrays: list[jax.Array] = []
    start = 0
    for size, alike in itertools.groupby(bags):
        features = len(list(alike))
        count = min(features, AT_ONCE)
        program = programs.get(split_program, mesh, size, count)
        for at in range(0, features, count):
            first = min(at, features - count)  # the last ones end with the features
            arrays += program(activations, start + first * size)[at - first :]
        start += features * size
    return arrays
