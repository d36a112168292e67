"""Times of contenders on JAX devices that take turns, a few steps in each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Contender", "seconds_per_step"]


class Contender(NamedTuple):
    """What takes steps on devices, and how many in a turn."""

    run: Callable[[int], object]
    """Start the step of a number, counted from 0 in each turn."""
    wait: Callable[[], None]
    """Return when the devices are done."""
    steps: int


def seconds_per_step(contenders: Sequence[Contender], rounds: int) -> NDArray[np.float64]:
    """Return the seconds of a step, (contenders, rounds); every other round goes backwards."""
    seconds = np.empty((len(contenders), rounds))
    order = range(len(contenders))
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for at in order if number % 2 == 0 else reversed(order):
                seconds[at, number] = _turn(contenders[at])
    finally:
        gc.enable()
    return seconds


def _turn(contender: Contender) -> float:
    contender.wait()
    start = perf_counter()
    for number in range(contender.steps):
        contender.run(number)
    contender.wait()
    return (perf_counter() - start) / contender.steps
