"""N hosts in one process, a store each; all that crosses between them is a counted message.

Lookup: with ``exchange="exact"`` every host asks every owner for the distinct rows its bags name,
once for all features of a table, and combines what comes back; with ``"partial"`` every owner sums
its share of each bag, and the host adds these sums in the order of the owners. Update: every host
sends each bag's gradient once to every owner the bag names; the owner sums them in the global order
and prepares the update of its rows. When all hosts are ready, and not before, rows are changed.

Exact results are those of a single host, to the last bit. A partial lookup of a bag of n rows
differs from them, element by element, by at most ``2 g(n + 2) Σ|w·e| / |D|``, where
``g(k) = k u / (1 - k u)`` and u is 2**-24 (2**-53 for float64 tables): twice the bound for a sum of
n products in any order, without underflow (Higham, Accuracy and Stability of Numerical Algorithms,
section 3.1).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import (
    Backend,
    FeatureBags,
    TableBatch,
    TableSpec,
    TableUpdate,
    joined_gains,
    scaled,
)
from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreRuntimeError, ShardcoreValueError
from shardcore.ids import row_ids_from_row_splits
from shardcore.sharding import Layout
from shardcore.store import (
    Mutex,
    Occurrences,
    every_row,
    reduce_bags,
    sort_occurrences,
    uninterrupted,
    write_all,
)
from shardcore.validation import as_count
from shardcore_sim.cost import CostModel, as_cost
from shardcore_sim.exchange import Call, Exchange, HostLostError
from shardcore_sim.faults import Fault, as_faults, as_number
from shardcore_sim.placement import Change, Placement, home_layout, host_bytes, place
from shardcore_sim.report import SimReport, TableReport
from shardcore_sim.route import Named, Occurring, Share, named_rows, own_splits, shares

__all__ = ["SimBackend"]

_COMBINE = 2  # the stage of a lookup after requests and answers

Found = list[list[Named]]
Multiply = Callable[..., NDArray[Any]]


@dataclass(eq=False)
class Route:
    """How one table's batch was cut by host, and what its update will need.

    `found[feature][host]`, whose owners are the shards of the placement's lookup layout;
    `found_to_update` the same for its update layout. `merged`, one per updater, is ready where
    training is.
    """

    shares: list[list[Share]]
    found: Found
    found_to_update: Found
    merged: list[Occurrences] | None = None


class SimBackend(Backend):
    """Simulated hosts.

    Parameters
    ----------
    hosts : int, >= 1
    faults : sequence of fault records
        The faults to play, and when; see `shardcore_sim.faults`.
    cost : CostModel, optional
        The costs that the simulated clock adds up, and the memory of a host.
    retries : int, >= 0
        How often a message that did not arrive is sent again before the call fails.
    timeout : float, >= 0
        Simulated seconds to wait before it is sent again.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Notes
    -----
    A call that fails for want of a message has changed nothing and can be made again. When a host
    is lost its rows are gone: every later call raises, until every row of every table and slot was
    written in the context `restoring`.

    Examples
    --------
    >>> import shardcore as sc
    >>> sc.get_backend("sim", hosts=3).num_hosts
    3
    """

    name = "sim"

    def __init__(
        self,
        hosts: int = 2,
        faults: Sequence[Fault] = (),
        cost: CostModel | None = None,
        retries: int = 3,
        timeout: float = 1e-3,
    ) -> None:
        super().__init__()
        self._hosts = as_count(hosts, "hosts")
        self._exchange = Exchange(
            self._hosts,
            as_cost(cost),
            as_faults(faults, self._hosts),
            as_count(retries, "retries", 0),
            as_number(timeout, "timeout"),
        )
        self._tables: dict[str, Placement] = {}
        self._host_bytes: dict[str, list[int]] = {}
        self._changing = Mutex()  # one change at a time
        self._broken: str | None = None
        # While a broken cluster is restored: which rows of which table and slot were written.
        self._restored: dict[tuple[str, str | None], NDArray[np.bool_]] | None = None

    @property
    def num_hosts(self) -> int:
        """How many hosts are simulated."""
        return self._hosts

    @property
    def exchange(self) -> Exchange:
        """The links between the hosts, with their counters and the clock."""
        return self._exchange

    @property
    def simulated_seconds(self) -> float:
        """How long all calls took, by the cost model."""
        return self._exchange.seconds

    def layout(self, table: str) -> Layout:
        """Return which host, as a shard, each row belongs to.

        Rows of placement "column" or "replicated" are on every host, in part or as a whole.
        """
        return self._tables[table].layout

    # --- tables ----------------------------------------------------------------------------------

    def make_table(self, spec: TableSpec) -> None:
        """Make each host's rows and slots in a store of its own.

        Raises
        ------
        ShardcoreValueError
            If it does not fit in a host's memory.
        """
        self._changing.run(self._create, spec)

    def _create(self, spec: TableSpec) -> None:
        self._check_whole()
        held = [sum(sizes) for sizes in zip(*self._host_bytes.values(), strict=True)]
        held = held or [0] * self._hosts
        layout = home_layout(spec, self._hosts, held)
        sizes = host_bytes(spec, layout)
        self._check_memory(spec, held, sizes)
        placement = place(spec, layout)
        placement.create()
        self._tables[spec.name] = placement
        self._host_bytes[spec.name] = sizes

    def _check_memory(self, spec: TableSpec, held: Sequence[int], sizes: Sequence[int]) -> None:
        limit = self._exchange.cost.memory
        for host, (before, size) in enumerate(zip(held, sizes, strict=True)):
            if limit is not None and before + size > limit:
                raise ShardcoreValueError(
                    f"table {spec.name!r} does not fit: host {host} has {limit} bytes, "
                    f"holds {before} and would need {size} more"
                )

    def remove_table(self, table: str) -> None:
        """Forget a table on every host."""
        uninterrupted(self._changing.run, self._remove, table)

    def _remove(self, table: str) -> None:
        self._host_bytes.pop(table, None)
        self._tables.pop(table, None)

    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order."""
        self._check_whole()
        placement = self._tables[table]
        return placement.lock.read(placement.gather, slot, rows)

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows."""
        uninterrupted(self._changing.run, self._scatter, table, slot, rows, values)

    def _scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        placement, restored = self._tables[table], self._restored
        if restored is None:
            self._check_whole()
        placement.lock.write(_make, placement.writes(slot, rows, values))
        if restored is not None:
            restored[table, slot][rows] = True

    # --- a broken cluster, and its restore -------------------------------------------------------

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise ShardcoreRuntimeError(
                f"the cluster is broken until a checkpoint is restored: {self._broken}"
            )

    @contextlib.contextmanager
    def _call(self, name: str) -> Iterator[Call]:
        """Begin a call; a host that is lost in it leaves the cluster broken."""
        self._check_whole()
        with self._exchange.call(name) as call:
            try:
                yield call
            except HostLostError as error:
                self._break(str(error))
                raise

    def _break(self, reason: str) -> None:
        self._broken, self._restored = reason, None

    @contextlib.contextmanager
    def restoring(self) -> Iterator[None]:
        """Let a broken cluster, whose lost hosts have been replaced, be written to.

        On one that is not broken it does nothing.

        Raises
        ------
        ShardcoreRuntimeError
            On leaving, if a row of a table or slot was not written; the cluster stays broken, as
            it does where an error ends the context.
        """
        self._changing.run(self._begin_restore)
        try:
            yield
            self._changing.run(self._end_restore)
        finally:
            self._restored = None

    def _begin_restore(self) -> None:
        if self._broken is not None:
            self._restored = {
                (name, slot): np.zeros(spec.num_rows, np.bool_)
                for name, spec in self.specs.items()
                for slot in spec.arrays
            }

    def _end_restore(self) -> None:
        if self._restored is None:
            if self._broken is not None:  # by a loss of another host meanwhile
                self._check_whole()
            return
        for (table, slot), written in self._restored.items():
            if not written.all():
                what = f"table {table!r}" if slot is None else f"slot {slot!r} of {table!r}"
                raise ShardcoreRuntimeError(
                    f"the restore is not complete: row {int(np.argmin(written))} of {what} "
                    "was not written"
                )
        self._broken = self._restored = None

    # --- lookup ----------------------------------------------------------------------------------

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[NDArray[Any]]]:
        """Send every host the rows its bags name, or their sums, and combine them there."""
        with self._call("lookup") as call:
            return [self._look_up(call, batch) for batch in batches]

    def _look_up(self, call: Call, batch: TableBatch) -> list[NDArray[Any]]:
        placement = self._tables[batch.table]
        route = self._cut(batch, placement.lookup_layout)
        cuts = route.shares
        for host in range(self._hosts):
            ids = sum(cut[host].ids.stop - cut[host].ids.start for cut in cuts)
            row = placement.spec.dim * placement.spec.dtype.itemsize
            call.work(host, call.cost.id_seconds(ids))
            call.work(host, call.cost.row_seconds(ids, ids * row), _COMBINE)
        combine = self._pooled if placement.spec.exchange == "partial" else self._fetched
        activations = placement.lock.read(combine, call, placement, batch, route)
        if batch.training:
            if placement.update_layout is not placement.lookup_layout:
                route.found_to_update = _cut(batch, cuts, placement.update_layout)
            route.merged = self._merge(call, batch, route, (True,) * len(cuts), sent=True)
        batch.route = route
        return activations

    def _cut(self, batch: TableBatch, layout: Layout) -> Route:
        """Return how a batch is cut by host, and by the shards of a layout."""
        cuts = [shares(bags, self._hosts) for bags in batch.features]
        found = _cut(batch, cuts, layout)
        return Route(cuts, found, found)

    def _route_of(self, batch: TableBatch) -> Route:
        """Return a batch's route; make one for a batch that was not looked up as it is."""
        if batch.route is not None:
            known: Route = batch.route
            return known
        placement = self._tables[batch.table]
        route = self._cut(batch, placement.lookup_layout)
        if placement.update_layout is not placement.lookup_layout:
            route.found_to_update = _cut(batch, route.shares, placement.update_layout)
        return route

    def _fetched(
        self, call: Call, placement: Placement, batch: TableBatch, route: Route
    ) -> list[NDArray[Any]]:
        """Let every host fetch the rows it needs, and combine them."""
        dim, value = placement.spec.dim, working_dtype(placement.spec.dtype)
        activations = [np.empty((bags.num_bags, dim), value) for bags in batch.features]
        for host in range(self._hosts):
            rows, places = self._fetch(call, placement, route, host)
            rows = placement.spec.as_looked_up(rows)
            for feature, bags in enumerate(batch.features):
                share = route.shares[feature][host]
                reduce_bags(
                    rows,
                    places[feature],
                    own_splits(bags, share),
                    None if bags.weights is None else bags.weights[share.ids],
                    None if bags.divisors is None else bags.divisors[share.bags],
                    activations[feature][share.bags],
                )
        return activations

    def _fetch(
        self, call: Call, placement: Placement, route: Route, host: int
    ) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
        """Return the rows `host` needs, and per feature where among them each id's row stands."""
        found = [of_hosts[host] for of_hosts in route.found]
        offsets = placement.lookup_layout.offsets
        # One sort for all features and shards, whose rows are put one shard after the other.
        rows = np.concatenate([one.rows for one in found])
        asked = sort_occurrences(rows, np.arange(rows.size, dtype=np.int32), None, int(offsets[-1]))
        place_of = np.empty(rows.size, np.int64)
        place_of[asked.sources] = np.repeat(np.arange(asked.rows.size), np.diff(asked.run_splits))
        # Requests travel in the type in which ids were given.
        dtype = np.result_type(*{part.rows.dtype for one in found for part in one.owners})
        borders = np.searchsorted(asked.rows, offsets).tolist()
        received = np.empty((asked.rows.size, placement.spec.dim), placement.spec.dtype)
        for shard, (first, last) in enumerate(itertools.pairwise(borders)):
            wanted = (asked.rows[first:last] - offsets[shard]).astype(dtype, copy=False)
            placement.fetch(call, host, shard, wanted, received[first:last])
        ends = itertools.accumulate(one.rows.size for one in found)
        places = [
            place_of[end - one.rows.size : end][one.inverse]
            for one, end in zip(found, ends, strict=True)
        ]
        return received, places

    def _pooled(
        self, call: Call, placement: Placement, batch: TableBatch, route: Route
    ) -> list[NDArray[Any]]:
        """Let the owners sum their shares of the bags, and every host add these sums."""
        dim, value = placement.spec.dim, working_dtype(placement.spec.dtype)
        activations = []
        for feature, bags in enumerate(batch.features):
            out = np.empty((bags.num_bags, dim), value)
            for host, share in enumerate(route.shares[feature]):
                weights = None if bags.weights is None else bags.weights[share.ids]
                sums, named = [np.empty((0, dim), value)], [np.empty(0, np.int64)]
                for shard, part in enumerate(route.found[feature][host].owners):
                    if part.rows.size:
                        factors = None if weights is None else weights[part.positions]
                        sums.append(
                            placement.pool(call, host, shard, part.rows, part.row_splits, factors)
                        )
                        named.append(part.bags)
                # The sums are a table, and its rows a bag's in the order of the owners.
                bag_of = np.concatenate(named) - share.bags.start
                counts = np.bincount(bag_of, minlength=share.bags.stop - share.bags.start)
                reduce_bags(
                    np.concatenate(sums),
                    np.argsort(bag_of, kind="stable"),
                    np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
                    None,
                    None if bags.divisors is None else bags.divisors[share.bags],
                    out[share.bags],
                )
            activations.append(out)
        return activations

    # --- update ----------------------------------------------------------------------------------

    def _merge(
        self, call: Call, batch: TableBatch, route: Route, active: tuple[bool, ...], sent: bool
    ) -> list[Occurrences]:
        """Put each updater's occurrences into the global order, and sort them by row.

        For each occurrence it is sent the row, the place of its gradient and the gain. With `sent`
        rows and places are left out where `pool` has sent them in the same call.
        """
        placement = self._tables[batch.table]
        value = working_dtype(placement.spec.dtype)
        known = sent and placement.spec.exchange == "partial" and placement.updaters_pool
        merged = []
        for updater, shard in placement.updaters:
            rows: list[Any] = []
            sources, gains, base = [], [], 0
            for host, part in _parts_of(route, shard, active):
                if known:
                    rows.append(part.rows.copy())
                    own_sources = row_ids_from_row_splits(part.row_splits).astype(np.int32)
                else:
                    rows.append(call.send(part.rows, host, updater, batch.table))
                    own_sources = call.send(part.sources, host, updater, batch.table)
                sources.append(own_sources + np.int32(base))
                gain = part.gains
                if gain is not None:
                    gain = call.send(gain, host, updater, batch.table)
                gains.append((part.rows.size, gain))
                base += part.bags.size
            call.work(updater, call.cost.id_seconds(sum(part.size for part in rows)))
            merged.append(
                sort_occurrences(
                    np.concatenate(rows),
                    np.concatenate(sources),
                    joined_gains(gains, value),
                    int(placement.update_layout.shard_sizes[shard]),
                )
            )
        return merged

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        """Send every owner the gradients of the bags that name its rows, and update them there.

        No host changes a row before all hosts of all tables have received all they need and
        prepared their updates.
        """
        uninterrupted(self._changing.run, self._apply, updates)

    def _apply(self, updates: Sequence[TableUpdate]) -> None:
        with self._call("apply") as call:
            staged, unique = [], 0
            for update in updates:
                placement = self._tables[update.batch.table]
                changes, rows = self._stage(call, placement, update)
                staged += [(placement, change) for change in changes]
                unique += rows
            self._commit(call, staged)
            self.count_unique_rows(unique)

    def _stage(
        self, call: Call, placement: Placement, update: TableUpdate
    ) -> tuple[list[Change], int]:
        """Return what one table's update changes on each host, and how many rows it touches."""
        batch, active, route = update.batch, update.active, self._route_of(update.batch)
        merged = route.merged
        if merged is None or not all(active):
            merged = self._merge(call, batch, route, active, sent=False)
        gradients = [
            None if gradient is None else scaled(bags, gradient)
            for bags, gradient in zip(batch.features, update.gradients, strict=True)
        ]
        seed = self.specs[batch.table].seed
        if placement.spec.seed != seed:  # a restore has given the table another
            placement.spec = replace(placement.spec, seed=seed)
        optimizer = placement.spec.optimizer
        assert optimizer is not None, "the engine trains tables with an optimizer only"
        changes: list[Change] = []
        touched: dict[int, int] = {}
        for (updater, shard), occurrences in zip(placement.updaters, merged, strict=True):
            parts = []
            for feature, gradient in zip(route.found_to_update, gradients, strict=True):
                if gradient is None:
                    continue
                for host, found in enumerate(feature):
                    parts.append(gradient[found.owners[shard].bags])
                    call.deliver(parts[-1], host, updater, batch.table)
            touched[shard] = occurrences.rows.size
            if not optimizer.lazy:
                rows = int(placement.update_layout.shard_sizes[shard])
                occurrences = every_row(occurrences, rows)
            if occurrences.rows.size:
                received = np.concatenate(parts)
                changes += placement.stage(call, updater, shard, occurrences, received, update)
        return changes, sum(touched.values())

    def _commit(self, call: Call, staged: Sequence[tuple[Placement, Change]]) -> None:
        """Let the hosts, one after the other, change their rows."""
        locks = [placement.lock for placement, _ in staged]
        write_all(locks, self._change_hosts, call, staged)

    def _change_hosts(self, call: Call, staged: Sequence[tuple[Placement, Change]]) -> None:
        changed: list[int] = []
        try:
            for host in range(self._hosts):
                call.committing(host, changed)
                _make([change for _, change in staged if change.host == host])
                changed.append(host)
        except HostLostError:
            raise
        except BaseException as error:
            self._break(f"{type(error).__name__} while hosts changed their rows")
            raise

    def weight_dots(self, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return each id's row, as it is now, times its bag's gradient."""
        batch, route = update.batch, self._route_of(update.batch)
        placement = self._tables[batch.table]
        pooled = placement.spec.exchange == "partial"
        multiply: Multiply = placement.dots if pooled else placement.dots_of_fetched
        with self._call("weight_dots") as call:
            return [
                None
                if gradient is None
                else placement.lock.read(_dots, call, multiply, bags, route, feature, gradient)
                for feature, (bags, gradient) in enumerate(
                    zip(batch.features, update.gradients, strict=True)
                )
            ]

    # --- reports and counters --------------------------------------------------------------------

    def report(self) -> SimReport:
        """Return what was counted since the backend was made."""
        links, none = self._exchange, np.zeros(self._hosts, np.int64)
        tables = {}
        for name, spec in self.specs.items():
            messages, nbytes = links.by_table.get(name, (0, 0))
            tables[name] = TableReport(
                spec.placement,
                spec.exchange,
                int(messages),
                int(nbytes),
                links.served.get(name, none).copy(),
                links.updated.get(name, none).copy(),
                np.array(self._host_bytes[name], np.int64),
            )
        return SimReport(
            self._hosts,
            links.calls,
            links.seconds,
            links.messages.copy(),
            links.bytes.copy(),
            tables,
            dict(links.events),
            tuple(links.pending),
            self._broken,
        )

    def counters(self) -> dict[str, int]:
        """Return what was exchanged since the backend was made.

        Returns
        -------
        dict of str to int
            ``unique_rows``, as every backend; ``messages_exchanged``, ``bytes_exchanged``;
            ``rows_requested`` (rows that hosts read for each other and themselves) and
            ``rows_updated`` (on all hosts that do so); ``calls``,
            ``simulated_nanoseconds``; messages ``lost``, ``retried``, ``late``, ``discarded``;
            ``hot_host`` (the one that read and updated most rows) and ``hot_host_rows``;
            ``pure_updates``, hosts' updates that ran an optimizer's Python form though it has a
            compiled one; and
            messages and bytes per link, ``bytes_exchanged/0->1``, and per table,
            ``bytes_exchanged/table/<name>``, beside its rows.
        """
        report, links = self.report(), self._exchange
        rows = report.host_rows
        counted = {
            **super().counters(),
            "messages_exchanged": int(links.messages.sum()),
            "bytes_exchanged": int(links.bytes.sum()),
            "rows_requested": sum(int(one.sum()) for one in links.served.values()),
            "rows_updated": sum(int(one.sum()) for one in links.updated.values()),
            "calls": links.calls,
            "simulated_nanoseconds": round(links.seconds * 1e9),
            "hot_host": report.hot_hosts[0],
            "hot_host_rows": int(rows.max()),
            "pure_updates": sum(table.pure_updates for table in self._tables.values()),
        }
        counted.update({f"messages_{event}": count for event, count in links.events.items()})
        for source, target in np.argwhere(links.messages):
            link = f"{source}->{target}"
            counted[f"messages_exchanged/{link}"] = int(links.messages[source, target])
            counted[f"bytes_exchanged/{link}"] = int(links.bytes[source, target])
        for name, table in report.tables.items():
            counted[f"messages_exchanged/table/{name}"] = table.messages
            counted[f"bytes_exchanged/table/{name}"] = table.bytes
            counted[f"rows_requested/table/{name}"] = int(table.rows_served.sum())
            counted[f"rows_updated/table/{name}"] = int(table.rows_updated.sum())
        return counted

    def close(self) -> None:
        """Release all tables."""
        self._tables.clear()
        self._host_bytes.clear()
        super().close()


def _cut(batch: TableBatch, cuts: list[list[Share]], layout: Layout) -> Found:
    """Return, per feature and host, the rows that its bags name of each shard of a layout."""

    def of_feature(bags: FeatureBags, cut: list[Share]) -> list[Named]:
        return [named_rows(bags, share, layout) for share in cut]

    return list(itertools.starmap(of_feature, zip(batch.features, cuts, strict=True)))


def _parts_of(
    route: Route, shard: int, active: tuple[bool, ...]
) -> Iterator[tuple[int, Occurring]]:
    """Yield (host, occurrences of the shard's rows) in the order (feature, host)."""
    for feature, used in zip(route.found_to_update, active, strict=True):
        if used:
            for host, found in enumerate(feature):
                yield host, found.owners[shard]


def _dots(
    call: Call,
    multiply: Multiply,
    bags: FeatureBags,
    route: Route,
    feature: int,
    gradient: NDArray[Any],
) -> NDArray[Any]:
    """Return, for one feature, each id's row times its bag's gradient."""
    out = np.empty(bags.ids.size, gradient.dtype)
    for host, share in enumerate(route.shares[feature]):
        for shard, part in enumerate(route.found[feature][host].owners):
            if part.rows.size:
                own = np.ascontiguousarray(gradient[part.bags])
                found = multiply(call, host, shard, part.rows, part.row_splits, own)
                out[share.ids][part.positions] = found
    return out


def _make(changes: Sequence[Change]) -> None:
    for change in changes:
        change.make()
