"""Gradients that live on the devices are tested there, and the update they belong to does nothing.

Whether a batch may change anything is one value on the devices, which its test makes from the
gradients and the value before, and which every update program takes: no update waits for the host.
The host looks when it is asked for a report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from shardcore.backend import NotFinite, TableUpdate
from shardcore_pjrt.mesh.placing import fetched, put, spans_processes, whole
from shardcore_pjrt.programs.compiled import Programs

__all__ = ["Refusals"]

_BEHIND: Final = 8
"""Batches whose test the host does not wait for."""


def finite_program(mesh: Mesh, tested: int) -> Callable[..., Any]:
    """Return a program (go, gradients) -> go and every value is finite, (place, value) of each.

    The place, flat, is that of the first value that is not finite as float32, if there is one.
    """

    def test(go: jax.Array, gradients: tuple[jax.Array, ...]) -> Any:
        assert len(gradients) == tested
        firsts = []
        for gradient in gradients:
            finite = jnp.isfinite(gradient.astype(jnp.float32)).ravel()
            go = go & finite.all()
            place = finite.argmin() if finite.size else jnp.int32(0)
            firsts.append((place, gradient.ravel()[place] if finite.size else jnp.float32(0)))
        return go, tuple(firsts)

    program: Callable[..., Any] = jax.jit(test, out_shardings=whole(mesh))
    return program


class _Tested(NamedTuple):
    """A gradient that is tested: where it came from, and its first value that is not finite."""

    table: str
    origin: Any
    feature: int
    columns: int
    place: jax.Array
    value: jax.Array


class Refusals:
    """The updates with gradients not yet known to be finite; the gradients themselves are not kept.

    Parameters
    ----------
    mesh : Mesh
        All devices.
    programs : Programs
    """

    def __init__(self, mesh: Mesh, programs: Programs) -> None:
        self._mesh = mesh
        self._alone = not spans_processes(mesh)
        self._programs = programs
        self._go = self._yes = put({"go": np.array(True)}, {"go": whole(mesh)})["go"]
        self._pending: list[tuple[jax.Array, list[_Tested]]] = []

    def test(self, updates: Sequence[TableUpdate]) -> jax.Array:
        """Return whether a batch may change anything, as a value on the devices.

        Parameters
        ----------
        updates : sequence of TableUpdate
            Whose gradients, where they are to be tested, are on the devices of the mesh.
        """
        given = [
            (update, feature, gradient)
            for update in updates
            if update.check
            for feature, gradient in enumerate(update.gradients)
            if isinstance(gradient, jax.Array)
        ]
        tested: list[_Tested] = []
        if given:
            program = self._programs.get(finite_program, self._mesh, len(given))
            self._go, firsts = program(self._go, tuple(gradient for *_, gradient in given))
            tested = [
                _Tested(one.batch.table, one.origin, feature, gradient.shape[1], *first)
                for (one, feature, gradient), first in zip(given, firsts, strict=True)
            ]
        if tested or self._pending:
            self._pending.append((self._go, tested))
        return self._go

    def report(self, wait: bool) -> NotFinite | None:
        """Report the first batch that was refused; once.

        What is handed over afterwards works as if nothing had been. Several processes wait for the
        same batches, whatever one of them could know earlier.

        Parameters
        ----------
        wait : bool
            Whether to wait for all batches so far; else for those only that are long past.
        """
        while self._pending:
            go, tested = self._pending[0]
            known = wait or len(self._pending) > _BEHIND or (self._alone and go.is_ready())
            if not known:
                return None
            if not bool(fetched(go)):  # nor has any batch after it done anything
                refused, self._pending, self._go = len(self._pending), [], self._yes
                return _first_of(tested, refused)
            del self._pending[0]
        return None


def _first_of(tested: Sequence[_Tested], refused: int) -> NotFinite:
    for one in tested:
        value = float(fetched(one.value))
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.float32(value))
        if not finite:
            bag, column = divmod(int(fetched(one.place)), one.columns)
            return NotFinite(one.table, one.origin, one.feature, bag, column, value, refused)
    raise AssertionError("a refused batch has a gradient that is not finite")
