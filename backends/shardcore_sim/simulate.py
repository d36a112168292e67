"""The command that estimates how a model would do on many hosts: a table, and a picture.

``python -m shardcore_sim.simulate --help`` lists its arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from shardcore.errors import (
    ShardcoreError,
    ShardcoreOSError,
    ShardcoreValueError,
    UnavailableError,
)
from shardcore.extras import pip_install
from shardcore.planning import example_model, load_model
from shardcore_sim.cost import CostModel, calibrate
from shardcore_sim.estimate import HOSTS, Estimate, simulate

__all__ = ["add_arguments", "as_text", "main", "picture", "run"]

_COLUMNS: Final[tuple[tuple[str, Callable[[Estimate], str]], ...]] = (
    ("hosts", lambda one: f"{one.hosts}"),
    ("step ms", lambda one: f"{1e3 * one.step_seconds:.3f}"),
    ("lookup ms", lambda one: f"{1e3 * one.lookup_seconds:.3f}"),
    ("apply ms", lambda one: f"{1e3 * one.apply_seconds:.3f}"),
    ("traffic MB", lambda one: f"{one.bytes / 1e6:.2f}"),
    ("busiest host MB", lambda one: f"{one.busiest_bytes / 1e6:.2f}"),
    ("messages", lambda one: f"{one.messages}"),
    ("imbalance", lambda one: f"{one.row_imbalance:.2f}"),
    ("memory GB", lambda one: f"{one.host_bytes / 1e9:.3f}" + ("" if one.fits else " (too much)")),
)


def as_text(estimates: Sequence[Estimate]) -> str:
    """Return estimates as a table, a line per number of hosts."""
    lines = [[name for name, _ in _COLUMNS]]
    lines += [[show(one) for _, show in _COLUMNS] for one in estimates]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def picture(estimates: Sequence[Estimate], path: str | Path) -> None:
    """Draw estimates over the number of hosts.

    Parameters
    ----------
    estimates : sequence of Estimate
    path : path of the picture; its ending gives the format

    Raises
    ------
    UnavailableError
        If matplotlib is not installed.
    ShardcoreValueError
        If matplotlib does not support the format.
    ShardcoreOSError
        If it cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError(
            f"a picture needs the package matplotlib; {pip_install('demo')}"
        ) from error
    hosts = [one.hosts for one in estimates]
    figure: Any = Figure(figsize=(9, 6), layout="constrained")
    panels = (
        ("step, milliseconds", [1e3 * one.step_seconds for one in estimates]),
        ("busiest host, MB a step", [one.busiest_bytes / 1e6 for one in estimates]),
        ("imbalance of rows", [one.row_imbalance for one in estimates]),
        ("fullest host, GB", [one.host_bytes / 1e9 for one in estimates]),
    )
    for axes, (title, values) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        axes.plot(hosts, values, marker="o")
        axes.set_xscale("log", base=2)
        axes.set_title(title)
        axes.set_xlabel("hosts")
        axes.set_ylim(bottom=0)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ShardcoreValueError(f"picture {path} cannot be drawn: {error}") from error
    except OSError as error:
        raise ShardcoreOSError(f"picture {path} cannot be written: {error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    default = "DLRM-DCNv2 of MLPerf if not given"
    parser.add_argument(
        "model", nargs="?", metavar="MODEL.toml", help=f"description of the model; {default}"
    )
    parser.add_argument("--hosts", metavar="N,N,...", help="numbers of hosts; 1,2,4,...,4096")
    parser.add_argument("--batch", type=int, metavar="N", help="samples of a step, over all hosts")
    parser.add_argument(
        "--ids", metavar="DISTRIBUTION", help="uniform, zipf:<exponent> or reuse:2021|2022"
    )
    for name, values in (
        ("placement", ("row", "table", "column", "replicated")),
        ("exchange", ("exact", "partial")),
        ("layout", ("div", "mod")),
    ):
        parser.add_argument(f"--{name}", choices=values, help=f"{name} of all tables")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure what memory and sorting cost on this machine first",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the ids; 0")
    parser.add_argument("--picture", metavar="FILE", help="draw the table too (needs matplotlib)")


def run(arguments: argparse.Namespace) -> None:
    """Run the command: print the table, and draw the picture if one is asked for.

    Raises
    ------
    ShardcoreError
        If an argument or the model breaks a rule.
    """
    overrides = {
        key: getattr(arguments, key)
        for key in ("batch", "ids", "placement", "exchange", "layout")
        if getattr(arguments, key) is not None
    }
    hosts = HOSTS if arguments.hosts is None else _read_hosts(arguments.hosts)
    model = load_model(arguments.model or example_model(), overrides)
    cost = calibrate() if arguments.calibrate else CostModel()
    print(
        f"{len(model.tables)} tables, {sum(table.spec.num_rows for table in model.tables)} rows, "
        f"batch {model.batch}, ids {model.ids.text}\n"
        f"latency {1e6 * cost.latency:.1f} us, network {cost.bandwidth / 1e9:.1f} GB/s, "
        f"memory {cost.memory_bandwidth / 1e9:.1f} GB/s and {1e9 * cost.row_latency:.1f} ns a row, "
        f"sorting {1e9 * cost.sort_seconds:.1f} ns an id\n"
    )
    estimates = simulate(model, hosts, cost, arguments.seed)
    print(as_text(estimates))
    if arguments.picture is not None:
        picture(estimates, arguments.picture)


def _read_hosts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ShardcoreValueError(
            f"--hosts must be integers >= 1 with commas between them, got {text!r}"
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return 0, or 2 after an error."""
    parser = argparse.ArgumentParser(
        prog="python -m shardcore_sim.simulate",
        description="Estimate a training step of a model on many hosts.",
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        run(arguments)
    except ShardcoreError as error:
        print(f"simulate: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
