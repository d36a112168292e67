"""A script of faults that a simulated cluster plays: which ones, and when.

Calls that exchange messages (lookup, apply, weight_dots) are numbered from 0 in the order in which
they begin, messages from 0 per call and link. The same script gives the same run, every time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, TypeAlias

import numpy as np

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.validation import as_count

__all__ = [
    "DelayMessage",
    "Fault",
    "LoseHost",
    "LoseMessage",
    "SlowHost",
    "as_faults",
    "as_number",
    "random_faults",
]


def as_number(value: object, argument: str, minimum: float = 0.0, below: float = math.inf) -> float:
    """Return a real number of [minimum, below) as a float.

    Raises
    ------
    ShardcoreTypeError
        If it is no real number; a bool is none.
    ShardcoreValueError
        If it is out of range or not finite.

    Examples
    --------
    >>> as_number(2, "seconds")
    2.0
    """
    rule = f"{argument} must be a finite number >= {minimum:g}"
    if math.isfinite(below):
        rule = f"{argument} must be a number in [{minimum:g}, {below:g})"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ShardcoreTypeError(f"{rule}, got {value!r}")
    number = float(value)
    if not minimum <= number < below:
        raise ShardcoreValueError(f"{rule}, got {value!r}")
    return number


def _check_counts(fault: object, *names: str) -> None:
    for name in names:
        as_count(getattr(fault, name), f"{name} of {type(fault).__name__}", 0)


@dataclass(frozen=True)
class LoseMessage:
    """A message that does not arrive.

    Parameters
    ----------
    call, source, target, message : int, >= 0
        The message-th that host `source` sends to host `target` in this call.
    times : int, >= 1
        How many of the attempts to send it are lost.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If one is no such integer.

    Examples
    --------
    >>> LoseMessage(call=3, source=0, target=1)
    LoseMessage(call=3, source=0, target=1, message=0, times=1)
    """

    call: int
    source: int
    target: int
    message: int = 0
    times: int = 1

    def __post_init__(self) -> None:
        _check_counts(self, "call", "source", "target", "message")
        as_count(self.times, "times of LoseMessage")


@dataclass(frozen=True)
class DelayMessage:
    """A message that arrives late. Later than the timeout, it has been sent again by then.

    Parameters
    ----------
    call, source, target : int, >= 0
    seconds : float, >= 0
        Of simulated time.
    message : int, >= 0

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If one is no such number.
    """

    call: int
    source: int
    target: int
    seconds: float
    message: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, "call", "source", "target", "message")
        as_number(self.seconds, "seconds of DelayMessage")


@dataclass(frozen=True)
class SlowHost:
    """A host that computes, sends and receives `factor` times slower, in some calls or all.

    Parameters
    ----------
    host : int, >= 0
    factor : float, >= 1
    first_call : int, >= 0
    last_call : int or None
        Included; None: to the end.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If one is no such number, or `last_call` comes before `first_call`.
    """

    host: int
    factor: float
    first_call: int = 0
    last_call: int | None = None

    def __post_init__(self) -> None:
        _check_counts(self, "host", "first_call")
        as_number(self.factor, "factor of SlowHost", 1)
        if self.last_call is not None:
            as_count(self.last_call, "last_call of SlowHost", self.first_call)


@dataclass(frozen=True)
class LoseHost:
    """A host that goes, with its rows, in the middle of a call.

    Parameters
    ----------
    host, call : int, >= 0
    phase : {"exchange", "commit"}
        While messages travel, when no host has changed a row yet; or when it is this host's turn
        to change its rows, after the hosts of lower number have changed theirs. The latter only
        happens in an apply.
    message : int, >= 0
        In phase "exchange": how many messages of the call were sent before.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If one breaks its rule.
    """

    host: int
    call: int
    phase: Literal["exchange", "commit"] = "exchange"
    message: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, "host", "call", "message")
        if self.phase not in ("exchange", "commit"):
            raise ShardcoreValueError(
                f"phase of LoseHost must be 'exchange' or 'commit', got {self.phase!r}"
            )


Fault: TypeAlias = LoseMessage | DelayMessage | SlowHost | LoseHost


def as_faults(faults: object, hosts: int) -> tuple[Fault, ...]:
    """Return a script of faults, checked against the number of hosts.

    Raises
    ------
    ShardcoreTypeError
        If it is no sequence of fault records.
    ShardcoreValueError
        If one names a host that is not there, or a message from a host to itself.

    Examples
    --------
    >>> as_faults([SlowHost(1, 2.0)], hosts=2)
    (SlowHost(host=1, factor=2.0, first_call=0, last_call=None),)
    """
    if not isinstance(faults, Sequence) or isinstance(faults, str):
        raise ShardcoreTypeError(f"faults must be a sequence of fault records, got {faults!r}")
    for at, fault in enumerate(faults):
        if not isinstance(fault, Fault):
            raise ShardcoreTypeError(
                f"faults[{at}] must be LoseMessage, DelayMessage, SlowHost or LoseHost, "
                f"got {fault!r}"
            )
        named = (
            {"source": fault.source, "target": fault.target}
            if isinstance(fault, LoseMessage | DelayMessage)
            else {"host": fault.host}
        )
        for name, host in named.items():
            if host >= hosts:
                raise ShardcoreValueError(
                    f"faults[{at}].{name} must be in [0, {hosts}), the hosts there are, got {host}"
                )
        if len(named) == 2 and named["source"] == named["target"]:
            raise ShardcoreValueError(
                f"faults[{at}] must have two different hosts as source and target, "
                f"got host {named['source']} for both"
            )
    return tuple(faults)


def random_faults(
    seed: int,
    calls: int,
    hosts: int,
    lose: float = 0.01,
    delay: float = 0.01,
    slow: float = 0.1,
    mean_delay: float = 1e-3,
) -> tuple[Fault, ...]:
    """Return a random script: the first messages of links lost or late, hosts slow.

    Parameters
    ----------
    seed : int, >= 0
        The same seed gives the same script.
    calls, hosts : int, >= 1
    lose, delay : float, in [0, 1)
        The share of (call, link) pairs whose first message is lost once, or late.
    slow : float, in [0, 1)
        The share of hosts that are slow in every call, by a factor of 1 to 4.
    mean_delay : float, >= 0
        Seconds; delays are exponential.

    Returns
    -------
    tuple of fault records

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> script = random_faults(seed=0, calls=100, hosts=2)
    >>> script == random_faults(seed=0, calls=100, hosts=2)
    True
    """
    as_count(seed, "seed", 0)
    calls, hosts = as_count(calls, "calls"), as_count(hosts, "hosts")
    shares = {"lose": lose, "delay": delay, "slow": slow}
    for name, share in shares.items():
        as_number(share, name, 0, 1)
    as_number(mean_delay, "mean_delay")
    rng = np.random.default_rng(seed)
    script: list[Fault] = [
        SlowHost(host, 1 + 3 * float(rng.random())) for host in range(hosts) if rng.random() < slow
    ]
    for call in range(calls):
        for link in np.flatnonzero(rng.random(hosts * hosts) < lose + delay):
            source, target = divmod(int(link), hosts)
            if source == target:
                continue
            if rng.random() * (lose + delay) < lose:
                script.append(LoseMessage(call, source, target))
            else:
                seconds = float(rng.exponential(mean_delay))
                script.append(DelayMessage(call, source, target, seconds))
    return tuple(script)
