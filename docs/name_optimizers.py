"""Write ``shardcore/optimizers.pyi``: the first-party optimizers by name, for type checkers.

At run time `shardcore.optimizers` asks the plugins for a name when it is used, which no editor and
no type checker can follow. The stub names the classes where they are defined, so that their
signatures and texts are seen there too. Run it after an optimizer was added::

    python docs/name_optimizers.py
"""

from __future__ import annotations

from pathlib import Path

STUB = Path(__file__).parent.parent / "shardcore" / "optimizers.pyi"

HEAD = '''\
"""The optimizers that come with shardcore, by name; written by ``docs/name_optimizers.py``.

Those of other plugins are found at run time, and are `Any` here.
"""

from typing import Any

'''

TAIL = """

from shardcore.errors import UnknownPluginError

class UnknownOptimizerError(UnknownPluginError, AttributeError): ...

def __getattr__(name: str) -> Any: ...
"""


def first_party() -> dict[str, type]:
    """Return the optimizers of the package `shardcore_optimizers` by name, module by module."""
    from shardcore_optimizers import shardcore_optimizers

    found = {spec.name: spec.factory for spec in shardcore_optimizers()}
    return dict(sorted(found.items(), key=lambda one: (one[1].__module__, one[0])))


def stub() -> str:
    """Return the text of the stub."""
    found = first_party().items()
    lines = [f"from {factory.__module__} import {name} as {name}" for name, factory in found]
    return HEAD + "\n".join(lines) + TAIL


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
