"""The command line of ``shardcore bench``."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardcore.errors import ShardcoreValueError, UnavailableError
from shardcore.extras import pip_install
from shardcore_bench.cases import GROUPS
from shardcore_bench.compare import POLICIES, Options, compare
from shardcore_bench.peers import PEERS

__all__ = ["add_arguments", "options_of", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options on a parser."""
    add = parser.add_argument
    add("--quick", action="store_true", help="small tables, in a minute: to see that it works")
    add("--full", action="store_true", help="every case, both policies, 7 rounds: takes hours")
    add(
        "--only",
        nargs="+",
        choices=GROUPS,
        metavar="GROUP",
        help=f"of {', '.join(GROUPS)} (default: lookup step; quick and full: all)",
    )
    add(
        "--peers",
        nargs="+",
        choices=PEERS,
        metavar="PEER",
        default=list(PEERS),
        help=f"of {', '.join(PEERS)} (default: all that are installed)",
    )
    add("--threads", type=int, nargs="+", default=[1], metavar="N", help="a table for each")
    add("--rounds", type=int, metavar="N", help="pairs of blocks per line (default: 3; quick: 1)")
    add(
        "--policies",
        nargs="+",
        choices=POLICIES,
        help="of OpenMP's threads between calls (default: default; full: both)",
    )
    add("--picture", type=Path, metavar="FILE", help="draw the ratios too, as PNG, SVG or PDF")


def options_of(arguments: argparse.Namespace) -> Options:
    """Return what the command line asks for.

    Raises
    ------
    ShardcoreValueError
        If numbers are too small, or two options contradict each other.
    """
    if arguments.quick and arguments.full:
        raise ShardcoreValueError("--quick and --full exclude each other")
    rounds = arguments.rounds
    if rounds is None:
        rounds = 1 if arguments.quick else 7 if arguments.full else 3
    for name, number in (("--rounds", rounds), ("--threads", min(arguments.threads))):
        if number < 1:
            raise ShardcoreValueError(f"{name} must be at least 1, got {number}")
    everything = list(GROUPS) if arguments.quick or arguments.full else ["lookup", "step"]
    policies = POLICIES if arguments.full else POLICIES[:1]
    return Options(
        groups=arguments.only or everything,
        peers=arguments.peers,
        policies=arguments.policies or policies,
        size="quick" if arguments.quick else "full",
        threads=arguments.threads,
        rounds=rounds,
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the tables, and draw them where asked; return 1 where results differed, else 0."""
    options = options_of(arguments)
    if arguments.picture is not None:
        _require_matplotlib()
    report = compare(options)
    if arguments.picture is not None:
        from shardcore_bench.picture import draw  # imports what was just required

        draw(report.results, arguments.picture)
        print(f"\nThe ratios are drawn in {arguments.picture}.")
    return int(report.failed)


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401  # asked for before hours of measuring, not after
    except ImportError as error:
        raise UnavailableError(
            f"--picture needs the package matplotlib, which cannot be imported ({error}); "
            f"{pip_install('demo')}"
        ) from error
