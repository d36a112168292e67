"""The demo's results for modules: a vector for each, its neighbours, its place on a map."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["map_of", "module_vectors", "nearest"]


def module_vectors(
    activations: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return a unit vector per module: where its functions lie, seen from the centre of all.

    Parameters
    ----------
    activations : ndarray of float32, shape (functions, dim)
    labels : ndarray of int64, shape (functions,)
        Every module has at least one function.

    Returns
    -------
    ndarray of float64, shape (modules, dim)

    Examples
    --------
    >>> module_vectors(np.array([[0, 3], [0, 5], [0, 0]], np.float32), np.array([0, 0, 1]))
    array([[ 0.,  1.],
           [ 0., -1.]])
    """
    counts = np.bincount(labels)
    sums = np.zeros((counts.size, activations.shape[1]))
    np.add.at(sums, labels, activations)
    means = sums / counts[:, None]
    centred = means - means.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    vectors: NDArray[np.float64] = centred / np.where(lengths == 0, 1, lengths)
    return vectors


def nearest(vectors: NDArray[np.float64], module: int, count: int) -> list[tuple[int, float]]:
    """Return the `count` modules of greatest cosine with one, the nearest first.

    Examples
    --------
    >>> nearest(np.array([[1, 0], [0, 1], [0.6, 0.8]]), module=0, count=2)
    [(2, 0.6), (1, 0.0)]
    """
    cosines = vectors @ vectors[module]
    order = [int(other) for other in np.argsort(-cosines, kind="stable") if other != module]
    return [(other, float(cosines[other])) for other in order[:count]]


def map_of(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the first two principal components of each vector, shape (modules, 2).

    Of the two possible signs of a component, the one that makes its largest value positive.

    Examples
    --------
    >>> map_of(np.array([[0.0, 3.0], [0.0, -1.0], [0.0, -2.0]])).round(6) + 0.0
    array([[ 3.,  0.],
           [-1.,  0.],
           [-2.,  0.]])
    """
    centred = vectors - vectors.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((vectors.shape[0], 2))
    known = min(2, sizes.size)
    places[:, :known] = left[:, :known] * sizes[:known]
    signs = np.sign(places[np.abs(places).argmax(axis=0), [0, 1]])
    oriented: NDArray[np.float64] = places * np.where(signs == 0, 1, signs)
    return oriented
