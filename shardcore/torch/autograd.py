"""A lookup as torch's autograd sees it: activations forward, an update of the rows backward.

What the graph holds is the engine's `Lookup`. A forward that leads nowhere goes with its graph, and
the lookup with it. The tensor ``anchor`` makes the activations require gradients: tables are no
tensors, so nothing else does. Where gradients of weights may be asked for too, the update is a node
of its own, between the anchor and the lookup: ``torch.autograd.grad(loss, weights)`` then leads to
the lookup and not to the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from shardcore.engine.embedding import ShardedEmbedding
from shardcore.engine.handle import Lookup
from shardcore.errors import ShardcoreRuntimeError
from shardcore.optimizer.base import Optimizer
from shardcore.torch.tensors import as_gradient, as_tensor

__all__ = ["Held", "LookupCall", "as_tensors", "look_up"]

Held = dict[Lookup, list[NDArray[Any] | None]]
"""The lookups whose gradients wait for a step, and the gradients per feature."""

_ANCHOR: Final = torch.empty(0, requires_grad=True)


class Tables(Protocol):
    """What a lookup needs of its module."""

    update: Literal["backward", "step"]
    optimizer: Optimizer | None
    _engine: ShardedEmbedding
    _held: Held

    def _nest(self, leaves: Sequence[Any]) -> Any:
        """Put what there is per feature into the engine's structure."""

    def _flat(self, nested: Any) -> list[Any]:
        """Undo that."""


