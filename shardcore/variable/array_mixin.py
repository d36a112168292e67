"""Everything a sharded variable answers as the one array it stands for: operators and reductions.

NumPy gives the answers, on a copy of all rows put together. Operators return plain arrays; only
in-place ones and ``out=`` change the variable, after the whole answer is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from shardcore.errors import ShardcoreValueError

__all__ = ["WholeArrayMethods"]


class WholeArrayMethods(NDArrayOperatorsMixin, ABC):
    """NumPy's operators, ufuncs and reductions for a class that can read and overwrite itself."""

    @abstractmethod
    def numpy(self) -> NDArray[Any]:
        """Return a fresh array of all rows."""

    @abstractmethod
    def _check_writable(self) -> None:
        """Raise if the whole cannot be overwritten."""

    @abstractmethod
    def _overwrite(self, values: NDArray[Any]) -> None:
        """Replace everything by `values`, of the same shape and dtype."""

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ShardcoreValueError(
                "copy=False is not possible: a sharded variable is read as one array by copying"
            )
        whole = self.numpy()
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        copies: dict[int, NDArray[Any]] = {}

        def plain(x: Any) -> Any:
            if not isinstance(x, WholeArrayMethods):
                return x
            if id(x) not in copies:  # an input that is also written is one array, not two
                copies[id(x)] = x.numpy()
            return copies[id(x)]

        outs = tuple(kwargs.get("out") or ())
        changed = inputs[:1] if method == "at" else outs
        targets = [x for x in changed if isinstance(x, WholeArrayMethods)]
        for target in targets:
            target._check_writable()
        if outs:
            kwargs["out"] = tuple(map(plain, outs))
        if "where" in kwargs:
            kwargs["where"] = plain(kwargs["where"])
        answer = getattr(ufunc, method)(*map(plain, inputs), **kwargs)
        for target in targets:
            target._overwrite(copies[id(target)])
        if not outs:
            return answer
        answers = answer if isinstance(answer, tuple) else (answer,)
        given = tuple(
            out if isinstance(out, WholeArrayMethods) else got
            for out, got in zip(outs, answers, strict=True)
        )
        return given if isinstance(answer, tuple) else given[0]

    def __bool__(self) -> bool:
        whole = self.numpy()
        if whole.size != 1:
            raise ShardcoreValueError(
                f"the truth value of a variable of {whole.size} elements is ambiguous: "
                "use any() or all()"
            )
        return bool(whole.item())

    def __contains__(self, value: object) -> bool:
        return bool(np.any(self.numpy() == value))

    @property
    def T(self) -> NDArray[Any]:  # noqa: N802  # NumPy's name
        """The transpose, as a fresh array."""
        return self.numpy().T

    def astype(self, dtype: DTypeLike, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Return a fresh array of another dtype; arguments as ``ndarray.astype``."""
        return self.numpy().astype(dtype, *args, **kwargs)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self.numpy().tolist()

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray[Any]:
        """Return a fresh array of another shape; arguments as ``ndarray.reshape``."""
        return self.numpy().reshape(*shape, **kwargs)

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        """Return the sum; arguments as ``ndarray.sum``."""
        return self.numpy().sum(*args, **kwargs)

    def prod(self, *args: Any, **kwargs: Any) -> Any:
        """Return the product; arguments as ``ndarray.prod``."""
        return self.numpy().prod(*args, **kwargs)

    def mean(self, *args: Any, **kwargs: Any) -> Any:
        """Return the mean; arguments as ``ndarray.mean``."""
        return self.numpy().mean(*args, **kwargs)

    def std(self, *args: Any, **kwargs: Any) -> Any:
        """Return the standard deviation; arguments as ``ndarray.std``."""
        return self.numpy().std(*args, **kwargs)

    def var(self, *args: Any, **kwargs: Any) -> Any:
        """Return the variance; arguments as ``ndarray.var``."""
        return self.numpy().var(*args, **kwargs)

    def min(self, *args: Any, **kwargs: Any) -> Any:
        """Return the least element; arguments as ``ndarray.min``."""
        return self.numpy().min(*args, **kwargs)

    def max(self, *args: Any, **kwargs: Any) -> Any:
        """Return the greatest element; arguments as ``ndarray.max``."""
        return self.numpy().max(*args, **kwargs)

    def argmin(self, *args: Any, **kwargs: Any) -> Any:
        """Return the place of the least element; arguments as ``ndarray.argmin``."""
        return self.numpy().argmin(*args, **kwargs)

    def argmax(self, *args: Any, **kwargs: Any) -> Any:
        """Return the place of the greatest element; arguments as ``ndarray.argmax``."""
        return self.numpy().argmax(*args, **kwargs)

    def any(self, *args: Any, **kwargs: Any) -> Any:
        """Return whether any element is true; arguments as ``ndarray.any``."""
        return self.numpy().any(*args, **kwargs)

    def all(self, *args: Any, **kwargs: Any) -> Any:
        """Return whether all elements are true; arguments as ``ndarray.all``."""
        return self.numpy().all(*args, **kwargs)
