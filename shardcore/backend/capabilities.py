"""The capabilities of a backend, declared once: the tables and arrays it can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardcore.backend.messages import TableSpec
from shardcore.dtypes import TABLE_DTYPES
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

__all__ = ["EXCHANGES", "LAYOUTS", "PLACEMENTS", "Capabilities"]

PLACEMENTS: Final = ("row", "table", "column", "replicated")
EXCHANGES: Final = ("exact", "partial")
LAYOUTS: Final = ("div", "mod", "ranges")


@dataclass(frozen=True)
class Capabilities:
    """The tables that a backend can have, and the arrays it deals in.

    The base class refuses tables beyond them, the conformance suite tests all that they promise,
    and ``shardcore info`` shows them.

    Parameters
    ----------
    dtypes : tuple of str
        Of tables; float32 among them.
    placements, exchanges, layouts : tuple of str
        As in `TableConfig`, the layout "ranges" being a sequence of row counts. A backend of one
        host has all of them: they are the same there.
    quantization : bool
        Whether lookups round rows, as ``TableSpec.as_looked_up`` does.
    device_arrays : bool
        Whether activations may be arrays of the backend's own kind, and gradients too: see "Arrays
        on a device" in `shardcore.backend.base`.
    slot_dtypes : tuple of str, or None
        Of slots; None for any that NumPy has.
    max_norm : bool
        Whether lookups scale rows to a greatest norm, as ``TableSpec.as_looked_up`` does.

    Examples
    --------
    >>> Capabilities(dtypes=("float32",), placements=("row", "replicated"), quantization=False)
    Capabilities(dtypes=('float32',), placements=('row', 'replicated'), exchanges=('exact', \
'partial'), layouts=('div', 'mod', 'ranges'), quantization=False, device_arrays=False, \
slot_dtypes=None, max_norm=True)
    """

    dtypes: tuple[str, ...] = TABLE_DTYPES
    placements: tuple[str, ...] = PLACEMENTS
    exchanges: tuple[str, ...] = EXCHANGES
    layouts: tuple[str, ...] = LAYOUTS
    quantization: bool = True
    device_arrays: bool = False
    slot_dtypes: tuple[str, ...] | None = None
    max_norm: bool = True

    def check_table(self, spec: TableSpec, backend: str) -> None:
        """Raise unless a table is among those that can be had.

        Parameters
        ----------
        spec : TableSpec
        backend : str
            The backend's name, for messages.

        Raises
        ------
        ShardcoreTypeError
            If the table or a slot has another dtype.
        ShardcoreValueError
            If it has another placement, exchange or layout, a quantization or a norm.
        """
        table, where = f"table {spec.name!r}", f"on backend {backend!r}"
        stored = [(table, spec.dtype, self.dtypes)]
        if self.slot_dtypes is not None:
            stored += [
                (f"slot {one.name!r} of {table}", one.storage_dtype(spec.dtype), self.slot_dtypes)
                for one in spec.slots
            ]
        for what, dtype, known in stored:
            if dtype.name not in known:
                raise ShardcoreTypeError(
                    f"{what} must have dtype {_one_of(known, str)} {where}, got {dtype.name}"
                )
        layout = spec.layout if isinstance(spec.layout, str) else "ranges"
        for field, value, kind, allowed in (
            ("placement", spec.placement, spec.placement, self.placements),
            ("exchange", spec.exchange, spec.exchange, self.exchanges),
            ("layout", spec.layout, layout, self.layouts),
        ):
            if kind not in allowed:
                raise ShardcoreValueError(
                    f"{table} must have {field} {_one_of(allowed, repr)} {where}, got {value!r}"
                )
        if spec.quantization is not None and not self.quantization:
            raise ShardcoreValueError(
                f"{table} must have quantization None {where}, got {spec.quantization!r}"
            )
        if spec.max_norm is not None and not self.max_norm:
            raise ShardcoreValueError(
                f"{table} must have max_norm None {where}, got {spec.max_norm!r}"
            )

    def described(self) -> str:
        """Return them in one line.

        Examples
        --------
        >>> Capabilities(dtypes=("float32",), exchanges=("exact",)).described()
        'float32; placement row, table, column, replicated; exchange exact; layout div, mod, \
ranges; quantization; max_norm'
        """
        parts = [
            ", ".join(self.dtypes),
            f"placement {', '.join(self.placements)}",
            f"exchange {', '.join(self.exchanges)}",
            f"layout {', '.join(self.layouts)}",
        ]
        parts += ["quantization"] * self.quantization + ["max_norm"] * self.max_norm
        parts += ["device arrays"] * self.device_arrays
        return "; ".join(parts)


def _one_of(values: Sequence[str], shown: Any) -> str:
    *most, last = [shown(value) for value in values]
    return f"{', '.join(most)} or {last}" if most else last
