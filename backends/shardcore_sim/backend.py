"""N hosts in one process, a store each; all that crosses between them is a counted message.

Lookup: every host asks every owner for the distinct rows its bags name, once for all features of a
table, and combines what comes back. Update: every host sends each bag's gradient once to every
owner the bag names; the owner sums them in the global order and updates its rows. The results are
those of a single host, to the last bit.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import Backend, TableBatch, TableSpec, TableUpdate
from shardcore.batch import joined_gains, scaled
from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.initializers import Zeros
from shardcore.layout import Layout
from shardcore.shapes import as_count
from shardcore.store.occurrences import Occurrences, sort_occurrences
from shardcore.store.segment_reduce import reduce_bags, row_dots
from shardcore.store.table import StoreTable
from shardcore_sim.exchange import Exchange
from shardcore_sim.route import Occurring, Share, occurring, shares

__all__ = ["SimBackend"]


@dataclass(eq=False)
class Route:
    """How one table's batch was cut by host, and what its update will need.

    `found[feature][host][owner]`; `rows[host]` are the rows the host received, `places[feature]
    [host]` where in them each of its ids stands. `merged[owner]` is ready where training is.
    """

    shares: list[list[Share]]
    found: list[list[list[Occurring]]]
    rows: list[NDArray[Any]]
    places: list[list[NDArray[np.int64]]]
    merged: list[Occurrences] | None = None


class SimBackend(Backend):
    """Simulated hosts.

    Parameters
    ----------
    hosts : int, >= 1

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If `hosts` is not such an integer.

    Examples
    --------
    >>> import shardcore as sc
    >>> sc.get_backend("sim", hosts=3).num_hosts
    3
    """

    name = "sim"

    def __init__(self, hosts: int = 2) -> None:
        super().__init__()
        self._hosts = as_count(hosts, "hosts")
        self._exchange = Exchange(self._hosts)
        self._tables: dict[str, list[StoreTable]] = {}
        self._layouts: dict[str, Layout] = {}
        self._rows_requested = 0
        self._counting = threading.Lock()  # lookups come from any thread

    @property
    def num_hosts(self) -> int:
        """How many hosts are simulated."""
        return self._hosts

    @property
    def exchange(self) -> Exchange:
        """The links between the hosts, with their counters."""
        return self._exchange

    def layout(self, table: str) -> Layout:
        """Return which host, as a shard, holds which row."""
        return self._layouts[table]

    def create_table(self, spec: TableSpec) -> None:
        """Create each host's rows and slots in a store of its own."""
        if spec.placement != "row":
            raise ShardcoreValueError(
                f"table {spec.name!r}: backend 'sim' places tables by row, "
                f"got placement {spec.placement!r}"
            )
        if spec.exchange != "exact":
            raise ShardcoreValueError(
                f"table {spec.name!r}: backend 'sim' exchanges rows exactly, "
                f"got exchange {spec.exchange!r}"
            )
        self.specs[spec.name] = spec
        layout = super().layout(spec.name)
        stores = []
        try:
            for host in range(self._hosts):
                size = int(layout.shard_sizes[host])
                store = StoreTable(size, spec.dim, spec.dtype, spec.optimizer)
                if not isinstance(spec.initializer, Zeros):  # a page not touched costs nothing
                    store.initialise(spec.initializer, layout.row_range(host), spec.seed)
                stores.append(store)
        except BaseException:
            del self.specs[spec.name]
            raise
        self._layouts[spec.name] = layout
        self._tables[spec.name] = stores

    def drop_table(self, table: str) -> None:
        """Forget a table on every host."""
        for tables in (self._tables, self._layouts, self.specs):
            del tables[table]

    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order."""
        local, row_splits, inverse = self._layouts[table].partition(rows)
        parts = [
            store.gather(slot, local[row_splits[host] : row_splits[host + 1]])
            for host, store in enumerate(self._tables[table])
        ]
        gathered: NDArray[Any] = np.concatenate(parts)[inverse]
        return gathered

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows."""
        local, row_splits, inverse = self._layouts[table].partition(rows)
        grouped = np.empty_like(values)
        grouped[inverse] = values
        for host, store in enumerate(self._tables[table]):
            part = slice(row_splits[host], row_splits[host + 1])
            store.scatter(slot, local[part], grouped[part])

    # --- lookup ----------------------------------------------------------------------------------

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[NDArray[Any]]]:
        """Send every host the rows its bags name, and combine them there."""
        return [self._lookup_table(batch) for batch in batches]

    def _lookup_table(self, batch: TableBatch) -> list[NDArray[Any]]:
        route = batch.route = self._route(batch)
        if batch.training:
            route.merged = self._merge(batch, (True,) * len(batch.features))
        dim = self.specs[batch.table].dim
        value = working_dtype(self.specs[batch.table].dtype)
        activations = []
        for feature, bags in enumerate(batch.features):
            out = np.empty((bags.num_bags, dim), value)
            for host, share in enumerate(route.shares[feature]):
                splits = _own_splits(bags.row_splits, share)
                reduce_bags(
                    route.rows[host],
                    route.places[feature][host],
                    splits,
                    None if bags.weights is None else bags.weights[share.ids],
                    None if bags.divisors is None else bags.divisors[share.bags],
                    out[share.bags],
                )
            activations.append(out)
        return activations

    def _route(self, batch: TableBatch) -> Route:
        layout = self._layouts[batch.table]
        cuts = [shares(bags, self._hosts) for bags in batch.features]
        found = [
            [occurring(bags, share, layout) for share in cut]
            for bags, cut in zip(batch.features, cuts, strict=True)
        ]
        route = Route(cuts, found, [], [[] for _ in batch.features])
        for host in range(self._hosts):
            self._fetch(batch, route, host)
        return route

    def _fetch(self, batch: TableBatch, route: Route, host: int) -> None:
        """Request the rows `host` needs, and say where in the answer each of its ids stands."""
        places = [
            np.empty(cut[host].ids.stop - cut[host].ids.start, np.int64) for cut in route.shares
        ]
        received, base = [], 0
        for owner, store in enumerate(self._tables[batch.table]):
            parts = [found[host][owner] for found in route.found]
            wanted, place = np.unique(
                np.concatenate([part.rows for part in parts]), return_inverse=True
            )
            with self._counting:
                self._rows_requested += wanted.size
            request = self._exchange.send(wanted, host, owner)
            received.append(self._exchange.send(store.gather(None, request), owner, host))
            at = 0
            for part, where in zip(parts, places, strict=True):
                where[part.positions] = place[at : at + part.rows.size] + base
                at += part.rows.size
            base += wanted.size
        route.rows.append(np.concatenate(received))
        for feature, where in enumerate(places):
            route.places[feature].append(where)

    # --- update ----------------------------------------------------------------------------------

    def _merge(self, batch: TableBatch, active: tuple[bool, ...]) -> list[Occurrences]:
        """Put each owner's occurrences into the global order, and sort them by row.

        What an owner must be told of the hosts' bags (which row each names, which gradient it will
        get, with what gain) is sent here.
        """
        layout = self._layouts[batch.table]
        value = working_dtype(self.specs[batch.table].dtype)
        merged = []
        for owner in range(self._hosts):
            rows, sources, gains, base = [], [], [], 0
            for host, part in self._parts_of(batch, owner, active):
                send = self._exchange.send
                rows.append(send(part.rows, host, owner))
                sources.append(send(part.sources, host, owner) + np.int32(base))
                gains.append(
                    (part.rows.size, None if part.gains is None else send(part.gains, host, owner))
                )
                base += part.bags.size
            merged.append(
                sort_occurrences(
                    np.concatenate(rows),
                    np.concatenate(sources),
                    joined_gains(gains, value),
                    int(layout.shard_sizes[owner]),
                )
            )
        return merged

    def _parts_of(
        self, batch: TableBatch, owner: int, active: tuple[bool, ...]
    ) -> list[tuple[int, Occurring]]:
        """Return (host, namings of the owner's rows) in the order (feature, host)."""
        return [
            (host, found[owner])
            for feature, used in zip(batch.route.found, active, strict=True)
            if used
            for host, found in enumerate(feature)
        ]

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        """Send every owner the gradients of the bags that name its rows, and update them there."""
        for update in updates:
            batch, active = update.batch, update.active
            merged = batch.route.merged if all(active) else self._merge(batch, active)
            layout = self._layouts[batch.table]
            gradients = [
                None if gradient is None else scaled(bags, gradient)
                for bags, gradient in zip(batch.features, update.gradients, strict=True)
            ]
            for owner, store in enumerate(self._tables[batch.table]):
                received = [
                    self._exchange.send(gradient[found[owner].bags], host, owner)
                    for feature, gradient in zip(batch.route.found, gradients, strict=True)
                    if gradient is not None
                    for host, found in enumerate(feature)
                ]
                occurrences = merged[owner]
                store.apply(
                    occurrences,
                    layout.global_of(owner, occurrences.rows),
                    np.concatenate(received),
                    update.hyper,
                    update.step,
                )

    def weight_dots(self, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return each id's row times its bag's gradient, from the rows that the hosts hold."""
        batch, route = update.batch, update.batch.route
        dots: list[NDArray[Any] | None] = []
        for feature, (bags, gradient) in enumerate(
            zip(batch.features, update.gradients, strict=True)
        ):
            if gradient is None:
                dots.append(None)
                continue
            out = np.empty(bags.ids.size, gradient.dtype)
            for host, share in enumerate(route.shares[feature]):
                out[share.ids] = row_dots(
                    route.rows[host],
                    route.places[feature][host],
                    _own_splits(bags.row_splits, share),
                    np.ascontiguousarray(gradient[share.bags]),
                )
            dots.append(out)
        return dots

    def counters(self) -> dict[str, int]:
        """Return what was exchanged: messages, bytes, and rows asked for."""
        return {
            "messages_exchanged": int(self._exchange.messages.sum()),
            "bytes_exchanged": int(self._exchange.bytes.sum()),
            "rows_requested": self._rows_requested,
        }


def _own_splits(row_splits: NDArray[np.int64], share: Share) -> NDArray[np.int64]:
    splits: NDArray[np.int64] = row_splits[share.bags.start : share.bags.stop + 1]
    own: NDArray[np.int64] = splits - splits[0]
    return own
