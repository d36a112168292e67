"""`functools.cached_property` without a lock.

That of Python 3.11 holds one lock for the instances of all threads while a value is computed, and
keeps it where an exception comes at the wrong bytecode, as a trace function can raise it: every
other thread that asks for a value then waits for ever. From 3.12 on it is as this one: two threads
may compute a value twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801  the name of what it stands for
        """A property that is computed once and kept in the instance.

        Examples
        --------
        >>> class Table:
        ...     @cached_property
        ...     def rows(self):
        ...         print("counting")
        ...         return 3
        >>> table = Table()
        >>> table.rows, table.rows
        counting
        (3, 3)
        """

        def __init__(self, function: Any) -> None:
            self._function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            """Take the name under which values are kept."""
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute the value: asked for only as long as the instance has none."""
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._function(instance)
            return value
