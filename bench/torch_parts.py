"""Where the time of a step of `bench.torch_dlrm` goes, with our tables, and what its bytes cost.

The parts are timed inside the step, from the outermost to the kernels; of each the least and the
median over many steps. Least times are those that other programs have disturbed least, and need
not add up. The floor is `shardcore_bench`'s: the rows of a batch read, and rows and slots read and
written, by a C program that computes nothing. Needs torch and a C compiler; nothing here is a
test::

    python -m bench.torch_parts --optimizer Adam --threads 1
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from shardcore_bench.peers.machine import Machine
from shardcore_bench.tasks import Bags, LookupTask, StepTask, Update

import shardcore as sc
from bench.torch_dlrm import DIM, NAMES, Sizes, batches, mlp, tables_together

__all__ = ["main"]

OPTIMIZERS: Final[dict[str, Callable[[], Any]]] = {
    "Adam": lambda: sc.optimizers.Adam(preset="tpu"),
    "Adagrad": lambda: sc.optimizers.Adagrad(0.01, initial_accumulator_value=0.0, epsilon=1e-10),
    "SGD": lambda: sc.optimizers.SGD(0.1),
}


class Parts:
    """The seconds of each part, and of each step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Take the time of a method from now on."""
        method = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            return self.call(part, method, *arguments, **named)

        setattr(owner, name, timed)

    def call(self, part: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        start = perf_counter()
        found = function(*arguments, **named)
        self.seconds[part].append(perf_counter() - start)
        return found

    def shown(self, part: str) -> str:
        ordered = sorted(self.seconds[part])
        least, median = ordered[0], ordered[len(ordered) // 2]
        return f"{part:<58} {least * 1e3:8.2f} {median * 1e3:8.2f}"


def floors(data: list[list[Any]], sizes: Sizes, optimizer: str, parts: Parts, steps: int) -> int:
    """Time what the bytes of a batch cost, table by table; return how many rows are updated."""
    machine = Machine()
    machine.set_num_threads(sc.get_num_threads())
    rng = np.random.default_rng(0)
    rows = np.zeros((sizes.rows, DIM), np.float32)
    rows[...] = rng.random(DIM, dtype=np.float32)
    splits = np.arange(sizes.batch + 1, dtype=np.int64) * sizes.pooling
    gradient = np.ones((sizes.batch, DIM), np.float32)
    reads, both, distinct = [], [], 0
    for ids in data[0]:
        flat = ids.numpy().reshape(-1).astype(np.int64)
        distinct += np.unique(flat).size
        reads.append(machine.lookup(LookupTask(rows, flat, splits)).run)
        bags = Bags(0, flat, splits, gradient)
        both.append(machine.step(StepTask([rows], [bags], Update(optimizer))).run)

    def each(runs: list[Any]) -> None:
        for run in runs:
            run()

    for _ in range(steps):
        parts.call("floor: rows read", each, reads)
        parts.call("floor: rows read, then rows and slots read and written", each, both)
    return distinct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="Adam")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--pooling", type=int, default=10)
    parser.add_argument("--zipf", type=float, default=1.05, help="1 or less: uniform")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sc.set_num_threads(args.threads)
    sizes = Sizes(args.rows, args.batch, args.pooling)
    data = batches(sizes, args.zipf)
    parts = Parts()
    distinct = floors(data, sizes, args.optimizer, parts, args.steps // 10)

    bags = tables_together(sizes, OPTIMIZERS[args.optimizer]())
    engine = bags.engine
    top, sgd = mlp()
    loss = torch.nn.BCEWithLogitsLoss()
    labels = (torch.rand(sizes.batch, 1) < 0.3).float()

    def of_mlp(side_by_side: Any) -> Any:
        inside = side_by_side.detach().requires_grad_()
        sgd.zero_grad()
        loss(top(inside), labels).backward()
        sgd.step()
        return inside.grad

    def step(ids: list[Any]) -> None:
        found = parts.call("lookup by the module", bags, dict(zip(NAMES, ids, strict=True)))
        joined = parts.call("activations side by side", found.values)
        gradient = parts.call("MLP, forward and backward, and its SGD", of_mlp, joined)
        parts.call("backward of the tables", joined.backward, gradient)

    step(data[0])
    parts.watch(engine, "lookup", ". of it in the engine")
    parts.watch(engine._backend, "lookup", ". . of it in the kernels: rows summed, ids sorted")
    parts.watch(engine._training, "apply_one", ". of it in the engine, backward")
    parts.watch(
        engine._backend, "apply", ". . of it in the kernels: gradients summed, rows updated"
    )
    for part in ("lookup by the module", "activations side by side", "backward of the tables"):
        parts.seconds[part].clear()
    parts.seconds["MLP, forward and backward, and its SGD"].clear()
    for number in range(args.steps):
        parts.call("a step", step, data[number % len(data)])

    print(f"{args.optimizer}, {args.threads} threads, {sizes}, {distinct} rows updated per step")
    print(f"{'':<58} {'least ms':>8} {'median':>8}")
    for part in (
        "a step",
        "lookup by the module",
        ". of it in the engine",
        ". . of it in the kernels: rows summed, ids sorted",
        "activations side by side",
        "MLP, forward and backward, and its SGD",
        "backward of the tables",
        ". of it in the engine, backward",
        ". . of it in the kernels: gradients summed, rows updated",
        "floor: rows read",
        "floor: rows read, then rows and slots read and written",
    ):
        print(parts.shown(part), flush=True)


if __name__ == "__main__":
    main()
