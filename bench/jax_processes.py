"""Two processes with a JAX device each, and one with both: ``python -m bench.jax_processes``.

A training step of four tables with the same samples: each of the two processes gives its own half
of them. All run on this machine, over loopback, and are started anew in each round; the first
steps, which compile, are not counted, and rows must agree at the end. The table gives medians over
the rounds: the time of a step, the ratio, and the CPU time of the thread that calls the engine, in
which ids are routed. No time makes it fail.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from time import perf_counter, thread_time
from typing import Any, Final

import numpy as np

__all__ = ["main"]

TABLES: Final = 4
ROWS: Final = 200_000
DIM: Final = 32
POOLING: Final = 20
DEVICES: Final = 2
WARM: Final = 5
"""Steps that compile, and that fill queues."""


def work(number: int, processes: int, port: int, samples: int, steps: int) -> dict[str, Any]:
    """Train as one of some processes; return seconds per step, and what rows have become."""
    import jax

    import shardcore as sc

    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
    options: dict[str, Any] = {"platform": "cpu", "devices": DEVICES, "exchange": "all_to_all"}
    if processes > 1:
        options["batches"] = "own"
    sc.set_num_threads(1)  # so that one thread's CPU time is all that routing takes
    tables = [
        sc.TableConfig(
            ROWS, DIM, initializer=sc.initializers.Constant(1.0), combiner="sum", name=f"t{at}"
        )
        for at in range(TABLES)
    ]
    draw = np.random.default_rng(3)
    own = slice(number * samples // processes, (number + 1) * samples // processes)
    batches = [
        {one.name: draw.integers(0, ROWS, (samples, POOLING))[own] for one in tables}
        for _ in range(4)
    ]
    gradients: dict[str, Any] = {}
    with sc.ShardedEmbedding(
        {one.name: sc.FeatureConfig(one) for one in tables},
        sc.optimizers.Adagrad(learning_rate=0.5),
        backend="pjrt",
        backend_options=options,
    ) as engine:

        def train(count: int) -> None:
            for step in range(count):
                engine.enqueue(batches[step % len(batches)])
                found = engine.dequeue()
                if not gradients:
                    gradients.update(
                        {name: jax.numpy.ones_like(one) for name, one in found.items()}
                    )
                engine.apply_gradients(gradients)
            engine.tables["t0"][:1]  # when the devices are done

        train(WARM)
        began, busy = perf_counter(), thread_time()
        train(steps)
        seconds, host = (perf_counter() - began) / steps, (thread_time() - busy) / steps
        rows = engine.tables["t1"][:1000].astype(np.float64).sum()
    return {"seconds": seconds, "host": host, "rows": rows}


def run(processes: int, samples: int, steps: int) -> list[dict[str, Any]]:
    """Start processes that do the same steps, and return what each has told."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    flags = (
        f"--xla_force_host_platform_device_count={DEVICES // processes} "
        "--xla_cpu_collective_timeout_seconds=60"
    )
    command = [sys.executable, "-m", "bench.jax_processes", "--worker"]
    started = [
        subprocess.Popen(
            [*command, *map(str, (number, processes, port, samples, steps))],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    told = [one.communicate()[0] for one in started]
    if any(one.returncode for one in started):
        raise SystemExit(f"a process ended with {[one.returncode for one in started]}")
    return [json.loads(one.splitlines()[-1]) for one in told]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.jax_processes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs")
    parser.add_argument("--steps", type=int, default=40, help="steps that count, of each run")
    parser.add_argument("--samples", type=int, default=4_096, help="of both processes together")
    parser.add_argument("--worker", type=int, nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if min(options.rounds, options.steps, options.samples - 1) < 1:
        parser.error("--rounds and --steps must be at least 1, --samples 2")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    options = arguments(argv)
    if options.worker:
        print(json.dumps(work(*options.worker)))
        return 0
    print(
        f"{TABLES} tables of {ROWS:,} x {DIM}, {options.samples:,} samples of {POOLING} ids in each"
    )
    print(f"{options.rounds} rounds of {options.steps} steps, {os.cpu_count()} cores", flush=True)
    alone: list[dict[str, Any]] = []
    both: list[list[dict[str, Any]]] = []
    for number in range(options.rounds):
        for processes in (1, 2) if number % 2 == 0 else (2, 1):
            told = run(processes, options.samples, options.steps)
            if processes == 1:
                alone += told
            else:
                both.append(told)
        rows = [alone[-1]["rows"], *(one["rows"] for one in both[-1])]
        np.testing.assert_allclose(rows, rows[0], rtol=1e-5)
        assert rows[0] != 1000 * DIM, "nothing was trained"
    seconds = [max(one["seconds"] for one in told) for told in both]
    ratios = sorted(two / one["seconds"] for two, one in zip(seconds, alone, strict=True))
    hosts = [statistics.mean(one["host"] for one in told) for told in both]
    print("\n|  | a step | of it, CPU time of the calling thread |\n|---|--:|--:|")
    for what, times, busy in (
        (
            "one process, two devices",
            [one["seconds"] for one in alone],
            [one["host"] for one in alone],
        ),
        ("two processes, a device each", seconds, hosts),
    ):
        print(f"| {what} | {1e3 * statistics.median(times):.1f} ms | ", end="")
        print(f"{1e3 * statistics.median(busy):.1f} ms |")
    print(f"\nratio {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
