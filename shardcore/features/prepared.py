"""One feature of one batch, as it was checked: for a backend, and for what follows the lookup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.messages import FeatureBags
from shardcore.store.segment_reduce import weight_gradients

__all__ = ["PreparedFeature"]


@dataclass(eq=False, slots=True)
class PreparedFeature:
    """One feature of one batch, ready for a backend.

    Attributes
    ----------
    bags : FeatureBags
    shape : tuple of int
        Of the activations, without the last axis.
    invalid : int
        Ids that the policy dealt with.
    kept : ndarray of bool, shape (ids given,), or None
        Which of the ids in bag order are in `bags`; None: all.
    weighed : (row_splits, weights) or None
        The ids whose weights the divisors count, in bag order: those of `bags`, and with the policy
        "zero" also the invalid ones. None: no weights were given.
    given_order : ndarray of int64, or None
        Where each id in bag order stood as it was given; None: the same place.
    ids_shape : tuple of int, or None
        Shape of ids that came as a dense array.
    max_splits : ndarray of int64, or None
        Of combiner "max": the row_splits of bags, of whose rows the greatest values are taken. Then
        `bags` are of one id each, or of none where an invalid id stands for a row of zeros.
    """

    bags: FeatureBags
    shape: tuple[int, ...]
    invalid: int
    kept: NDArray[np.bool_] | None
    weighed: tuple[NDArray[np.int64], NDArray[Any]] | None
    given_order: NDArray[np.int64] | None
    ids_shape: tuple[int, ...] | None
    max_splits: NDArray[np.int64] | None = None

    def weight_gradient(self, combiner: str, dots: NDArray[Any]) -> NDArray[Any] | None:
        """Return the gradients of the weights as they were given, None where none were.

        Parameters
        ----------
        combiner : {"sum", "mean", "sqrtn"}
        dots : ndarray, shape (ids in `bags`,)
            Each id's row times its bag's gradient.
        """
        if self.weighed is None:
            return None
        row_splits, weights = self.weighed
        if weights.size != dots.size:  # "zero": invalid ids have rows of zeros, and their weights
            dots = self._among_given(dots)
        full = weight_gradients(combiner, dots, row_splits, weights, self.bags.divisors)
        if self.kept is not None and full.size != self.kept.size:  # "drop": not in the result
            full = self._among_given(full)
        if self.given_order is not None:
            in_bags, full = full, np.empty_like(full)
            full[self.given_order] = in_bags
        return full if self.ids_shape is None else full.reshape(self.ids_shape)

    def _among_given(self, of_kept: NDArray[Any]) -> NDArray[Any]:
        """Return values of the kept ids with zeros for the others between them."""
        assert self.kept is not None, "all ids are kept"
        full = np.zeros(self.kept.size, of_kept.dtype)
        full[self.kept] = of_kept
        return full