class LookupCall:
    """One lookup of a module, and what its gradients are to do.

    Parameters
    ----------
    module : Tables
    leaves : sequence
        The ids per feature, as the engine takes them.
    weights : sequence of (array or None), or None
    tables : sequence of str
        The table of each feature.
    dtypes : sequence of torch.dtype
        Of the activations of each feature.
    updates : bool
        Whether its gradients update rows, if there is an optimizer, at once or in a step.
    scale : ndarray or None
        What to multiply the gradient of the only feature by.
    """

    __slots__ = (
        "_dtypes",
        "_given",
        "_handle",
        "_kept",
        "_leaves",
        "_module",
        "_scale",
        "_tables",
        "_update",
        "_weights",
    )

    def __init__(
        self,
        module: Tables,
        leaves: Sequence[Any],
        weights: Sequence[NDArray[Any] | None] | None,
        tables: Sequence[str],
        dtypes: Sequence[Any],
        updates: bool,
        scale: NDArray[Any] | None,
    ) -> None:
        self._module, self._leaves, self._weights = module, leaves, weights
        self._tables, self._dtypes, self._scale = tables, dtypes, scale
        self._update = module.update if updates and module.optimizer is not None else None
        self._handle: Lookup | None = None
        self._given: Sequence[NDArray[Any] | None] = ()
        self._kept: Sequence[Any] = ()

    def forward(self) -> tuple[Any, ...]:
        """Return the activations per feature."""
        module, weights = self._module, self._weights
        features = module._nest(self._leaves)
        factors = None if weights is None else module._nest(weights)
        if self._update is not None:
            self._handle = module._engine.lookup(features, factors)
            found = self._handle.activations
        else:
            found = module._engine(features, factors)
        return as_tensors(module._flat(found), self._dtypes)

    def let_go(self) -> None:
        """Let go of the ids and weights, which the gradients of rows do not need."""
        self._leaves = self._weights = ()

    def keep_inputs(self, wanted: Sequence[bool]) -> None:
        """Take copies of what the gradients of weights need, and let go of the rest."""
        kept = [
            (_in_one_axis(leaf), table) if want else None
            for leaf, table, want in zip(self._leaves, self._tables, wanted, strict=True)
        ]
        self._kept = kept
        self.let_go()

    def take(self, gradients: Sequence[Any]) -> None:
        """Read the gradients that came, for `apply`."""
        given = [None if one is None else as_gradient(one) for one in gradients]
        if self._scale is not None and given[0] is not None:
            given[0] = given[0] * self._scale
        self._given = given

    def weight_gradients(self, gradients: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        """Return the gradients of those weights that are wanted, from the gradients that came."""
        return [
            self._weight_gradient(at, as_gradient(one)) if want and one is not None else None
            for at, (one, want) in enumerate(zip(gradients, wanted, strict=True))
        ]

    def apply(self) -> None:
        """Update the rows by the gradients that came last, or keep them for a step."""
        if self._handle is None:
            raise ShardcoreRuntimeError(
                f"backward came to {type(self._module).__name__} without an optimizer: give it "
                "optimizer=, such as optimizer=shardcore.optimizers.SGD(0.1), or freeze it, with "
                "_freeze=True"
            )
        given, self._given = self._given, ()
        if self._update == "backward":
            self._handle.apply_gradients(self._module._nest(given))
        else:
            self._hold(self._handle, given)

    def _hold(self, handle: Lookup, gradients: Sequence[NDArray[Any] | None]) -> None:
        # Copies: whoever gave them may write to them before the step.
        held = self._module._held
        before = held.get(handle)
        if before is None:
            held[handle] = [None if one is None else one.copy() for one in gradients]
            return
        for at, one in enumerate(gradients):  # backward came again, with retain_graph=True
            old = before[at]
            if one is not None:
                before[at] = one.copy() if old is None else old + one

    def _weight_gradient(self, at: int, gradient: NDArray[Any]) -> Any:
        """Return each occurrence's row times its bag's gradient; weights are of sums only."""
        kept = self._kept[at]
        assert kept is not None, "kept for every weight that requires a gradient"
        (ids, lengths, shape), table = kept
        rows = (
            self._module._engine.tables[table].sparse_read(ids).astype(gradient.dtype, copy=False)
        )
        of_bags = np.repeat(gradient, lengths, axis=0)
        return torch.from_numpy(np.einsum("ij,ij->i", rows, of_bags).reshape(shape))


def as_tensors(arrays: Sequence[Any], dtypes: Sequence[Any]) -> tuple[Any, ...]:
    """Return the activations of an engine as tensors of these dtypes.

    Examples
    --------
    >>> as_tensors([np.ones(2, np.float32)], [torch.float16])
    (tensor([1., 1.], dtype=torch.float16),)
    """
    return tuple([as_tensor(one, dtype) for one, dtype in zip(arrays, dtypes, strict=True)])


def _in_one_axis(leaf: Any) -> tuple[NDArray[Any], Any, tuple[int, ...]]:
    """Return a copy of the ids in one axis, the lengths of their bags, and the ids' shape."""
    if isinstance(leaf, tuple):
        ids, splits = leaf
        return ids.copy(), np.diff(splits), ids.shape
    width = leaf.shape[1] if leaf.ndim == 2 else 1
    return leaf.reshape(-1).copy(), width, leaf.shape


class _Lookup(torch.autograd.Function):
    """The node in torch's graph of a lookup without weights."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, call: LookupCall) -> tuple[Any, ...]:
        """Look up."""
        ctx.call = call
        ctx.set_materialize_grads(False)
        found = call.forward()
        call.let_go()
        return found

    # Nothing comes out that could be differentiated once more.
    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None]:
        """Update, or keep gradients."""
        ctx.call.take(gradients)
        ctx.call.apply()
        return None, None


class _WeightedLookup(torch.autograd.Function):
    """The node of a lookup with weights, whose gradients may be asked for."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, call: LookupCall, *weights: Any) -> tuple[Any, ...]:
        """Look up."""
        ctx.call = call
        ctx.dtypes = [None if one is None else one.dtype for one in weights]
        ctx.set_materialize_grads(False)
        found = call.forward()
        call.keep_inputs(ctx.needs_input_grad[2:])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """Return the gradients of weights; update, unless another node does."""
        anchored, _, *wanted = ctx.needs_input_grad
        found = ctx.call.weight_gradients(gradients, wanted)
        ctx.call.take(gradients)
        update_behind = anchored and any(wanted)  # a node of its own, which needs a gradient
        if anchored and not update_behind:
            ctx.call.apply()
        return (
            torch.empty(0) if update_behind else None,
            None,
            *(
                None if one is None else one.to(dtype)
                for one, dtype in zip(found, ctx.dtypes, strict=True)
            ),
        )


class _Update(torch.autograd.Function):
    """The node behind that of a lookup whose weights may be all that is asked for."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, call: LookupCall) -> Any:
        """Return what the lookup hangs on."""
        ctx.call = call
        return torch.empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> tuple[None, None]:
        """Update, or keep gradients."""
        ctx.call.apply()
        return None, None


def look_up(call: LookupCall, weights: Sequence[Any] | None, updates: bool) -> tuple[Any, ...]:
    """Return the activations of a call, which require gradients where something asks for them.

    Parameters
    ----------
    call : LookupCall
    weights : sequence of (tensor or None), or None
        As the call has them, for torch to differentiate.
    updates : bool
        Whether the rows are to be updated.
    """
    found: tuple[Any, ...]
    if weights is None:
        found = _Lookup.apply(_ANCHOR, call)  # rows are all that could ask for a gradient
        return found
    anchor: Any = None
    if updates:
        differentiated = any(one is not None and one.requires_grad for one in weights)
        anchor = _Update.apply(_ANCHOR, call) if differentiated else _ANCHOR
    found = _WeightedLookup.apply(anchor, call, *weights)
    return found
