"""A module with one table: what `EmbeddingBag` and `Embedding` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.dtypes import working_dtype
from shardcore.errors import (
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreTypeError,
    ShardcoreValueError,
    shown,
)
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.initializers import FromArray, Normal, Zeros
from shardcore.optimizer.base import Optimizer
from shardcore.torch.calls import check_inside, renamed
from shardcore.torch.module import EngineModule
from shardcore.torch.table_copy import table_copy
from shardcore.torch.tensors import as_array, as_tensor, check_place, numpy_dtype
from shardcore.validation import as_count, as_integer

__all__ = ["OneTable"]

TABLE: Final = "embedding"


class OneTable(EngineModule):
    """Base of `EmbeddingBag` and `Embedding`. For the parameters, see there."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        scale_grad_by_freq: bool,
        sparse: bool,
        weight: Any,
        frozen: bool,
        device: Any,
        dtype: Any,
        combiner: Literal["sum", "mean"],
        optimizer: Optimizer | None,
        backend: str | Backend | None,
        update: Literal["backward", "step"],
    ) -> None:
        super().__init__(optimizer, backend, update, frozen)
        self.num_embeddings = as_count(num_embeddings, "num_embeddings")
        self.embedding_dim = as_count(embedding_dim, "embedding_dim")
        self.padding_idx = _padding(padding_idx, self.num_embeddings)
        self.max_norm = _number(max_norm, "max_norm")
        self.norm_type = _number(norm_type, "norm_type")
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        check_place(device)
        shape = (self.num_embeddings, self.embedding_dim)
        initial: Any = Normal(0.0, 1.0)
        if weight is not None:
            values = as_array(weight, "_weight")
            if values.shape != shape:
                raise ShardcoreValueError(f"_weight must have shape {shape}, got {values.shape}")
            if dtype is None:
                dtype = weight.dtype
            initial = FromArray(values)
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        numpy_dtype(self.dtype)
        self._combiner = combiner
        self._make_engine({TABLE: initial})
        if weight is None and self.padding_idx is not None:
            self._engine.tables[TABLE][self.padding_idx] = 0

    def _features(self, initial: Mapping[str, Any]) -> FeatureConfig:
        table = TableConfig(
            self.num_embeddings,
            self.embedding_dim,
            initializer=initial.get(TABLE, Zeros()),
            combiner=self._combiner,
            name=TABLE,
            dtype=numpy_dtype(self.dtype),
        )
        return FeatureConfig(table)

    @property
    def _working(self) -> np.dtype[Any]:
        return working_dtype(numpy_dtype(self.dtype))

    def _prefixes(self) -> dict[str, str]:
        return {TABLE: ""}

    def _dtypes(self) -> list[Any]:
        return [self.dtype]

    @property
    def weight(self) -> Any:
        """The rows, as a copy. Assigning a tensor overwrites all rows; writing to it is refused."""
        return table_copy(self._read(TABLE, None))

    @weight.setter
    def weight(self, value: Any) -> None:
        shape = (self.num_embeddings, self.embedding_dim)
        values = as_array(value, "weight")
        if values.shape != shape:
            raise ShardcoreValueError(f"weight must have shape {shape}, got {values.shape}")
        table = self._engine.tables[TABLE]
        table.assign(values.astype(table.dtype, copy=False))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # torch would make a parameter of a torch.nn.Parameter
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Draw all rows anew, from the standard normal distribution; the padding row is zeros."""
        shape = (self.num_embeddings, self.embedding_dim)
        rows = torch.empty(shape).normal_()
        if self.padding_idx is not None:
            rows[self.padding_idx] = 0
        self.weight = rows

    def _one(
        self,
        given: NDArray[Any],
        leaf: Any,
        updates: bool,
        weights: Any = None,
        scale: NDArray[Any] | None = None,
    ) -> Any:
        """Look the only feature up.

        Parameters
        ----------
        given : ndarray
            The ids as they came, for messages.
        leaf : ndarray or (ndarray, ndarray)
            What the engine is given.
        updates : bool
            What `_updates` said.
        weights : tensor or None
        scale : ndarray or None
            What to multiply the gradient by.
        """
        try:
            if weights is None and not updates:  # as below; lists take a tenth of one bag's time
                return as_tensor(self._engine(leaf), self.dtype)
            factors = None if weights is None else [weights]
            return self._look_up([leaf], factors, [TABLE], [self.dtype], updates, scale)[0]
        except ShardcoreError as error:
            if isinstance(error, ShardcoreIndexError):
                check_inside(given, self.num_embeddings)  # in the shape in which they were given
            told = renamed(error)
            if told is error:
                raise
            raise told from None

    def _renormalise(self, ids: NDArray[Any]) -> None:
        """Scale the rows that ids name, and that are too long, down to `max_norm`, in the table."""
        if self.max_norm is None:
            return
        check_inside(ids, self.num_embeddings)
        table = self._engine.tables[TABLE]
        rows = np.unique(ids)
        values = torch.from_numpy(
            table.sparse_read(rows).astype(
                np.float64 if self.dtype == torch.float64 else np.float32
            )
        )
        norms = torch.linalg.vector_norm(values, self.norm_type, dim=1)
        long = norms > self.max_norm
        if long.any():
            # In float64, rounded once, as torch does it: rows cut short tie in a `max` alike.
            scale = self.max_norm / (norms[long].double() + 1e-7)
            shorter = values[long] * scale.to(values.dtype)[:, None]
            table.scatter_update(rows[long.numpy()], shorter.numpy().astype(table.dtype))

    def _scale(self, ids: NDArray[Any]) -> NDArray[Any] | None:
        """Return one over how often each id occurs, shape (ids, 1), with `scale_grad_by_freq`."""
        if not self.scale_grad_by_freq:
            return None
        _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        return (1 / counts[inverse.reshape(-1)].astype(self._working))[:, None]

    def extra_repr(self) -> str:
        """Return the arguments, as torch's modules do."""
        parts = [f"{self.num_embeddings}, {self.embedding_dim}"]
        for name, default in (
            ("padding_idx", None),
            ("max_norm", None),
            ("norm_type", 2.0),
            ("scale_grad_by_freq", False),
            ("mode", "mean"),
            ("optimizer", None),
            ("backend", None),
            ("update", "backward"),
        ):
            value = getattr(self, name, default)
            if value != default:
                parts.append(f"{name}={value!r}")
        return ", ".join(parts)


def _padding(value: Any, rows: int) -> int | None:
    if value is None:
        return None
    row = as_integer(value, "padding_idx")
    if not -rows <= row < rows:
        raise ShardcoreValueError(f"padding_idx must be in [{-rows}, {rows}), got {row}")
    return row % rows


def _number(value: Any, argument: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ShardcoreTypeError(f"{argument} must be a number, got {shown(value)}")
    return float(value)
