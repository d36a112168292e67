"""Messages between hosts: each an array that one host sends to another, all counted.

Hosts share nothing else. An array that a host sends to itself is handed over and not counted. A
message that is lost is sent again after a timeout; one that arrives twice is used once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreRuntimeError
from shardcore.store import Mutex
from shardcore_sim.cost import CostModel
from shardcore_sim.faults import DelayMessage, Fault, LoseHost, LoseMessage, SlowHost

__all__ = ["Call", "Exchange", "HostLostError", "MessageLostError"]


class MessageLostError(ShardcoreRuntimeError):
    """A message did not arrive, as often as it was sent; nothing was changed."""


class HostLostError(ShardcoreRuntimeError):
    """A host is gone, with its rows."""


class Exchange:
    """The links between hosts, and the clock.

    Parameters
    ----------
    hosts : int
    cost : CostModel, optional
    faults : sequence of fault records
        As `as_faults` returns them.
    retries : int
        How often a message that was lost is sent again.
    timeout : float
        Simulated seconds to wait before it is sent again.

    Attributes
    ----------
    messages, bytes : ndarray of int64, shape (hosts, hosts)
        Sent from host i to host j since the start, lost messages included.
    by_table : dict of str -> ndarray of int64, shape (2,)
        Messages and bytes on behalf of each table.
    served, updated : dict of str -> ndarray of int64, shape (hosts,)
        Rows of each table that each host read for lookups, and that it updated.
    calls : int
        How many calls have begun.
    seconds : float
        The simulated clock: how long all calls took, one after the other.
    events : dict of str -> int
        ``lost``, ``retried``, ``late`` and ``discarded`` messages.

    Examples
    --------
    >>> links = Exchange(2)
    >>> with links.call("lookup") as call:
    ...     call.send(np.zeros(3), 0, 1, "t")
    array([0., 0., 0.])
    >>> int(links.bytes[0, 1]), int(links.messages.sum()), links.by_table["t"]
    (24, 1, array([ 1, 24]))
    """

    def __init__(
        self,
        hosts: int,
        cost: CostModel | None = None,
        faults: Sequence[Fault] = (),
        retries: int = 3,
        timeout: float = 1e-3,
    ) -> None:
        self.hosts = hosts
        self.cost = CostModel() if cost is None else cost
        self.retries = retries
        self.timeout = timeout
        self.messages = np.zeros((hosts, hosts), np.int64)
        self.bytes = np.zeros((hosts, hosts), np.int64)
        self.by_table: dict[str, NDArray[np.int64]] = {}
        self.served: dict[str, NDArray[np.int64]] = {}
        self.updated: dict[str, NDArray[np.int64]] = {}
        self.calls = 0
        self.seconds = 0.0
        self.events = dict.fromkeys(("lost", "retried", "late", "discarded"), 0)
        self.pending: list[Fault] = [fault for fault in faults if not isinstance(fault, SlowHost)]
        self._slow = [fault for fault in faults if isinstance(fault, SlowHost)]
        self._lock = Mutex()  # lookups come from any thread

    @contextmanager
    def call(self, name: str) -> Iterator[Call]:
        """Begin a call; its messages are counted when it ends, however it ends."""
        call = Call(self, name, self._lock.run(self._next))
        try:
            yield call
        finally:
            self._lock.run(self._count, call)

    def _next(self) -> int:
        number, self.calls = self.calls, self.calls + 1
        return number

    def _count(self, call: Call) -> None:
        for (table, source, target), counted in call.traffic.items():
            self.messages[source, target] += counted[0]
            self.bytes[source, target] += counted[1]
            self.by_table.setdefault(table, np.zeros(2, np.int64))[:] += counted
        for counts, sums in ((call.served, self.served), (call.updated, self.updated)):
            for (table, host), rows in counts.items():
                sums.setdefault(table, np.zeros(self.hosts, np.int64))[host] += rows
        for event, count in call.events.items():
            self.events[event] += count
        self.seconds += call.seconds

    def slowness(self, call: int) -> NDArray[np.float64]:
        """Return each host's factor in a call."""
        factors = np.ones(self.hosts)
        for slow in self._slow:
            if slow.first_call <= call and (slow.last_call is None or call <= slow.last_call):
                factors[slow.host] *= slow.factor
        return factors

    def of_call(self, number: int) -> list[Fault]:
        """Return the faults that wait for a call."""
        return [fault for fault in self.pending if getattr(fault, "call", None) == number]

    def happened(self, fault: Fault) -> None:
        """Take a fault that has happened off the script."""
        self._lock.run(self.pending.remove, fault)


