"""The epochs of the demo, with a progress bar and a checkpoint after each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from shardcore_demo.features import Bags, take_bags
from shardcore_demo.model import Model
from shardcore_demo.options import DemoOptions

__all__ = ["Examples", "History", "train"]


@dataclass(frozen=True)
class Examples:
    """Bags and the class of each.

    Parameters
    ----------
    bags : (values, row_splits)
    labels : ndarray of int64, shape (bags,)
    """

    bags: Bags
    labels: NDArray[np.int64]

    def take(self, chosen: NDArray[np.int64]) -> Examples:
        """Return the examples of the given numbers."""
        return Examples(take_bags(self.bags, chosen), self.labels[chosen])

    def split(self, share: float, seed: int) -> tuple[Examples, Examples]:
        """Return all but a random share of the examples, and this share, at least one."""
        order = np.random.default_rng(seed).permutation(self.labels.size)
        held_out = max(1, round(share * order.size))
        return self.take(order[held_out:]), self.take(order[:held_out])


@dataclass
class History:
    """The course of the training.

    Parameters
    ----------
    losses : list of float
        Mean cross-entropy of each step's batch, in nats.
    accuracies : list of float
        Share of held-out examples that were predicted right, after each epoch.
    checkpoint : pathlib.Path or None
        The newest step directory.
    """

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    checkpoint: Path | None = None


def train(
    model: Model,
    training: Examples,
    held_out: Examples,
    options: DemoOptions,
    root: Path,
    say: Callable[[str], None],
) -> History:
    """Train for all epochs; after each one save a checkpoint, which replaces the one before.

    Parameters
    ----------
    model : Model
    training, held_out : Examples
    options : DemoOptions
    root : pathlib.Path
        Directory of the checkpoints; a step is the number of batches trained so far.
    say : callable
        Called with a line per epoch.
    """
    history = History()
    order = np.random.default_rng(options.seed)
    ids = training.bags[0].size
    with tqdm(total=options.epochs * ids, unit=" ids", unit_scale=True, disable=None) as bar:
        for epoch in range(1, options.epochs + 1):
            bar.set_description(f"epoch {epoch} of {options.epochs}")
            shuffled = order.permutation(training.labels.size)
            start = time.perf_counter()
            losses = []
            for first in range(0, shuffled.size, options.batch_size):
                batch = training.take(shuffled[first : first + options.batch_size])
                losses.append(model.train(batch.bags, batch.labels))
                history.losses.append(losses[-1] / batch.labels.size)
                bar.set_postfix(loss=f"{history.losses[-1]:.3f}", refresh=False)
                bar.update(batch.bags[0].size)
            speed = ids / (time.perf_counter() - start)
            predictions = model.logits(held_out.bags).argmax(axis=1)
            history.accuracies.append(float(np.mean(predictions == held_out.labels)))
            say(
                f"epoch {epoch} of {options.epochs}: loss {sum(losses) / shuffled.size:.3f}, "
                f"held-out accuracy {history.accuracies[-1]:.3f}, {speed:,.0f} ids per second"
            )
            bar.set_description(f"saving epoch {epoch}")
            replaced = history.checkpoint
            history.checkpoint = model.save(root, len(history.losses))
            if replaced is not None:
                _remove(replaced)
    return history


def _remove(step: Path) -> None:
    # Under another name first, so that a step that is seen is a whole one.
    hidden = step.rename(step.with_name(f".old-{step.name}"))
    try:
        shutil.rmtree(hidden)
    except KeyboardInterrupt:
        shutil.rmtree(hidden)
        raise
