"""Gradients that live on the devices are tested there, and the update they belong to does nothing.

Whether a batch may change anything is one value on the devices, which its test makes from its
gradients alone, and which its update programs take: no update waits for the host, and none depends
on the batches before. The host looks at values that are ready, or is asked to wait for all.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from shardcore.backend import NotFinite, TableUpdate
from shardcore_pjrt.mesh.own_devices import places_of_processes
from shardcore_pjrt.mesh.placing import fetched, put, spans_processes, whole
from shardcore_pjrt.programs.activations import Filling
from shardcore_pjrt.programs.compiled import Programs

__all__ = ["Refusals"]

_BEHIND: Final = 64
"""Batches whose test the host does not wait for."""
_BEHIND_TOGETHER: Final = 8
"""The same for several processes, where none looks at a value before all of them do."""


def finite_program(mesh: Mesh, tested: int) -> Callable[..., Any]:
    """Return a program gradients -> whether every value is finite, places and values, (tested,).

    A place, flat, is that of the first value of a gradient that is not finite as float32, if there
    is one.
    """

    def test(gradients: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
        assert len(gradients) == tested
        go, places, values = jnp.bool_(True), [], []
        for gradient in gradients:
            finite = jnp.isfinite(gradient.astype(jnp.float32)).ravel()
            go = go & finite.all()
            place = finite.argmin() if finite.size else jnp.int32(0)
            places.append(place.astype(jnp.int32))
            values.append(gradient.ravel()[place] if finite.size else gradient.dtype.type(0))
        shared = jnp.result_type(*gradients)  # holds each value as it was given
        return go, jnp.stack(places), jnp.stack([value.astype(shared) for value in values])

    program: Callable[..., Any] = jax.jit(test, out_shardings=whole(mesh))
    return program


class _Tested(NamedTuple):
    """A gradient that is tested: where it came from, and where its bags are in it."""

    table: str
    origin: Any
    feature: int
    columns: int
    filling: Filling | None


class _Batch(NamedTuple):
    """A batch with its test, which the device may not have made yet."""

    step: int
    go: jax.Array
    places: jax.Array
    values: jax.Array
    tested: tuple[_Tested, ...]


class Refusals:
    """The updates with gradients not yet known to be finite; the gradients themselves are not kept.

    Parameters
    ----------
    mesh : Mesh
        All devices.
    programs : Programs
    own_samples : bool
        Whether each device has samples of its process alone, to which a report then refers.
    """

    def __init__(self, mesh: Mesh, programs: Programs, own_samples: bool = False) -> None:
        self._mesh = mesh
        self._holders: list[tuple[int, int]] | None = None
        if own_samples:
            self._holders = _holders(mesh)
        self._alone = not spans_processes(mesh)
        self._programs = programs
        self._yes = put({"go": np.array(True)}, {"go": whole(mesh)})["go"]
        self._pending: deque[_Batch] = deque()

    def test(
        self,
        updates: Sequence[TableUpdate],
        fillings: Sequence[Sequence[Filling | None]] | None = None,
    ) -> jax.Array:
        """Return whether a batch may change anything, as a value on the devices.

        Parameters
        ----------
        updates : sequence of TableUpdate
            Whose gradients, where they are to be tested, are on the devices of the mesh.
        fillings : sequence of sequences, optional
            Where their bags are in them, per update and feature. None: they have no others.
        """
        gradients, tested = [], []
        for at, update in enumerate(updates):
            for feature, gradient in enumerate(update.gradients):
                if not update.check or not isinstance(gradient, jax.Array):
                    continue
                filling = fillings[at][feature] if fillings else None
                gradients.append(gradient)
                tested.append(
                    _Tested(update.batch.table, update.origin, feature, gradient.shape[1], filling)
                )
        if not tested:
            return self._yes
        program = self._programs.get(finite_program, self._mesh, len(tested))
        go: jax.Array
        go, places, values = program(tuple(gradients))
        self._pending.append(_Batch(updates[0].step, go, places, values, tuple(tested)))
        return go

    def report(self, wait: bool) -> NotFinite | None:
        """Report the first batch that was refused, and how many were; once.

        Several processes wait for the same batches, whatever one of them could know earlier.

        Parameters
        ----------
        wait : bool
            Whether to wait for all batches so far; else for those only that are long past.
        """
        found: NotFinite | None = None
        behind = _BEHIND if self._alone else _BEHIND_TOGETHER
        while self._pending:
            batch = self._pending[0]
            known = wait or len(self._pending) > behind or (self._alone and batch.go.is_ready())
            if not known:
                break
            if not bool(fetched(batch.go)):
                found = found or _first_of(batch, self._holders)
                found = dataclasses.replace(found, updates=found.updates + 1)
            self._pending.popleft()
        return found


def _holders(mesh: Mesh) -> list[tuple[int, int]]:
    """Return, of each device, its process, and which of that one's devices it is."""
    holders = [(0, 0)] * mesh.size
    for process, places in places_of_processes(mesh).items():
        for at, place in enumerate(places):
            holders[place] = process, at
    return holders


def _first_of(batch: _Batch, holders: Sequence[tuple[int, int]] | None) -> NotFinite:
    places, values = fetched(batch.places), fetched(batch.values)
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32))
    at = int(finite.argmin())
    assert not finite[at], "a refused batch has a gradient that is not finite"
    one, value = batch.tested[at], float(values[at])
    bag, column = divmod(int(places[at]), one.columns)
    process: int | None = None
    if one.filling is not None and holders is not None:
        part, place = divmod(bag, one.filling.room)
        process, at = holders[part]
        bag = at * one.filling.own + place
    elif one.filling is not None:
        bag = one.filling.true_bag(bag)
    found = NotFinite(one.table, one.origin, one.feature, bag, column, value, step=batch.step)
    return dataclasses.replace(found, process=process)
