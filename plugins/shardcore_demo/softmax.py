"""The dense layer behind the embedding: a linear softmax classifier in NumPy, with Adagrad."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["SoftmaxLayer"]

_ACCUMULATOR: Final = 0.1


class SoftmaxLayer:
    """Logits of the classes, ``activations @ weight.T + bias``.

    Parameters
    ----------
    classes, dim : int
    seed : int

    Attributes
    ----------
    arrays : dict of str to ndarray of float32
        ``weight`` (classes, dim), ``bias`` (classes,) and the accumulator of each, updated in
        place; a checkpoint saves and restores them.
    """

    def __init__(self, classes: int, dim: int, seed: int) -> None:
        # The table starts at zero, so at first only these directions separate the classes.
        weight = np.random.default_rng(seed).normal(0, 2, (classes, dim)).astype(np.float32)
        bias = np.zeros(classes, np.float32)
        self.arrays = {
            "weight": weight,
            "bias": bias,
            "weight_accumulator": np.full_like(weight, _ACCUMULATOR),
            "bias_accumulator": np.full_like(bias, _ACCUMULATOR),
        }

    def logits(self, activations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits, shape (bags, classes), of activations of shape (bags, dim)."""
        logits: NDArray[np.float32] = activations @ self.arrays["weight"].T + self.arrays["bias"]
        return logits

    def train(
        self, activations: NDArray[np.float32], labels: NDArray[np.int64], learning_rate: float
    ) -> tuple[float, NDArray[np.float32]]:
        """Make one Adagrad step on the sum of the bags' cross-entropies.

        Parameters
        ----------
        activations : ndarray of float32, shape (bags, dim)
        labels : ndarray of int64, shape (bags,)
        learning_rate : float

        Returns
        -------
        loss : float
            The sum of the cross-entropies, in nats, before the step.
        gradient : ndarray of float32, shape (bags, dim)
            Its gradient with respect to the activations.
        """
        logits = self.logits(activations)
        logits -= logits.max(axis=1, keepdims=True)
        exponentials = np.exp(logits)
        sums = exponentials.sum(axis=1, keepdims=True)
        rows = np.arange(labels.size)
        loss = float((np.log(sums[:, 0]) - logits[rows, labels]).sum(dtype=np.float64))
        errors = exponentials / sums
        errors[rows, labels] -= 1
        gradient = errors @ self.arrays["weight"]
        for name, slope in (("weight", errors.T @ activations), ("bias", errors.sum(axis=0))):
            accumulator = self.arrays[f"{name}_accumulator"]
            accumulator += slope * slope
            self.arrays[name] -= np.float32(learning_rate) * slope / np.sqrt(accumulator)
        return loss, gradient
