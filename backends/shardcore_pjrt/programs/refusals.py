"""Gradients that live on the devices are tested there, and the update they belong to does nothing.

Whether a batch may change anything is one value on the devices, which its test makes from the
gradients and the value before, and which every update program takes: no update waits for the host.
The host looks at the backend's next call, and tells what was wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from shardcore.backend import TableUpdate
from shardcore.errors import UpdateRefusedError
from shardcore_pjrt.mesh.placing import fetched, put, resharding_program, whole
from shardcore_pjrt.programs.compiled import Programs

__all__ = ["Refusals"]


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
    """What was handed over with gradients not yet known to be finite.

    Parameters
    ----------
    mesh : Mesh
        All devices.
    programs : Programs
    """

    def __init__(self, mesh: Mesh, programs: Programs) -> None:
        self._mesh = mesh
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
            for gradient, path in zip(update.gradients, update.unchecked, strict=True)
            if path is not None
        )
        if tested:
            program = self._programs.get(finite_program, self._mesh, len(tested))
            self._go = program(self._go, tested)
        if tested or self._pending:
            self._pending.append((self._go, updates))
        return self._go

    def settle(self) -> None:
        """Wait until it is known of all batches so far, and raise for the first that was refused.

        Raises
        ------
        UpdateRefusedError
            Once; what is handed over afterwards works as if nothing had been.
        """
        pending, self._pending = self._pending, []
        if not pending or bool(fetched(pending[-1][0])):
            return
        self._go = self._yes
        refused = [updates for go, updates in pending if not bool(fetched(go))]
        raise UpdateRefusedError(self._message(refused[0]), len(refused))

    def _message(self, updates: Sequence[TableUpdate]) -> str:
        show = resharding_program(whole(self._mesh))
        for update in updates:
            for at, path in enumerate(update.unchecked):
                if path is None:
                    continue
                gradient: Any = update.gradients[at]
                given = fetched(show(gradient))
                with np.errstate(over="ignore"):
                    finite = np.isfinite(given.astype(np.float32))
                if not finite.all():
                    bag, column = divmod(int(finite.argmin()), given.shape[1])
                    value = given[bag, column]
                    return update.not_finite(at, bag, column, value, np.dtype(np.float32))
        raise AssertionError("a refused batch has a gradient that is not finite")
