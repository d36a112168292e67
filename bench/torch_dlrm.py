"""A small DLRM in torch, with plain torch's tables and with ours: the time of a whole step.

Six tables of a million rows and 32 columns, 2,048 samples with bags of 10 ids, their sums side by
side, an MLP 192 -> 128 -> 1 with SGD. The ids are Zipf's, as of words or clicks. Blocks of steps of
both take turns. Needs torch; nothing here is a test::

    python -m bench.torch_dlrm --rounds 10 --threads 2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from shardcore_bench.timing import Times, duration, take_turns

import shardcore as sc
import shardcore.torch as st

__all__ = ["main"]

TABLES: Final = 6
DIM: Final = 32
BATCHES: Final = 8


@dataclass(frozen=True)
class Sizes:
    rows: int
    batch: int
    pooling: int


def batches(sizes: Sizes, zipf: float) -> list[list[Any]]:
    """Return the ids of some batches: per table (batch, pooling)."""
    rng = np.random.default_rng(0)
    shape = (sizes.batch, sizes.pooling)

    def ids() -> Any:
        if zipf <= 1:
            return torch.from_numpy(rng.integers(0, sizes.rows, shape))
        drawn = rng.zipf(zipf, shape) * 2_654_435_761 % sizes.rows
        return torch.from_numpy(drawn.astype(np.int64))

    return [[ids() for _ in range(TABLES)] for _ in range(BATCHES)]


def mlp() -> tuple[Any, Any]:
    torch.manual_seed(0)
    top = torch.nn.Sequential(
        torch.nn.Linear(TABLES * DIM, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
    )
    return top, torch.optim.SGD(top.parameters(), lr=0.01)


def stepper(look_up: Callable[[list[Any]], Any], after: list[Any], data: Any) -> Callable[[], Any]:
    """Return a function that makes a whole step; `after` are the optimizers of the tables."""
    top, sgd = mlp()
    loss = torch.nn.BCEWithLogitsLoss()
    labels = (torch.rand(len(data[0][0]), 1) < 0.3).float()
    at = 0

    def step() -> None:
        nonlocal at
        ids, at = data[at % len(data)], at + 1
        for one in (sgd, *after):
            one.zero_grad()
        loss(top(look_up(ids)), labels).backward()
        for one in (sgd, *after):
            one.step()

    return step


def of_tables(look_up: Callable[[list[Any]], Any], after: list[Any], data: Any) -> Any:
    """Return a function that looks up and updates, without an MLP."""
    gradient = torch.randn(len(data[0][0]), TABLES * DIM) / len(data[0][0])
    at = 0

    def step() -> None:
        nonlocal at
        ids, at = data[at % len(data)], at + 1
        for one in after:
            one.zero_grad()
        look_up(ids).backward(gradient)
        for one in after:
            one.step()

    return step


def plain(sizes: Sizes, make: Callable[..., Any], sparse: bool) -> tuple[Any, list[Any]]:
    tables = [
        torch.nn.EmbeddingBag(sizes.rows, DIM, mode="sum", sparse=sparse) for _ in range(TABLES)
    ]
    optimizer = make([one.weight for one in tables])
    return lambda ids: torch.cat([one(bag) for one, bag in zip(tables, ids, strict=True)], dim=1), [
        optimizer
    ]


def modules(sizes: Sizes, optimizer: Any) -> tuple[Any, list[Any]]:
    tables = [
        st.EmbeddingBag(sizes.rows, DIM, mode="sum", optimizer=optimizer) for _ in range(TABLES)
    ]
    return lambda ids: torch.cat(
        [one(bag) for one, bag in zip(tables, ids, strict=True)], dim=1
    ), []


NAMES: Final = [f"f{at}" for at in range(TABLES)]


def tables_together(sizes: Sizes, optimizer: Any) -> st.EmbeddingBagCollection:
    """Return all tables as one module, with a feature of `NAMES` each."""
    tables = [st.EmbeddingBagConfig(sizes.rows, DIM, f"t{name}", [name]) for name in NAMES]
    return st.EmbeddingBagCollection(tables, optimizer=optimizer)


def collection(sizes: Sizes, optimizer: Any) -> tuple[Any, list[Any]]:
    bags = tables_together(sizes, optimizer)
    return lambda ids: bags(dict(zip(NAMES, ids, strict=True))).values(), []


CASES: Final[dict[str, tuple[Any, Any, bool]]] = {
    "SparseAdam": (
        lambda: sc.optimizers.Adam(preset="tpu"),
        lambda weights: torch.optim.SparseAdam(weights),
        True,
    ),
    "Adagrad, sparse": (
        lambda: sc.optimizers.Adagrad(0.01, initial_accumulator_value=0.0, epsilon=1e-10),
        lambda weights: torch.optim.Adagrad(weights),
        True,
    ),
    "SGD, sparse": (
        lambda: sc.optimizers.SGD(0.1),
        lambda weights: torch.optim.SGD(weights, lr=0.1),
        True,
    ),
    "Adam, dense and fused; lazy here": (
        lambda: sc.optimizers.Adam(preset="tpu"),
        lambda weights: torch.optim.Adam(weights, fused=True),
        False,
    ),
    "Adam, dense and fused; lazy_adam=False here": (
        lambda: sc.optimizers.Adam(preset="tpu", lazy_adam=False),
        lambda weights: torch.optim.Adam(weights, fused=True),
        False,
    ),
}


def shown(name: str, times: Times) -> str:
    low, high = times.spread
    ours, theirs = (sorted(one)[len(one) // 2] for one in (times.ours, times.theirs))
    return (
        f"{name:<58} {duration(ours):>8} {duration(theirs):>8}  "
        f"{times.ratio:5.2f} ({low:.2f} to {high:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--pooling", type=int, default=10)
    parser.add_argument("--zipf", type=float, default=1.05, help="1 or less: uniform")
    parser.add_argument("--only", default="", help="a part of the names of what is to be run")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sc.set_num_threads(args.threads)
    sizes = Sizes(args.rows, args.batch, args.pooling)
    data = batches(sizes, args.zipf)
    distinct = np.mean([np.unique(ids).size for ids in data[0]])
    print(f"{args.threads} threads, {sizes}, {distinct:.0f} distinct ids per table and batch")
    print(f"{'':<58} {'ours':>8} {'torch':>8}  ratio (quartiles)")
    for name, (ours, theirs, sparse) in CASES.items():
        if args.only not in name:
            continue
        peer = plain(sizes, theirs, sparse)
        for form, make in (("collection", collection), ("six modules", modules)):
            own = make(sizes, ours())
            for what, build in (("step", stepper), ("tables alone", of_tables)):
                label = f"{name}: {what}, {form}"
                times = take_turns(build(*own, data), build(*peer, data), args.rounds)
                print(shown(label, times), flush=True)


if __name__ == "__main__":
    main()
