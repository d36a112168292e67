"""One table on an accelerator, in a process of its own: ``python -m bench.accelerator_case``.

A process per table gives all its memory back, and one that fails or hangs takes no other with it.
`bench.accelerator` starts it with a case as JSON and a file that gets a line of JSON per result.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from .accelerator_anchor import TritonUpdate
from .accelerator_contenders import PEERS as PLAIN_PEERS
from .accelerator_contenders import Contender, Engine, Programs
from .accelerator_workload import DISTRIBUTIONS, OPTIMIZERS, Case, expected_of, ids_of

__all__ = ["main", "rounds_of"]

PEERS: Final = (*PLAIN_PEERS, TritonUpdate)
MEMORY_USED: Final = 0.9
"""Of the memory there is, what tables may take."""


def memory_of(platform: str) -> int:
    """Return the bytes that tables of this process may take, of a device or of the host."""
    from shardcore_pjrt.platform.installation import devices_of

    stats = devices_of(platform, 1)[0].memory_stats() if platform != "cpu" else None
    if stats is not None:
        return int(stats["bytes_limit"])
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    sizes = dict(line.split(":") for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024


def copy_bandwidth(platform: str, memory: int) -> float:
    """Return bytes per second, read and written, of the fastest pass over a large array."""
    import jax
    from shardcore_pjrt.platform.installation import devices_of

    values = min(2**29, memory // 64)
    (device,) = devices_of(platform, 1)
    array = jax.device_put(np.ones(values, np.float32), device)
    negative = jax.jit(jax.numpy.negative)
    negative(array).block_until_ready()
    seconds = []
    for _ in range(10):
        start = perf_counter()
        negative(array).block_until_ready()
        seconds.append(perf_counter() - start)
    return 2 * 4 * values / min(seconds)


def take(contender: Contender, calls: int) -> float:
    """Return the seconds of one of `calls` calls, with one wait at their end."""
    found = None
    start = perf_counter()
    for _ in range(calls):
        found = contender.call()
    contender.wait(found)
    return (perf_counter() - start) / calls


def rounds_of(
    contenders: Sequence[Contender], rounds: int, sample_seconds: float, late: Callable[[], bool]
) -> list[list[float]]:
    """Return the seconds of each contender, a sample per round; odd rounds go backwards.

    At least one round is measured; no other is begun once it is `late`.
    """
    calls = []
    for contender in contenders:
        take(contender, 2)
        calls.append(max(1, round(sample_seconds / take(contender, 2))))
    pairs = [(one, count, list[float]()) for one, count in zip(contenders, calls, strict=True)]
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            if number and late():
                break
            for contender, count, seconds in pairs if number % 2 == 0 else reversed(pairs):
                seconds.append(take(contender, count))
    finally:
        gc.enable()
    return [seconds for _, _, seconds in pairs]


class Measurement:
    """All that is measured of one case, each result told as soon as it is known."""

    def __init__(self, case: Case, tell: Callable[[dict[str, Any]], None]) -> None:
        self.case, self.tell = case, tell
        self._end = perf_counter() + case.seconds
        self._memory = memory_of(case.platform)
        self._bandwidth = copy_bandwidth(case.platform, self._memory)
        tell({"kind": "copy", "table": case.table, "bytes_per_second": self._bandwidth})

    def late(self) -> bool:
        return perf_counter() > self._end

    def run(self) -> None:
        for ours, from_host in ((Programs, False), (Engine, True)):
            for optimizer in (None, *OPTIMIZERS):
                for distribution in DISTRIBUTIONS:
                    self._compare_or_tell(ours, optimizer, distribution, from_host)

    def _compare_or_tell(
        self, ours: type[Contender], optimizer: str | None, distribution: str, from_host: bool
    ) -> None:
        """Let a failure, such as memory that ran out, keep no other comparison from being made."""
        about = self._about(ours, optimizer, distribution)
        try:
            self.compare(ours, optimizer, distribution, from_host)
        except Exception as error:
            traceback.print_exc()
            text = (str(error).strip().splitlines() or [""])[0]
            self.tell({"kind": "failed", **about, "why": f"{type(error).__name__}: {text}"})

    def _about(
        self, ours: type[Contender], optimizer: str | None, distribution: str
    ) -> dict[str, str]:
        name = f"{'lookup' if optimizer is None else f'step {optimizer}'}, {distribution}"
        return {"case": name, "table": self.case.table, "ours": ours.what}

    def compare(
        self,
        ours: type[Contender],
        optimizer: str | None,
        distribution: str,
        from_host: bool,
    ) -> None:
        """Check and measure one way of ours and the peers, or tell why not."""
        case = self.case
        about = self._about(ours, optimizer, distribution)
        if self.late():
            self.tell({"kind": "left out", **about, "why": "no time was left"})
            return
        each = case.table_bytes * (2 if optimizer == "Adagrad" else 1)
        room = int(MEMORY_USED * self._memory) // each
        if room < 1:
            self.tell({"kind": "left out", **about, "why": f"{each:,} bytes do not fit"})
            return
        ids = ids_of(case, distribution)
        contenders: list[Contender] = []
        try:
            for kind in (ours, *PEERS):
                why = kind.missing(case.platform)
                if why is None and len(contenders) >= room:
                    why = f"{each:,} bytes more do not fit"
                if why is not None:
                    self.tell({"kind": "left out", **about, "peer": kind.what, "why": why})
                    continue
                contenders.append(kind(case, ids, optimizer, from_host))
                self._check(contenders[-1])
            seconds = rounds_of(contenders, case.rounds, case.sample_seconds, self.late)
            prepared = contenders[0].preparing
        finally:
            for contender in contenders:
                contender.close()
        self.tell(
            {
                "kind": "measured",
                **about,
                **self._result(contenders, seconds, optimizer, ids, prepared),
            }
        )

    def _check(self, contender: Contender) -> None:
        """Let a contender do the work once and compare some of it with NumPy."""
        expected = expected_of(
            self.case, contender.ids, contender.optimizer or "SGD", contender.starts_from_zeros
        )
        found = contender.call()
        contender.wait(found)
        expected.check_activations(contender.bags_of(found, expected.bags), contender.what)
        if contender.optimizer is not None:
            expected.check_rows(contender.rows_of(expected.rows), contender.what)

    def _result(
        self,
        contenders: Sequence[Contender],
        seconds: list[list[float]],
        optimizer: str | None,
        ids: Any,
        prepared: float,
    ) -> dict[str, Any]:
        case = self.case
        result: dict[str, Any] = {
            "median": statistics.median(seconds[0]),
            "min": min(seconds[0]),
            "rounds": len(seconds[0]),
            "peers": {
                contender.what: {
                    "median": statistics.median(theirs),
                    "min": min(theirs),
                    "theirs_to_ours": statistics.median(
                        one / other for one, other in zip(theirs, seconds[0], strict=True)
                    ),
                }
                for contender, theirs in zip(contenders[1:], seconds[1:], strict=True)
            },
        }
        result["preparing"] = prepared
        for contender in contenders[1:]:
            peer = result["peers"][contender.what]
            # The peers sort in every call; what we have sorted before is added for that.
            peer["theirs_to_ours_with_preparing"] = peer["median"] / (result["median"] + prepared)
        for name, rows in (
            ("", np.unique(ids).size),
            ("_counting_every_occurrence", ids.size),
        ):
            moved = floor_bytes(case, rows, optimizer)
            result[f"floor_bytes{name}"] = moved
            result[f"of_floor{name}"] = moved / self._bandwidth / result["median"]
        return result


def floor_bytes(case: Case, rows: int, optimizer: str | None) -> int:
    """Return the least that must move, if `rows` rows are fetched: no cache keeps one for later.

    A lookup reads the rows and the ids and writes the activations. A step does so, reads the
    gradients and ids again, and reads and writes the rows and what its optimizer keeps of each.
    """
    once = rows * case.dim
    lookup = once + case.occurrences + case.bags * case.dim
    if optimizer is None:
        return 4 * lookup
    arrays = 2 if optimizer == "Adagrad" else 1
    return 4 * (lookup + case.bags * case.dim + case.occurrences + 2 * arrays * once)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one case; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator_case", description=__doc__)
    parser.add_argument("case", help="as Case.to_json writes it")
    parser.add_argument("results", type=Path, help="a file; results are appended")
    options = parser.parse_args(argv)
    with options.results.open("a", encoding="utf-8") as file:

        def tell(result: dict[str, Any]) -> None:
            file.write(json.dumps(result) + "\n")
            file.flush()

        Measurement(Case.from_json(options.case), tell).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
