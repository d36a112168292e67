"""Gradients that live on the devices are tested there, and the update they belong to does nothing.

Whether a batch may change anything is one value on the devices, which its test makes from the
gradients and the value before, and which every update program takes: no update waits for the host.
The host looks when it is asked for a report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from shardcore.backend import NotFinite, TableUpdate
from shardcore_pjrt.mesh.placing import fetched, put, resharding_program, spans_processes, whole
from shardcore_pjrt.programs.compiled import Programs

__all__ = ["Refusals"]

_BEHIND: Final = 8
"""Batches whose test the host does not wait for."""


def finite_program(mesh: Mesh, tested: int) -> Callable[..., jax.Array]:
    """Return a program (go, gradients) -> go and every value is finite in float32."""

    def test(go: jax.Array, gradients: tuple[jax.Array, ...]) -> jax.Array:
        assert len(gradients) == tested
        for gradient in gradients:
            go = go & jnp.isfinite(gradient.astype(jnp.float32)).all()
        return go

    program: Callable[..., jax.Array] = jax.jit(test, out_shardings=whole(mesh))
    return program


class Refusals:
    """The updates whose gradients are not yet known to be finite.

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
        self._pending: list[tuple[jax.Array, Sequence[TableUpdate]]] = []

    def test(self, updates: Sequence[TableUpdate]) -> jax.Array:
        """Return whether a batch may change anything, as a value on the devices.

        Parameters
        ----------
        updates : sequence of TableUpdate
            Whose gradients, where they are to be tested, are on the devices of the mesh.
        """
        tested = tuple(
            gradient
            for update in updates
            for gradient in update.gradients
            if update.check and isinstance(gradient, jax.Array)
        )
        if tested:
            program = self._programs.get(finite_program, self._mesh, len(tested))
            self._go = program(self._go, tested)
        if tested or self._pending:
            self._pending.append((self._go, updates))
        return self._go

    def report(self, wait: bool) -> NotFinite | None:
        """Report the first batch that was refused; once.

        Later batches are applied as usual. Several processes wait for the same batches, even where
        one of them has a result earlier.

        Parameters
        ----------
        wait : bool
            Whether to wait for all batches so far; else for those only that are long past.
        """
        while self._pending:
            go, updates = self._pending[0]
            known = wait or len(self._pending) > _BEHIND or (self._alone and go.is_ready())
            if not known:
                return None
            if not bool(fetched(go)):  # nor has any batch after it done anything
                refused, self._pending, self._go = len(self._pending), [], self._yes
                return self._first_of(updates, refused)
            del self._pending[0]
        return None

    def _first_of(self, updates: Sequence[TableUpdate], refused: int) -> NotFinite:
        show = resharding_program(whole(self._mesh))
        for update in updates:
            for feature, gradient in enumerate(update.gradients):
                if not update.check or not isinstance(gradient, jax.Array):
                    continue
                given = fetched(show(gradient))
                with np.errstate(over="ignore"):
                    finite = np.isfinite(given.astype(np.float32))
                if not finite.all():
                    bag, column = divmod(int(finite.argmin()), given.shape[1])
                    value = float(given[bag, column])
                    return NotFinite(update, feature, bag, column, value, refused)
        raise AssertionError("a refused batch has a gradient that is not finite")
