"""Which backend an engine gets: one by name with its options, or an object of the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardcore.backend import Backend
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.registry import get_backend
from shardcore.table_plan import PlannedTable

__all__ = ["chosen_backend"]


def chosen_backend(
    backend: str | Backend | None,
    options: Mapping[str, Any] | None,
    planned: Sequence[PlannedTable],
) -> Backend:
    """Return the backend of an engine.

    Parameters
    ----------
    backend : str, Backend or None
        None: the registry's default.
    options : mapping or None
        Of a backend given by name.
    planned : sequence of PlannedTable
        The tables it will be asked for.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or a table is quantized and the backend does not do that.
    UnknownPluginError, BrokenPluginError, UnavailableError
        If it is unknown, cannot be loaded, or cannot run here.

    Examples
    --------
    >>> chosen_backend("cpu", None, []).name
    'cpu'
    """
    made = _made(backend, options)
    for table in planned:
        if table.spec.quantization is not None and not made.quantizes:
            raise ShardcoreValueError(
                f"table {table.spec.name!r}: backend {made.name!r} does not quantize the rows it "
                "looks up"
            )
    return made


def _made(backend: str | Backend | None, options: Mapping[str, Any] | None) -> Backend:
    if options is not None and not isinstance(options, Mapping):
        raise ShardcoreTypeError(f"backend_options must be a mapping, got {options!r}")
    if isinstance(backend, Backend):
        if options:
            raise ShardcoreValueError(
                f"backend_options {dict(options)} are for a backend given by name, "
                f"got a backend {backend.name!r}"
            )
        return backend
    if backend is not None and not isinstance(backend, str):
        raise ShardcoreTypeError(f"backend must be a name or a Backend, got {backend!r}")
    for key in options or {}:
        if not isinstance(key, str):
            raise ShardcoreTypeError(f"backend_options must have strings as keys, got {key!r}")
        if key == "name":
            raise ShardcoreValueError("backend_options must not hold 'name': backend is the name")
    return get_backend(backend, **(options or {}))
