"""The compiled programs of this process, made once per signature, and how many a backend asked for.

A program's signature is what it was traced for: the mesh, where the table's rows lie, and the
capacity classes of the batch. Tables that are alike share programs, and so do engines.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final

import jax

__all__ = ["LARGEST", "Programs"]

LARGEST: Final = 1024
"""Programs kept; those not used for longest are forgotten first, and would be compiled again."""

_kept: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()
_lock = threading.Lock()


class Programs:
    """The programs that one backend has asked for.

    Attributes
    ----------
    distinct : int
        Signatures it has used: what it would have compiled had it been alone.
    """

    def __init__(self) -> None:
        self._used: set[Hashable] = set()
        self._traced: set[Hashable] = set()

    @property
    def distinct(self) -> int:
        """Signatures used since the backend was made."""
        return len(self._used)

    def get(self, make: Callable[..., Callable[..., Any]], *signature: Any) -> Callable[..., Any]:
        """Return ``make(*signature)``, from this process's memory where it was made before."""
        key = (make, *signature)
        self._used.add(key)
        with _lock:
            program = _kept.get(key)
            if program is None:
                program = _kept[key] = make(*signature)
                while len(_kept) > LARGEST:
                    _kept.popitem(last=False)
            else:
                _kept.move_to_end(key)
        return program

    def trace(self, program: Any, arguments: tuple[Any, ...]) -> None:
        """Trace a program for such arguments, once: errors of its functions are raised here.

        Nothing runs, and the call that follows does not trace it again.
        """
        key = (program, tuple(array.dtype for array in jax.tree.leaves(arguments)))
        if key not in self._traced:
            program.trace(*arguments)
            self._traced.add(key)
