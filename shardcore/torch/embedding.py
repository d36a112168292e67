"""`torch.nn.Embedding`, with an engine's table."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from shardcore.backend.base import Backend
from shardcore.errors import ShardcoreValueError
from shardcore.optimizer.base import Optimizer
from shardcore.torch.calls import ids_of, jagged_parts, plain_ids
from shardcore.torch.compiling import outside_of_graphs
from shardcore.torch.single import TABLE, OneTable
from shardcore.torch.tensors import as_tensor

__all__ = ["Embedding"]


class Embedding(OneTable):
    """Rows of a table, one per id, as `torch.nn.Embedding`.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows and columns.
    padding_idx : int, optional
        A row that is looked up and never updated.
    max_norm, norm_type, scale_grad_by_freq, sparse, _weight, _freeze, device, dtype, optimizer, \
backend, update
        As `EmbeddingBag`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> import shardcore as sc
    >>> words = Embedding(10, 2, _weight=torch.ones(10, 2), optimizer=sc.optimizers.SGD(0.5))
    >>> words(torch.tensor([[1, 2, 1]])).sum().backward()
    >>> words.weight[:3, 0]
    TableCopy([1.0000, 0.0000, 0.5000])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        update: Literal["backward", "step"] = "backward",
    ) -> None:
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
            "sum",
            optimizer,
            backend,
            update,
        )

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        update: Literal["backward", "step"] = "backward",
    ) -> Embedding:
        """Return a module with a copy of these rows, frozen unless ``freeze=False``.

        Parameters
        ----------
        embeddings : tensor, shape (rows, dim)
        freeze : bool
            Whether the rows are never updated; False goes with an `optimizer`.
        padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, optimizer, backend, update
            As the class.

        Examples
        --------
        >>> Embedding.from_pretrained(torch.ones(3, 2))(torch.tensor([2]))
        tensor([[1., 1.]])
        """
        if not isinstance(embeddings, torch.Tensor) or embeddings.dim() != 2:
            raise ShardcoreValueError("embeddings must be a tensor of rank 2")
        rows, dim = embeddings.shape
        return cls(
            rows,
            dim,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
            _weight=embeddings,
            _freeze=freeze,
            optimizer=optimizer,
            backend=backend,
            update=update,
        )

    @outside_of_graphs
    def forward(self, input: Any) -> Any:
        """Return the rows of ids.

        Parameters
        ----------
        input : tensor of int64 or int32, any shape
            Or a nested tensor, jagged: then the rows are one too.

        Returns
        -------
        tensor, shape (*input.shape, embedding_dim)

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If an argument breaks its rule.
        """
        updates = self._updates()
        as_it_comes = not self.scale_grad_by_freq and self.max_norm is None
        if as_it_comes and self.padding_idx is None:
            ids = plain_ids(input)
            if ids is not None:
                rows = self._one(ids, ids.reshape(-1) if ids.ndim != 1 else ids, updates)
                return self._shaped(rows, ids)
        if isinstance(input, torch.Tensor) and input.is_nested:
            values, offsets = jagged_parts(input, "input")
            return torch.nested.nested_tensor_from_jagged(self._rows(values, updates), offsets)
        return self._rows(input, updates)

    def _rows(self, input: Any, updates: bool) -> Any:
        given = ids_of(input, "input")
        ids = given.reshape(-1)
        self._renormalise(given)
        leaf: Any = ids
        padded = None
        if self.padding_idx is not None:
            padded = ids == self.padding_idx
            if padded.any():  # bags without an id: no gradient can reach the row
                splits = np.zeros(ids.size + 1, np.int64)
                np.cumsum(~padded, out=splits[1:])
                leaf = (ids[~padded], splits)
            else:
                padded = None
        rows = self._one(given, leaf, updates, scale=self._scale(ids))
        if padded is not None:
            row = as_tensor(self._engine.tables[TABLE][self.padding_idx])
            rows = torch.where(torch.from_numpy(padded)[:, None], row, rows)
        return self._shaped(rows, given)

    def _shaped(self, rows: Any, ids: Any) -> Any:
        """Return rows in the shape of their ids."""
        # Not asked of torch where nothing changes: it takes as long as a few rows.
        return rows if ids.ndim == 1 else rows.reshape(*ids.shape, self.embedding_dim)
