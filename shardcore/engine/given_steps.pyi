from typing import Any

from numpy.typing import NDArray

from shardcore.backend.messages import TableBatch
from shardcore.engine.inputs import Inputs
from shardcore.engine.tables import PlannedTable
from shardcore.features.prepared import PreparedFeature
from shardcore.store.steps import StoreSteps
from shardcore.threads.work import InTurn

__all__ = ["GivenBatch", "GivenSteps"]

class GivenBatch:
    @property
    def prepared(self) -> list[PreparedFeature]: ...
    @property
    def tables(self) -> list[TableBatch]: ...
    @property
    def winners(self) -> dict[int, NDArray[Any]]: ...
    @property
    def ids(self) -> int: ...
    def activations(self) -> list[NDArray[Any]]: ...
    def stage(self, gradients: Any, step: int) -> InTurn | None: ...

class GivenSteps:
    def __init__(
        self,
        inputs: Inputs,
        tables: list[PlannedTable],
        steps: StoreSteps,
        check: bool,
        as_they_are: int,
    ) -> None: ...
    def look_up(self, features: Any) -> GivenBatch | None: ...