class Call:
    """One call's messages, in stages; made by `Exchange.call`.

    Attributes
    ----------
    traffic : dict of (table, source, target) -> list of int
        Messages and bytes.
    served, updated : dict of (table, host) -> int
        Rows.
    """

    def __init__(self, exchange: Exchange, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.traffic: dict[tuple[str, int, int], list[int]] = {}
        self.served: dict[tuple[str, int], int] = defaultdict(int)
        self.updated: dict[tuple[str, int], int] = defaultdict(int)
        self.events: dict[str, int] = defaultdict(int)
        self._exchange = exchange
        self._faults = exchange.of_call(number)
        self._slowness = exchange.slowness(number)
        self._sent: dict[tuple[int, int], int] = defaultdict(int)
        self._total = 0
        # Per stage: seconds that each host computes, sends, receives.
        self._stages: dict[int, tuple[list[float], list[float], list[float]]] = {}

    @property
    def cost(self) -> CostModel:
        """The cost model."""
        return self._exchange.cost

    @property
    def seconds(self) -> float:
        """How long the call takes, by the cost model."""
        total = 0.0
        for stage in self._stages.values():
            computes, sends, receives = np.array(stage) * self._slowness
            total += float(computes.max() + np.maximum(sends, receives).max())
        return total

    def _stage(self, stage: int) -> tuple[list[float], list[float], list[float]]:
        if stage not in self._stages:
            hosts = self._exchange.hosts
            self._stages[stage] = [0.0] * hosts, [0.0] * hosts, [0.0] * hosts
        return self._stages[stage]

    def work(self, host: int, seconds: float, stage: int = 0) -> None:
        """Add simulated seconds that a host computes before it sends the messages of the stage."""
        self._stage(stage)[0][host] += seconds

    def serve(self, host: int, table: str, rows: int) -> None:
        """Count rows that a host reads for a lookup."""
        self.served[table, host] += rows

    def update(self, host: int, table: str, rows: int) -> None:
        """Count rows that a host updates."""
        self.updated[table, host] += rows

    def send(
        self, array: NDArray[Any], source: int, target: int, table: str, stage: int = 0
    ) -> NDArray[Any]:
        """Return `array` as `target` receives it: a copy, so that no memory is shared.

        An empty array is not sent.

        Raises
        ------
        MessageLostError
            If it was lost, or late, as often as it may be sent.
        HostLostError
            If a host is lost now.
        """
        if source == target:
            return array
        self.deliver(array, source, target, table, stage)
        return array.copy()

    def deliver(
        self, array: NDArray[Any], source: int, target: int, table: str, stage: int = 0
    ) -> None:
        """Send an array that only `target` has: as `send`, but it needs no copy."""
        if source != target and array.size:
            self._lose_hosts()
            self._travel(array.nbytes, source, target, table, stage)

    def _lose_hosts(self) -> None:
        for fault in self._faults:
            if isinstance(fault, LoseHost) and fault.phase == "exchange":
                if fault.message > self._total:
                    continue
                self._exchange.happened(fault)
                raise HostLostError(
                    f"host {fault.host} was lost in call {self.number} ({self.name}), "
                    "before any host changed a row"
                )

    def committing(self, host: int, changed: Sequence[int]) -> None:
        """Begin a host's turn to change its rows, after the hosts `changed`.

        Raises
        ------
        HostLostError
            If it is lost now.
        """
        for fault in self._faults:
            if isinstance(fault, LoseHost) and fault.phase == "commit" and fault.host == host:
                self._exchange.happened(fault)
                done = ", ".join(map(str, changed)) or "none"
                raise HostLostError(
                    f"host {host} was lost in call {self.number} ({self.name}) while hosts "
                    f"changed their rows; those that had: {done}"
                )

    def _travel(self, nbytes: int, source: int, target: int, table: str, stage: int) -> None:
        """Count a message and its repetitions, and the time they take."""
        link, timeout = (source, target), self._exchange.timeout
        number = self._sent[link]
        self._sent[link] += 1
        self._total += 1
        missed, waited = 0, 0.0
        for fault in self._faults:
            if not isinstance(fault, LoseMessage | DelayMessage):
                continue
            if (fault.source, fault.target, fault.message) != (*link, number):
                continue
            self._exchange.happened(fault)
            if isinstance(fault, LoseMessage):
                missed += fault.times
                self.events["lost"] += min(fault.times, self._exchange.retries + 1)
                continue
            self.events["late"] += 1
            if fault.seconds > timeout:  # by then it was sent again; the late one is thrown away
                missed += 1
                self.events["discarded"] += 1
            else:
                waited += fault.seconds
        repeats = min(missed, self._exchange.retries)
        given_up = missed > repeats
        copies = 1 + repeats
        self.events["retried"] += repeats
        counted = self.traffic.setdefault((table, source, target), [0, 0])
        counted[0] += copies
        counted[1] += copies * nbytes
        spent = self._exchange.cost.message_seconds(copies, copies * nbytes)
        _, sends, receives = self._stage(stage)
        sends[source] += spent
        receives[target] += spent + waited + (repeats + given_up) * timeout
        if given_up:
            raise MessageLostError(
                f"message {number} from host {source} to host {target} in call {self.number} "
                f"({self.name}, table {table!r}) did not arrive in time, {copies} times; "
                "no row was changed, the call can be made again"
            )
