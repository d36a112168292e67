"""The dense layer against numerical gradients and the formula of Adagrad."""

from __future__ import annotations

import numpy as np
from shardcore_demo.softmax import SoftmaxLayer


def loss_of(layer: SoftmaxLayer, activations: np.ndarray, labels: np.ndarray) -> float:
    logits = activations.astype(np.float64) @ layer.arrays["weight"].T + layer.arrays["bias"]
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(labels.size), labels]).sum())


def test_loss_and_gradients_and_update():
    random = np.random.default_rng(3)
    activations = random.normal(size=(5, 4)).astype(np.float32)
    labels = np.array([0, 2, 1, 2, 0])
    layer = SoftmaxLayer(classes=3, dim=4, seed=1)
    before = {name: array.astype(np.float64) for name, array in layer.arrays.items()}
    expected = loss_of(layer, activations, labels)

    def slopes(array: np.ndarray, step: float) -> np.ndarray:
        found = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + step
            up = loss_of(layer, activations, labels)
            array[index] = kept - step
            found[index] = (up - loss_of(layer, activations, labels)) / (2 * step)
            array[index] = kept
        return found

    numerical = {name: slopes(layer.arrays[name], 2.0**-10) for name in ("weight", "bias")}
    towards = slopes(activations, 2.0**-10)
    loss, gradient = layer.train(activations, labels, learning_rate=0.5)
    assert abs(loss - expected) < 1e-4
    np.testing.assert_allclose(gradient, towards, atol=5e-3)
    for name, slope in numerical.items():
        accumulator = before[f"{name}_accumulator"] + slope**2
        np.testing.assert_allclose(layer.arrays[f"{name}_accumulator"], accumulator, atol=2e-2)
        np.testing.assert_allclose(
            layer.arrays[name], before[name] - 0.5 * slope / np.sqrt(accumulator), atol=1e-2
        )


def test_training_changes_the_arrays_in_place():
    layer = SoftmaxLayer(classes=2, dim=2, seed=0)
    held = dict(layer.arrays)
    layer.train(np.ones((1, 2), np.float32), np.array([1]), learning_rate=0.5)
    for name, array in layer.arrays.items():
        assert array is held[name]
        assert array.dtype == np.float32
