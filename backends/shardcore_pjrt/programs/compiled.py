"""The compiled programs of this process, made once per signature, and how many a backend asked for.

A program's signature is what it was traced for: the mesh, where the table's rows lie, and the
capacity classes of the batch. Tables that are alike share programs, and so do engines.

Programs are kept up to a number of bytes, and up to a number of them. A program's bytes are those
of its code, as the platform tells (`generated_code_size_in_bytes`); where it tells 0, as on CPU
devices, those of its HLO as a text. The arrays that a program works on are not among them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final

import jax

from shardcore_pjrt.programs import in_flight

__all__ = ["LARGEST", "MOST", "Program", "Programs"]

LARGEST: Final = 1 << 29
"""Bytes of programs kept; those not used for longest are forgotten first, and compiled again."""
MOST: Final = 1024
"""Programs kept, however small: on a CPU each takes maps of memory, of which a process of Linux has
65,530, and XLA ends the process where there are no more."""


class Program:
    """A program that is compiled when it is called, once per dtypes and sizes of its arguments.

    Attributes
    ----------
    nbytes : int
        Of all that was compiled of it so far.
    """

    __slots__ = ("_compiled", "_program", "_traced", "nbytes")

    def __init__(self, program: Any) -> None:
        self._program = program
        self._compiled = 0
        self._traced: set[Hashable] = set()
        self.nbytes = 0

    def __call__(self, *arguments: Any) -> Any:
        """Run the program; count the bytes of what was compiled for that."""
        in_flight.make_room()
        result = self._program(*arguments)
        in_flight.started(arguments, result)
        if self._program._cache_size() != self._compiled:
            self._compiled = self._program._cache_size()
            # Of arguments that were given up there still are the shapes; nothing compiles again.
            self.nbytes += code_bytes(self._program.lower(*arguments).compile())
            _forget()
        return result

    def trace(self, arguments: tuple[Any, ...]) -> None:
        """Trace the program for such arguments, once: errors of its functions are raised here.

        Nothing runs, and the call that follows does not trace it again.
        """
        key = tuple(array.dtype for array in jax.tree.leaves(arguments))
        if key not in self._traced:
            self._program.trace(*arguments)
            self._traced.add(key)


_kept: OrderedDict[Hashable, Program] = OrderedDict()
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

    @property
    def distinct(self) -> int:
        """Signatures used since the backend was made."""
        return len(self._used)

    def get(self, make: Callable[..., Callable[..., Any]], *signature: Any) -> Program:
        """Return ``make(*signature)``, from this process's memory where it was made before."""
        key = (make, *signature)
        self._used.add(key)
        with _lock:
            program = _kept.get(key)
            if program is None:
                program = _kept[key] = Program(make(*signature))
            else:
                _kept.move_to_end(key)
        return program


def code_bytes(compiled: Any) -> int:
    """Return the bytes of a compiled program's code, or of its HLO where the platform tells 0."""
    code = int(compiled.memory_analysis().generated_code_size_in_bytes)
    return code or len(compiled.as_text())  # executables with a sort cannot be serialized on a CPU


def _forget() -> None:
    """Forget programs until those left are few enough; the last one used stays."""
    with _lock:
        held = sum(program.nbytes for program in _kept.values())
        while len(_kept) > 1 and (held > LARGEST or len(_kept) > MOST):
            held -= _kept.popitem(last=False)[1].nbytes
