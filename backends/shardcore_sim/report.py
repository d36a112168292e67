"""Counts of a simulated cluster: traffic per link and per table, work and memory per host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore_sim.faults import Fault

__all__ = ["SimReport", "TableReport", "imbalance"]


def imbalance(values: NDArray[Any]) -> float:
    """Return the largest value over the mean; 1 where all are zero.

    Examples
    --------
    >>> imbalance(np.array([1, 1, 4]))
    2.0
    """
    mean = float(values.mean())
    return float(values.max()) / mean if mean else 1.0


@dataclass(frozen=True, eq=False)
class TableReport:
    """One table's share.

    Attributes
    ----------
    placement, exchange : str
    messages, bytes : int
        Sent on its behalf.
    rows_served, rows_updated : ndarray of int64, shape (hosts,)
        Rows that each host read for lookups, and that it updated.
    host_bytes : ndarray of int64, shape (hosts,)
        Tables and slots on each host.
    """

    placement: str
    exchange: str
    messages: int
    bytes: int
    rows_served: NDArray[np.int64]
    rows_updated: NDArray[np.int64]
    host_bytes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SimReport:
    """All counts since the backend was made; ``print`` shows them as text.

    Attributes
    ----------
    hosts, calls : int
    seconds : float
        The simulated clock.
    messages, bytes : ndarray of int64, shape (hosts, hosts)
        From host i to host j.
    tables : dict of str -> TableReport
        The tables that exist.
    events : dict of str -> int
        Messages ``lost``, ``retried``, ``late``, ``discarded``.
    faults_pending : tuple of fault records
        Faults of the script that have not happened.
    broken : str or None
        Why the cluster is broken, until a restore.
    """

    hosts: int
    calls: int
    seconds: float
    messages: NDArray[np.int64]
    bytes: NDArray[np.int64]
    tables: dict[str, TableReport]
    events: dict[str, int]
    faults_pending: tuple[Fault, ...]
    broken: str | None

    @property
    def host_bytes(self) -> NDArray[np.int64]:
        """Bytes of all tables and slots on each host."""
        return self._sum("host_bytes")

    @property
    def host_rows(self) -> NDArray[np.int64]:
        """Rows that each host read for lookups or updated."""
        return self._sum("rows_served") + self._sum("rows_updated")

    @property
    def hot_hosts(self) -> list[int]:
        """The hosts, the busiest first, by `host_rows`."""
        return [int(host) for host in np.argsort(-self.host_rows, kind="stable")]

    def _sum(self, name: str) -> NDArray[np.int64]:
        total = np.zeros(self.hosts, np.int64)
        for table in self.tables.values():
            total += getattr(table, name)
        return total

    def __str__(self) -> str:
        lines = [
            f"{self.hosts} hosts, {self.calls} calls, {self.seconds:.6f} simulated seconds, "
            f"{int(self.messages.sum())} messages, {int(self.bytes.sum())} bytes",
            f"rows per host: most {int(self.host_rows.max())} (host {self.hot_hosts[0]}), "
            f"{imbalance(self.host_rows):.2f} of the mean",
            f"memory per host: most {int(self.host_bytes.max())} bytes, "
            f"{imbalance(self.host_bytes):.2f} of the mean",
        ]
        lines += [
            f"table {name!r} ({table.placement}, {table.exchange}): {table.messages} messages, "
            f"{table.bytes} bytes, {int(table.rows_served.sum())} rows read, "
            f"{int(table.rows_updated.sum())} updated"
            for name, table in self.tables.items()
        ]
        if any(self.events.values()):
            shown = ", ".join(f"{count} {event}" for event, count in self.events.items())
            lines.append(f"messages {shown}")
        if self.broken:
            lines.append(f"broken: {self.broken}")
        return "\n".join(lines)
