from collections.abc import Callable
from typing import Any

from shardcore.engine.inputs import Inputs
from shardcore.engine.life import Life

__all__ = ["GivenLookups"]

class GivenLookups:
    built: bool
    def __init__(
        self,
        inputs: Inputs,
        life: Life,
        look_up: Callable[..., bool],
        settle: Callable[[], None] | None,
        count: Callable[[int, int], None],
    ) -> None: ...
    def look_up(self, features: Any, weights: Any) -> Any: ...
