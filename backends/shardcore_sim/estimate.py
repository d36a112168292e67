"""Estimate a step of a model on 1 to thousands of hosts, without its tables.

The ids of one batch are drawn, and the messages that `SimBackend` would send for them are counted:
for every host if there are few, else for some of them, which stand for the rest. Costs are those of
`CostModel`. Run it as ``python -m shardcore_sim.simulate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.planning import Model, ModelTable
from shardcore.sharding import Layout
from shardcore.validation import as_count
from shardcore_sim.cost import CostModel, as_cost
from shardcore_sim.placement import home_layout, host_bytes
from shardcore_sim.report import imbalance

__all__ = ["HOSTS", "Estimate", "simulate"]

_SAMPLED: Final = 8  # hosts that are counted one by one
HOSTS: Final = tuple(2**power for power in range(13))
_ID, _SOURCE = 8, 4  # bytes


@dataclass(frozen=True)
class Estimate:
    """A step on a number of hosts.

    Attributes
    ----------
    hosts : int
    lookup_seconds, apply_seconds : float
    messages, bytes : int
        Between all hosts.
    busiest_bytes : int
        Bytes that the busiest host sends or receives.
    row_imbalance : float
        Rows read and updated by the busiest host, over the mean.
    host_bytes : int
        Tables and slots on the fullest host.
    fits : bool
        Whether that is no more than the memory of the cost model.
    """

    hosts: int
    lookup_seconds: float
    apply_seconds: float
    messages: int
    bytes: int
    busiest_bytes: int
    row_imbalance: float
    host_bytes: int
    fits: bool

    @property
    def step_seconds(self) -> float:
        """A lookup and an apply."""
        return self.lookup_seconds + self.apply_seconds


@dataclass(eq=False)
class _Stages:
    """The seconds, messages and bytes of each host in the stages of a call."""

    hosts: int
    stages: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def at(self, stage: int) -> NDArray[np.float64]:
        """Return (5, hosts): seconds of computing, messages and bytes sent, and received."""
        if stage not in self.stages:
            self.stages[stage] = np.zeros((5, self.hosts))
        return self.stages[stage]

    def work(self, stage: int, seconds: Any, host: Any = slice(None)) -> None:
        """Add seconds that hosts compute."""
        self.at(stage)[0, host] += seconds

    def send(self, stage: int, traffic: _Traffic, size: float, back: bool = False) -> None:
        """Add a message of `size` bytes per item of a traffic; `back` is the other way round."""
        sent, received = (3, 1) if back else (1, 3)
        into = self.at(stage)
        into[sent] += traffic.links_out
        into[sent + 1] += traffic.items_out * size
        into[received] += traffic.links_in
        into[received + 1] += traffic.items_in * size

    def seconds(self, cost: CostModel) -> float:
        """Return how long the call takes: see `shardcore_sim.cost`."""
        total = 0.0
        for computes, out, out_bytes, into, in_bytes in self.stages.values():
            sends = out * cost.latency + out_bytes / cost.bandwidth
            receives = into * cost.latency + in_bytes / cost.bandwidth
            total += float(computes.max() + np.maximum(sends, receives).max())
        return total


@dataclass(eq=False)
class _Traffic:
    """Items that hosts have for each other: how many, and over how many links, per host."""

    items_out: NDArray[np.float64]
    items_in: NDArray[np.float64]
    links_out: NDArray[np.float64]
    links_in: NDArray[np.float64]

    def scaled(self, items: float) -> _Traffic:
        """Return the same with more items on every link."""
        return _Traffic(
            self.items_out + items * self.links_out,
            self.items_in + items * self.links_in,
            self.links_out,
            self.links_in,
        )


def _between(counts: NDArray[np.int64], sampled: NDArray[np.int64], hosts: int) -> _Traffic:
    """Return the traffic of all hosts from the items that some have for each, (sampled, hosts)."""
    remote = counts.astype(np.float64)
    remote[np.arange(sampled.size), sampled] = 0  # a host's own items are not sent
    links = (remote > 0).astype(np.float64)
    if sampled.size == hosts:
        return _Traffic(remote.sum(1), remote.sum(0), links.sum(1), links.sum(0))
    # Of the hosts that have something for host o, all but o, so many were counted.
    others = sampled.size - np.bincount(sampled, minlength=hosts)
    scale = (hosts - 1) / others
    return _Traffic(
        np.full(hosts, remote.sum(1).mean()),
        remote.sum(0) * scale,
        np.full(hosts, links.sum(1).mean()),
        links.sum(0) * scale,
    )


def _to_all(items: NDArray[np.float64], holders: NDArray[np.int64], hosts: int) -> _Traffic:
    """Return the traffic of hosts that have `items`, (hosts,), for each of the holders."""
    holds = np.zeros(hosts)
    holds[holders] = 1
    some = (items > 0).astype(np.float64)
    targets = holders.size - holds
    return _Traffic(
        items * targets, (items.sum() - items) * holds,
        some * targets, (some.sum() - some) * holds,
    )  # fmt: skip


@dataclass(eq=False)
class _Counts:
    """The rows, ids and bags of one table's batch, counted for some of the hosts.

    `unique`, `named`, `bags`: distinct rows, ids, and bags that name a row, of each sampled host
    for each shard of a layout; (sampled, shards).
    """

    unique: NDArray[np.int64]
    named: NDArray[np.int64]
    bags: NDArray[np.int64]


class _Table:
    """One table, with the ids of a batch."""

    def __init__(self, table: ModelTable, ids: NDArray[np.int64]) -> None:
        self.spec, self.hot = table.spec, table.hot
        self.ids = ids.reshape(-1, table.hot)
        self.distinct = np.unique(ids)
        self.row_bytes = self.spec.dim * self.spec.dtype.itemsize
        self.gradient_bytes = self.spec.dim * working_dtype(self.spec.dtype).itemsize
        slots = self.spec.slots
        self.slot_bytes = sum(
            slot.shape(1, self.spec.dim)[1] * slot.storage_dtype(self.spec.dtype).itemsize
            for slot in slots
        )
        self.split = [self.spec.dtype.itemsize] + [
            slot.storage_dtype(self.spec.dtype).itemsize for slot in slots if slot.kind == "element"
        ]

    def counts(self, layout: Layout, sampled: NDArray[np.int64], hosts: int) -> _Counts:
        """Count for the samples of some hosts."""
        shards, samples = layout.num_shards, len(self.ids)
        found = []
        for host in sampled.tolist():
            own = self.ids[-(-host * samples // hosts) : -(-(host + 1) * samples // hosts)]
            unique = self.distinct if len(own) == samples else np.unique(own)
            if shards == 1:
                found.append(([unique.size], [own.size], [len(own)]))
                continue
            owners = layout.locate(own)[0]
            first = np.sort(owners, axis=1)
            new = np.ones(first.shape, np.bool_)
            new[:, 1:] = first[:, 1:] != first[:, :-1]
            found.append(
                tuple(
                    np.bincount(one, minlength=shards).tolist()
                    for one in (layout.locate(unique)[0], owners.reshape(-1), first[new])
                )
            )
        unique_counts, named, bags = (np.array(one, np.int64) for one in zip(*found, strict=True))
        return _Counts(unique_counts, named, bags)


class _Step:
    """The lookup and the apply of a step on a number of hosts."""

    def __init__(self, hosts: int, cost: CostModel) -> None:
        self.hosts, self.cost = hosts, cost
        count = min(hosts, _SAMPLED)
        self.sampled = np.arange(count) * hosts // count
        self.lookup, self.apply = _Stages(hosts), _Stages(hosts)
        self.rows = np.zeros(hosts)

    def serve(self, rows: NDArray[Any], nbytes: float | NDArray[Any]) -> None:
        """Let hosts read rows for a lookup."""
        self.lookup.work(1, self.cost.row_seconds(1, 0) * rows + rows * nbytes * self._per_byte)
        self.rows += rows

    @property
    def _per_byte(self) -> float:
        return self.cost.row_seconds(0, 1)

    def all_of(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how much each host has for all shards together."""
        totals: NDArray[np.float64] = counts.sum(1).astype(np.float64)
        if totals.size == self.hosts:
            return totals
        return np.full(self.hosts, totals.mean())

    def asked(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what all hosts together have for each shard."""
        totals: NDArray[np.float64] = counts.sum(0) * (self.hosts / self.sampled.size)
        return totals

    def add(self, table: _Table, layout: Layout) -> None:
        """Add the costs of one table."""
        spec, hosts = table.spec, self.hosts
        whole = Layout.div(spec.num_rows, 1)
        homes = table.counts(layout, self.sampled, hosts)
        ids = self.all_of(homes.named)
        self.lookup.work(0, self.cost.id_seconds(1) * ids)
        per_id = self.cost.row_seconds(1, table.row_bytes)
        self.lookup.work(2, per_id * ids)
        if spec.placement == "column":
            self._look_up_columns(table, table.counts(whole, self.sampled, hosts), layout)
        elif spec.placement == "replicated":
            counts = table.counts(whole, self.sampled, hosts)
            rows = counts.unique if spec.exchange == "exact" else counts.named
            self.serve(self.all_of(rows), table.row_bytes)
        elif spec.exchange == "partial":
            self._pool(table, homes)
        else:
            asked = _between(homes.unique, self.sampled, hosts)
            self.lookup.send(0, asked, _ID)
            self.lookup.send(1, asked, table.row_bytes, back=True)
            self.serve(self.asked(homes.unique), table.row_bytes)
        if spec.optimizer is not None:
            self._train(table, homes, layout)

    def _pool(self, table: _Table, homes: _Counts) -> None:
        named = _between(homes.named, self.sampled, self.hosts)
        bags = _between(homes.bags, self.sampled, self.hosts)
        self.lookup.send(0, named, _ID)
        self.lookup.send(0, bags.scaled(1), _ID)  # row splits: one more than bags
        self.lookup.send(1, bags, table.gradient_bytes, back=True)
        self.serve(self.asked(homes.named), table.row_bytes)

    def _look_up_columns(self, table: _Table, counts: _Counts, layout: Layout) -> None:
        spec = table.spec
        width = Layout.div(spec.dim, self.hosts).shard_sizes.astype(np.float64)
        holders = np.flatnonzero(width)
        partial = spec.exchange == "partial"
        rows = self.all_of(counts.named if partial else counts.unique)
        answers = self.all_of(counts.bags if partial else counts.unique)
        item = working_dtype(spec.dtype).itemsize if partial else spec.dtype.itemsize
        self.lookup.send(0, _to_all(rows, holders, self.hosts), _ID)
        if partial:
            splits = np.where(answers > 0, answers + 1, 0)
            self.lookup.send(0, _to_all(splits, holders, self.hosts), _ID)
        self._columns_back(self.lookup, 1, answers, width, item)
        self.serve(np.where(width > 0, rows.sum(), 0), width * spec.dtype.itemsize)

    def _columns_back(
        self, call: _Stages, stage: int, rows: NDArray[Any], width: NDArray[Any], item: int,
        there: bool = False,
    ) -> None:  # fmt: skip
        """Send every host its rows' columns from each holder; `there`: from the host to them."""
        holds = (width > 0).astype(np.float64)
        some = (rows > 0).astype(np.float64)
        from_holders = (holds * (some.sum() - some), width * item * (rows.sum() - rows))
        to_hosts = (some * (holds.sum() - holds), rows * item * (width.sum() - width))
        out, into = (to_hosts, from_holders) if there else (from_holders, to_hosts)
        at = call.at(stage)
        at[1:3] += out
        at[3:5] += into

    def _train(self, table: _Table, homes: _Counts, layout: Layout) -> None:
        spec, hosts = table.spec, self.hosts
        copies = spec.placement == "replicated"
        sent = spec.exchange == "partial" and spec.placement in ("row", "table")
        if copies:
            everyone = np.arange(hosts)
            named = _to_all(self.all_of(homes.named), everyone, hosts)
            samples = Layout.div(len(table.ids), hosts).shard_sizes if hosts > 1 else [0]
            bags = _to_all(np.array(samples, np.float64), everyone, hosts)
            updates = np.full(hosts, float(table.ids.size))
            touched = np.full(hosts, float(table.distinct.size))
        else:
            named = _between(homes.named, self.sampled, hosts)
            bags = _between(homes.bags, self.sampled, hosts)
            owner = layout.locate(table.ids.reshape(-1))[0]
            updates = np.bincount(owner, minlength=hosts).astype(np.float64)
            touched = np.bincount(layout.locate(table.distinct)[0], minlength=hosts).astype(float)
        if spec.optimizer is not None and not spec.optimizer.lazy:
            every = [spec.num_rows] * hosts if copies else layout.shard_sizes
            touched = np.array(every, np.float64)
        if not sent:
            self.lookup.send(0, named, _ID)
            self.lookup.send(0, named, _SOURCE)
        self.lookup.work(0, self.cost.id_seconds(1) * updates)
        self.apply.send(0, bags, table.gradient_bytes)
        if spec.placement == "column":
            self._move_columns(table, touched)
        begin, per_byte = self.cost.row_seconds(1, 0), self._per_byte
        moved = table.gradient_bytes * updates
        moved = moved + 2 * touched * (table.row_bytes + table.slot_bytes)
        self.apply.work(1, begin * (updates + 2 * touched) + moved * per_byte)
        self.rows += touched

    def _move_columns(self, table: _Table, touched: NDArray[np.float64]) -> None:
        """Fetch the columns of rows and slots that are updated at home, and send them back."""
        width = Layout.div(table.spec.dim, self.hosts).shard_sizes.astype(np.float64)
        self.apply.send(1, _to_all(touched, np.flatnonzero(width), self.hosts), _ID)
        for item in table.split:
            self._columns_back(self.apply, 2, touched, width, item)
            self._columns_back(self.apply, 3, touched, width, item, there=True)
            read = np.where(width > 0, touched.sum(), 0) * self.cost.row_seconds(1, 0)
            self.apply.work(2, read + touched.sum() * width * item * self._per_byte)

    def estimate(self, held: NDArray[np.int64]) -> Estimate:
        """Return the estimate of the step."""
        stages = [*self.lookup.stages.values(), *self.apply.stages.values()]
        messages, out, into = (sum(stage[row] for stage in stages) for row in (1, 2, 4))
        memory = self.cost.memory
        fullest = int(held.max())
        return Estimate(
            self.hosts,
            self.lookup.seconds(self.cost),
            self.apply.seconds(self.cost),
            round(float(np.sum(messages))),
            round(float(np.sum(out))),
            round(float(np.maximum(out, into).max())),
            imbalance(self.rows),
            fullest,
            memory is None or fullest <= memory,
        )


def simulate(
    model: Model, hosts: Sequence[int] = HOSTS, cost: CostModel | None = None, seed: int = 0
) -> list[Estimate]:
    """Estimate a step of a model on numbers of hosts.

    Parameters
    ----------
    model : Model
    hosts : sequence of int, >= 1
        Up to 8 hosts are counted one by one, as `SimBackend` counts; of more, 8 stand for all.
    cost : CostModel, optional
    seed : int, >= 0
        Of the ids.

    Returns
    -------
    list of Estimate

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> from shardcore.planning import example_model, load_model
    >>> model = load_model(example_model(), {"batch": 64})
    >>> one, two = simulate(model, hosts=[1, 2])
    >>> one.bytes, two.bytes > 0, one.host_bytes // two.host_bytes
    (0, True, 1)
    """
    cost = as_cost(cost)
    counts = [as_count(count, f"hosts[{at}]") for at, count in enumerate(hosts)]
    seed = as_count(seed, "seed", 0)
    steps = [_Step(count, cost) for count in counts]
    held = [np.zeros(count, np.int64) for count in counts]
    for number, described in enumerate(model.tables):
        rng = np.random.default_rng((seed, number))
        ids = model.ids.draw(rng, model.batch * described.hot, described.spec.num_rows)
        table = _Table(described, ids)
        for at, step in enumerate(steps):
            try:
                layout = home_layout(described.spec, step.hosts, held[at].tolist())
            except ShardcoreValueError as error:
                raise ShardcoreValueError(f"table {described.spec.name!r}: {error}") from error
            held[at] += np.array(host_bytes(described.spec, layout))
            step.add(table, layout)
    return [step.estimate(own) for step, own in zip(steps, held, strict=True)]
