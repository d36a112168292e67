"""The picture of what was learned: a map of the modules, and the curves of the training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from shardcore.errors import ShardcoreOSError
from shardcore_demo.training import History

__all__ = ["draw"]


def draw(
    path: Path,
    modules: tuple[str, ...],
    sizes: NDArray[np.int64],
    places: NDArray[np.float64],
    history: History,
) -> None:
    """Write the picture as a PNG file.

    Parameters
    ----------
    path : pathlib.Path
    modules : tuple of str
    sizes : ndarray of int64, shape (modules,)
        Functions of each module.
    places : ndarray of float64, shape (modules, 2)
    history : History

    Raises
    ------
    ShardcoreOSError
        If it cannot be written.
    """
    figure = Figure(figsize=(14, 7), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    chart, curve = figure.subplots(1, 2, width_ratios=(2, 1))
    chart.scatter(*places.T, s=sizes / 4, alpha=0.35)
    for module, (x, y) in zip(modules, places, strict=True):
        chart.annotate(module, (x, y), fontsize=7, ha="center", va="center")
    chart.set(title="modules (area: functions)", xticks=[], yticks=[])
    chart.set(xlabel="first principal component", ylabel="second principal component")

    steps = np.arange(1, len(history.losses) + 1)
    curve.plot(steps, history.losses, linewidth=0.8, label="training loss")
    curve.set(title="training", xlabel="step", ylabel="loss (nats)", ylim=(0, None))
    epochs = np.linspace(0, steps[-1], len(history.accuracies) + 1)[1:]
    accuracy = curve.twinx()
    accuracy.plot(epochs, history.accuracies, "o-", color="C1", label="held-out accuracy")
    accuracy.set(ylabel="held-out accuracy", ylim=(0, 1))
    figure.legend(loc="outside lower right", ncols=2)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ShardcoreOSError(f"picture {path} cannot be written: {error}") from error
