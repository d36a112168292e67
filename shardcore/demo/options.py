"""What the command line of the demo may say, its defaults, and its rules."""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from shardcore.errors import ShardcoreValueError, UnavailableError

__all__ = ["DemoOptions", "add_arguments", "options_of", "require_packages"]

_PACKAGES: Final = ("matplotlib", "tqdm")
_SIMULATED: Final = "sim"


@dataclass(frozen=True)
class DemoOptions:
    """All the choices of one run.

    Parameters
    ----------
    source : pathlib.Path or None
        Directory of Python files, None for the running Python's standard library.
    min_functions : int
        Smaller modules are left out.
    max_functions : int or None
        Where to stop reading, None for nowhere.
    buckets, dim : int
        Shape of the table.
    backend : str
    hosts, restore_hosts : int or None
        Simulated hosts that train, and that restore; None for a backend that simulates none.
    epochs, batch_size : int
    learning_rate : float
        Of both Adagrads, the table's and the dense layer's.
    seed : int
    output_dir : pathlib.Path
    checkpoint_dir : pathlib.Path or None
        None for a fresh directory in `output_dir`.
    short : bool
        Whether this is the short job, which also insists on its accuracy.
    """

    source: Path | None
    min_functions: int
    max_functions: int | None
    buckets: int
    dim: int
    backend: str
    hosts: int | None
    restore_hosts: int | None
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    output_dir: Path
    checkpoint_dir: Path | None
    short: bool

    def backend_options(self, hosts: int | None) -> dict[str, Any]:
        """Return the options of the backend that has so many hosts."""
        return {} if hosts is None else {"hosts": hosts}


_FULL: Final[dict[str, Any]] = {
    "min_functions": 30,
    "max_functions": None,
    "buckets": 2**20,
    "dim": 64,
    "epochs": 6,
    "batch_size": 128,
}
_SHORT: Final[dict[str, Any]] = {
    "min_functions": 30,
    "max_functions": 3000,
    "buckets": 2**15,
    "dim": 16,
    "epochs": 3,
    "batch_size": 64,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the demo's options on a parser."""
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
    add("--backend", default=_SIMULATED, metavar="NAME", help="default: sim")
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


def options_of(arguments: argparse.Namespace) -> DemoOptions:
    """Return the choices made on the command line, with the defaults of those not made.

    Raises
    ------
    ShardcoreValueError
        If a number of hosts is given for a backend that simulates none.
    """
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    hosts = {"hosts": 4, "restore_hosts": 3}
    if arguments.backend != _SIMULATED:
        for name in hosts:
            if name in given:
                raise ShardcoreValueError(
                    f"--{name.replace('_', '-')} is for the backend 'sim', "
                    f"got the backend {arguments.backend!r}"
                )
        hosts = {}
    optional: dict[str, Any] = dict.fromkeys(("source", "checkpoint_dir", "hosts", "restore_hosts"))
    merged = optional | (_SHORT if arguments.short else _FULL) | hosts | given
    return DemoOptions(**{field.name: merged[field.name] for field in fields(DemoOptions)})


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
                "pip install 'shardcore[demo]'"
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
