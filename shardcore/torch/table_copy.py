"""The rows of a table as a tensor that says so, where code would change them in place."""

from __future__ import annotations

from typing import Any

import torch

from shardcore.errors import ShardcoreRuntimeError

__all__ = ["TableCopy", "table_copy"]


class TableCopy(torch.Tensor):
    """A copy of a table. What would change it in place, and not the table, is refused.

    What is computed from it is a plain tensor; a view of it is refused as it is itself.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make a call with plain tensors; raise for one that writes to the first."""
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], cls) and _writes(name):
            raise ShardcoreRuntimeError(
                f"weight is a copy of the table, which {name} would not change: assign "
                "module.weight = tensor for all rows, or module.engine.tables[name][rows] = values"
            )
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and isinstance(args[0] if args else None, cls):
            source = args[0]
            with torch._C.DisableTorchFunctionSubclass():
                shared = (
                    found.layout == torch.strided
                    and found.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
                )
                return found.as_subclass(cls if shared else torch.Tensor)
        return found


def _writes(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"


def table_copy(rows: Any) -> Any:
    """Return a tensor of rows that nobody else has, as a `TableCopy`.

    Examples
    --------
    >>> copy = table_copy(torch.ones(2, 2))
    >>> copy + 1
    tensor([[2., 2.],
            [2., 2.]])
    """
    return rows.as_subclass(TableCopy)
