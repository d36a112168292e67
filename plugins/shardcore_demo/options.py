"""The choices of one run, their defaults and their rules."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from shardcore.errors import ShardcoreValueError

__all__ = ["SIMULATED", "DemoOptions", "options_of"]

SIMULATED: Final = "sim"


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


def options_of(arguments: argparse.Namespace) -> DemoOptions:
    """Return the choices made on the command line, with the defaults of those not made.

    Raises
    ------
    ShardcoreValueError
        If a number of hosts is given for a backend that simulates none.
    """
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    hosts = {"hosts": 4, "restore_hosts": 3}
    if arguments.backend != SIMULATED:
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
