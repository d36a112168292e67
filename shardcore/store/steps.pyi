from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from shardcore.optimizer.base import Optimizer
from shardcore.store.occurrences import Occurrences
from shardcore.store.table import StoreTable
from shardcore.threads.work import InTurn

__all__ = ["StoreStep", "StoreSteps"]

class StoreStep:
    copies: list[tuple[NDArray[Any], NDArray[Any] | None]]
    activations: list[NDArray[Any]]
    shapes: list[tuple[int, int]]
    occurrences: list[Occurrences]
    ids: int

class StoreSteps:
    def __init__(
        self,
        tables: Sequence[StoreTable],
        optimizers: Sequence[Optimizer],
        features: Sequence[tuple[int, ...]],
        divided: Sequence[int],
        narrow: bool,
        count: Callable[[int], None],
    ) -> None: ...
    def look_up(self, bags: list[tuple[Any, Any, bool]]) -> StoreStep | None: ...
    def stage(
        self,
        batch: StoreStep,
        gradients: list[NDArray[Any]],
        hyper: list[tuple[float, ...]],
        seeds: Callable[[int], int],
        step: int,
    ) -> InTurn: ...
