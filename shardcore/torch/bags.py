"""`torch.nn.EmbeddingBag`, with an engine's table."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from shardcore.backend.base import Backend
from shardcore.errors import ShardcoreValueError, shown
from shardcore.optimizer.base import Optimizer
from shardcore.torch.calls import Bags, plain_leaf, read_bags
from shardcore.torch.compiling import outside_of_graphs
from shardcore.torch.max_pooling import bag_numbers, max_of_bags
from shardcore.torch.single import OneTable

__all__ = ["EmbeddingBag"]


class EmbeddingBag(OneTable):
    """Rows of a table, combined per bag, as `torch.nn.EmbeddingBag`.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows and columns.
    max_norm, norm_type : float, optional
        Rows that a batch names and whose norm is larger are scaled to it first, in the table.
    scale_grad_by_freq : bool
        Whether a row's gradient is divided by how often the batch names it.
    mode : {"mean", "sum", "max"}
    sparse : bool
        Taken for torch's sake: no gradient of the whole table is made, whatever it is.
    _weight : tensor, shape (num_embeddings, embedding_dim), optional
        Initial values, which are copied. None: standard normal ones, by torch's seed.
    include_last_offset : bool
        Whether ``offsets`` end with the number of ids.
    padding_idx : int, optional
        A row that bags leave out.
    device : "cpu" or None
    dtype : torch.dtype, optional
        float32, float64, float16 or bfloat16.
    optimizer : Optimizer, optional
        One of `shardcore.optimizers`. None: ``backward`` raises.
    backend : str or Backend, optional
        As `shardcore.ShardedEmbedding` takes it.
    update : {"backward", "step"}
        Whether ``backward()`` updates the rows at once, or `step` does, by all gradients since the
        last one.
    _freeze : bool
        Whether rows are never updated.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> import shardcore as sc
    >>> ones = torch.ones(10, 2)
    >>> bag = EmbeddingBag(10, 2, mode="sum", _weight=ones, optimizer=sc.optimizers.SGD(0.5))
    >>> out = bag(torch.tensor([1, 2, 4]), torch.tensor([0, 2]))
    >>> out.detach()
    tensor([[2., 2.],
            [1., 1.]])
    >>> out.sum().backward()
    >>> bag.weight[4]
    TableCopy([0.5000, 0.5000])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: Literal["sum", "mean", "max"] = "mean",
        sparse: bool = False,
        _weight: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        update: Literal["backward", "step"] = "backward",
        _freeze: bool = False,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ShardcoreValueError(f"mode must be 'sum', 'mean' or 'max', got {shown(mode)}")
        if mode == "max" and scale_grad_by_freq:
            raise ShardcoreValueError("scale_grad_by_freq must be False with mode='max'")
        if mode == "max" and sparse:
            raise ShardcoreValueError("sparse must be False with mode='max'")
        # What goes through rows that are looked up one by one is combined by torch.
        alone = mode == "max" or scale_grad_by_freq
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight,
            _freeze,
            device,
            dtype,
            "mean" if mode == "mean" and not alone else "sum",
            optimizer,
            backend,
            update,
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: Literal["sum", "mean", "max"] = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        update: Literal["backward", "step"] = "backward",
    ) -> EmbeddingBag:
        """Return a module with a copy of these rows, frozen unless ``freeze=False``.

        Parameters
        ----------
        embeddings : tensor, shape (rows, dim)
        freeze : bool
            Whether the rows are never updated; False goes with an `optimizer`.
        max_norm, norm_type, scale_grad_by_freq, mode, sparse, include_last_offset, padding_idx, \
optimizer, backend, update
            As the class.

        Examples
        --------
        >>> EmbeddingBag.from_pretrained(torch.ones(3, 2))(torch.tensor([[0, 2]]))
        tensor([[1., 1.]])
        """
        if not isinstance(embeddings, torch.Tensor) or embeddings.dim() != 2:
            raise ShardcoreValueError("embeddings must be a tensor of rank 2")
        rows, dim = embeddings.shape
        return cls(
            rows,
            dim,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            mode=mode,
            sparse=sparse,
            _weight=embeddings,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
            optimizer=optimizer,
            backend=backend,
            update=update,
            _freeze=freeze,
        )

    @outside_of_graphs
    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return the combined rows of each bag.

        Parameters
        ----------
        input : tensor of int64 or int32
            (bags, width); or (ids,) with `offsets`; or a nested tensor of rank 2, jagged.
        offsets : tensor of int64 or int32, shape (bags,)
            Where each bag begins; with ``include_last_offset`` also where the last one ends.
        per_sample_weights : tensor of floats, shaped like `input`, optional
            With ``mode="sum"`` only.

        Returns
        -------
        tensor, shape (bags, embedding_dim)

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If an argument breaks its rule.
        """
        if per_sample_weights is not None and self.mode != "sum":
            raise ShardcoreValueError(
                f"per_sample_weights must be None with mode={self.mode!r}: only mode='sum' takes "
                "them"
            )
        updates = self._updates()
        combined = self.mode != "max" and not self.scale_grad_by_freq
        as_it_comes = combined and self.max_norm is None and self.padding_idx is None
        if as_it_comes and per_sample_weights is None:
            leaf = plain_leaf(input, offsets, self.include_last_offset)
            if leaf is not None:
                return self._one(leaf if offsets is None else leaf[0], leaf, updates)
        bags = read_bags(input, offsets, per_sample_weights, self.include_last_offset)
        self._renormalise(bags.ids)
        given = bags.ids
        if self.padding_idx is not None:
            bags = bags.without(self.padding_idx)
        if combined:
            return self._one(given, bags.leaf, updates, bags.weights)
        return self._combined(given, bags, updates)

    def _combined(self, given: Any, bags: Bags, updates: bool) -> Any:
        """Look every id up by itself, and combine in torch."""
        ids, splits, weights = bags.in_one_axis()
        rows = self._one(given, ids, updates, scale=self._scale(ids))
        if self.mode == "max":
            return max_of_bags(rows, splits)
        if weights is not None:
            rows = rows * weights[:, None]
        found = rows.new_zeros((splits.size - 1, self.embedding_dim))
        found = found.index_add(0, bag_numbers(splits), rows)
        if self.mode == "mean":
            lengths = torch.from_numpy(np.maximum(np.diff(splits), 1))
            found = found / lengths[:, None]
        return found
