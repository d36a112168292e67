"""A function that `torch.compile` leaves out of its graphs, and calls as it is.

What an engine does cannot be traced: it works on NumPy's arrays, and keeps what it did. torch's own
`torch.compiler.disable` imports the compiler, which takes seconds; where nothing is compiled, the
compiler has not been imported, and is not needed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["outside_of_graphs"]

Function = TypeVar("Function", bound=Callable[..., Any])


def outside_of_graphs(function: Function) -> Function:
    """Return a function that is never compiled, nor what it calls.

    Examples
    --------
    >>> outside_of_graphs(abs)(-1)
    1
    """
    outside: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal outside
        if outside is None:
            if "torch._dynamo" not in sys.modules:
                return function(*arguments, **named)
            outside = torch.compiler.disable(function)
        return outside(*arguments, **named)

    return cast(Function, call)
