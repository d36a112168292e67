"""The command line of ``shardcore demo``: its options, and the packages it needs."""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shardcore.errors import UnavailableError
from shardcore.extras import pip_install
from shardcore_demo.options import SIMULATED, options_of

__all__ = ["add_arguments", "require_packages", "run"]

_PACKAGES: Final = ("matplotlib", "tqdm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the demo's options on a parser."""
    parser.description = (
        f"{str(parser.description).capitalize()}, on a sharded table; then save, restore on "
        "another number of hosts, compare, and draw what was learned."
    )
    add = parser.add_argument
    positive = _integer(1)
    add(
        "--source",
        type=Path,
        metavar="DIR",
        help="learn from the Python files of another "
        "directory; a module is a top-level entry below it (default: the standard library)",
    )
    add(
        "--min-functions",
        type=positive,
        metavar="N",
        help="leave out modules with fewer functions (default: 30)",
    )
    add(
        "--buckets",
        type=positive,
        metavar="N",
        help="rows of the table (default: 1048576; short: 32768)",
    )
    add("--dim", type=positive, metavar="N", help="columns of the table (default: 64; short: 16)")
    add("--backend", default=SIMULATED, metavar="NAME", help="default: sim")
    add("--hosts", type=positive, metavar="N", help="simulated hosts that train (default: 4)")
    add(
        "--restore-hosts",
        type=positive,
        metavar="N",
        help="simulated hosts onto which the checkpoint is restored (default: 3)",
    )
    add("--epochs", type=positive, metavar="N", help="default: 6; short: 3")
    add(
        "--batch-size",
        type=positive,
        metavar="N",
        help="functions per step (default: 128; short: 64)",
    )
    add("--learning-rate", type=_rate, default=0.5, metavar="RATE", help="default: 0.5")
    add("--seed", type=_integer(0), default=0, metavar="N", help="default: 0")
    add(
        "--output-dir",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="where the picture goes (default: demo-output)",
    )
    add(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="where the checkpoint of the newest "
        "epoch goes; must hold none yet (default: a fresh directory in --output-dir)",
    )
    add(
        "--short",
        action="store_true",
        help="a job of a few seconds: the first 3,000 functions, "
        "a small table, three epochs, and an error if it learned too little",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the demo as the command line asks for it."""
    options = options_of(arguments)
    require_packages()
    from shardcore_demo.run import run_demo  # imports what was just required

    run_demo(options)


def require_packages() -> None:
    """Raise unless the packages of the extra ``demo`` can be imported.

    Raises
    ------
    UnavailableError
        If one cannot.
    """
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UnavailableError(
                f"shardcore demo needs the package {name}, which cannot be imported ({error}); "
                f"{pip_install('demo')}"
            ) from error


def _integer(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"must be an integer >= {low}, got {text!r}")
        return int(text)

    return parse


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number > 0, got {text!r}")
    return rate
