"""The command that checks whether a model fits on a TPU topology, with no TPU.

It compiles what the backend would run, for the topology, and adds up what a device needs. See
``shardcore plan --help``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from shardcore.errors import (
    BrokenPluginError,
    ShardcoreError,
    ShardcoreValueError,
    UnavailableError,
)
from shardcore.extras import pip_install
from shardcore.planning import Model, example_model, load_model
from shardcore.validation import as_count
from shardcore_pjrt.planning.fits import Plan, compiled_plan, smallest_plan
from shardcore_pjrt.planning.needs import TableNeeds
from shardcore_pjrt.planning.sparsecore_needs import EXCHANGE
from shardcore_pjrt.planning.topologies import topology

__all__ = ["add_arguments", "as_json", "as_text", "main", "run"]

_FITS, _FITS_NOT, _FAILED = 0, 1, 2

_COLUMNS: Final[tuple[tuple[str, Callable[[TableNeeds], str]], ...]] = (
    ("table", lambda one: _named(one)),
    ("placement", lambda one: one.placement),
    ("device", lambda one: "all" if one.home is None else f"{one.home}"),
    ("exchange", lambda one: one.exchange or "-"),
    ("table", lambda one: _mib(one.table)),
    ("slots", lambda one: _mib(one.slots)),
    ("batch", lambda one: _mib(one.batch)),
    ("temporaries", lambda one: _mib(one.temporaries) if one.exchange else "-"),
    ("programs", lambda one: _mib(one.code) if one.exchange else "-"),
    ("seconds", lambda one: f"{one.seconds:.1f}" if one.exchange else "-"),
)
_WORDS: Final = 4  # columns before the first number
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?=$)|\d+(?:\.\d+)?(?= ?[KMGT]iB)) ?([KMGT]iB)?")
# What libtpu would ask a server for, and where there is none complain about on stderr, at whatever
# level of its log. It has no bearing on topologies by name; errors are told as before.
_QUIET: Final = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f}"


def _named(one: TableNeeds) -> str:
    return f"{one.name} and {one.others} more" if one.others else one.name


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{_mib(nbytes)} MiB"


def as_text(model: Model, plan: Plan, smallest: Plan | None) -> str:
    """Return a plan as text.

    Parameters
    ----------
    model : Model
    plan : Plan
        Of the topology that was asked for.
    smallest : Plan or None
        Of the smallest listed topology that fits; None: there is none.
    """
    return f"{_needs(model, plan)}\n{_smallest(plan, smallest)}"


def _needs(model: Model, plan: Plan) -> str:
    """Return what is known once the topology that was asked for has been tried."""
    where = plan.topology
    per_chip = f", {where.devices_per_chip} devices a chip" if where.devices_per_chip > 1 else ""
    lines = [
        f"{where.name}: {where.chips} chips{per_chip}, {_size(where.hbm)} for programs on each "
        "device",
        f"{plan.described(len(model.tables))}, "
        f"{sum(one.spec.num_rows for one in model.tables)} rows, "
        f"batch {model.batch}, ids {model.ids.text}",
    ]
    tried = [plan] if plan.other is None else sorted((plan, plan.other), key=lambda p: p.by_rank)
    which = "" if plan.other is None else f", with {_ids(tried[0])}"
    lines += [
        "",
        f"MiB on each device that holds the table, and seconds to compile{which}",
        *_table(tried[0].tables),
        "",
    ]
    if plan.other is not None:
        pairs = zip(tried[0].tables, tried[1].tables, strict=True)
        others = [two for one, two in pairs if replace(two, seconds=one.seconds) != one]
        if others:
            lines += [f"and with {_ids(tried[1])}, where it differs", *_table(others), ""]
        lines.append("; ".join(f"with {_ids(one)}: {_room(one)}" for one in tried))
    lines += [f"on device {plan.fullest}, the fullest: {_sums(plan)}", _verdict(plan), _blame(plan)]
    return "\n".join(lines)


def _ids(plan: Plan) -> str:
    return "ids by rank" if plan.by_rank else "ids scattered"


def _room(plan: Plan) -> str:
    return f"{_size(plan.needed)} of {_size(plan.topology.hbm)}"


def _smallest(plan: Plan, smallest: Plan | None, unknown: str = "") -> str:
    """Return what the search has found, or why there was none."""
    found = f"not known: {unknown}" if unknown else f"none of {plan.topology.generation}"
    if smallest is not None:
        found = f"{smallest.topology.name}, with {_room(smallest)} on each device"
    return f"smallest listed topology that fits: {found}"


def _table(tables: Sequence[TableNeeds]) -> list[str]:
    rows = [[name for name, _ in _COLUMNS]]
    rows += [[show(one) for _, show in _COLUMNS] for one in tables]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < _WORDS else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _on_fullest(plan: Plan) -> dict[str, int]:
    """Return what the fullest device needs, by kind."""
    device = plan.fullest
    held = [one for one in plan.tables if one.home in (None, device)]
    return {
        "reserve": plan.reserve,
        "tables": sum(one.table for one in held),
        "slots": sum(one.slots for one in held),
        "batch": sum(one.batch for one in held)
        + sum(one.elsewhere for one in plan.tables if one not in held),
        "temporaries": max((one.temporaries for one in held), default=0),
        "programs": sum(one.code for one in held),
    }


def _sums(plan: Plan) -> str:
    sums = _on_fullest(plan)
    unknown = () if plan.compiled else ("temporaries", "programs")
    known = [kind for kind in sums if kind not in unknown and (kind != "reserve" or sums[kind])]
    return ", ".join(f"{kind} {_size(sums[kind])}" for kind in known)


def _verdict(plan: Plan) -> str:
    if plan.fits:
        return f"fits: {_room(plan)}"
    if not plan.compiled:
        return f"does not fit: at least {_room(plan)}, so nothing was compiled"
    only = f" with {_ids(plan)}" if plan.other is not None and plan.other.fits else ""
    largest = plan.largest
    if largest.refused and largest.exchange == EXCHANGE and not largest.seconds:
        return f"does not fit{only}: SparseCores cannot take a batch"
    if largest.refused:
        return f"does not fit{only}: the compiler refused a program"
    return f"does not fit{only}: {_room(plan)}"


def _blame(plan: Plan) -> str:
    one = plan.largest
    which = f"table {one.name!r}"
    if one.others:
        which += f" and {one.others} more that lie with it"
    blame = f"most is taken by {which}: {_size(one.total)}, {_size(one.table)} of rows"
    if one.refused:
        blame = f"to blame is {which}: {one.refused.removesuffix('.')}"
    if one.placement in ("table", "replicated") and not plan.fits:
        blame += f"; it is placed {one.placement!r}, placement 'row' would cut it"
    return blame


def as_json(model: Model, plan: Plan, smallest: Plan | None, unknown: str = "") -> str:
    """Return a plan as JSON; bytes are those of one device.

    Parameters
    ----------
    model : Model
    plan : Plan
    smallest : Plan or None
    unknown : str
        Why there was no search for it; "" if there was.
    """
    described = {
        "topology": asdict(plan.topology),
        "devices": plan.topology.devices,
        "batch": model.batch,
        "strategy": model.strategy,
        "fits": plan.fits,
        "compiled": plan.compiled,
        "needed": plan.needed,
        "available": plan.topology.hbm,
        "reserve": plan.reserve,
        "needed_by_ids": {
            "by_rank" if one.by_rank else "scattered": one.needed
            for one in (plan, plan.other)
            if one is not None and one.compiled
        },
        "fullest_device": plan.fullest,
        "on_fullest_device": _on_fullest(plan),
        "largest_table": plan.largest.name,
        "smallest_topology": None if smallest is None else smallest.topology.name,
        "smallest_topology_unknown": unknown,
        "tables": [asdict(one) for one in plan.tables],
    }
    return json.dumps(described, indent=2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.epilog = (
        "The exit code is 0 if the model fits, 1 if it does not, 2 after an error. Needs libtpu, "
        f"{pip_install('tpu')}, but no TPU, unless the tables alone are too large. Where "
        "there is none, ALLOW_MULTIPLE_LIBTPU_LOAD=1 lets several processes compile at a time."
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL.toml",
        help="description of the model; DLRM-DCNv2 of MLPerf if not given",
    )
    parser.add_argument(
        "--topology", required=True, metavar="NAME", help="such as v5e:4x4 or v5p:2x2x1"
    )
    parser.add_argument("--batch", type=int, metavar="N", help="samples of a step, over all chips")
    parser.add_argument(
        "--ids", metavar="DISTRIBUTION", help="uniform, zipf:<exponent> or reuse:2021|2022"
    )
    parser.add_argument("--optimizer", metavar="NAME", help="of all tables; '' for lookups only")
    for name, values in (
        ("placement", ("row", "table", "column", "replicated")),
        ("layout", ("div", "mod")),
    ):
        parser.add_argument(f"--{name}", choices=values, help=f"{name} of all tables")
    parser.add_argument(
        "--strategy",
        choices=("sparsecore",),
        help="of the backend: tables in the SparseCores of v5p, v6e or tpu7x",
    )
    parser.add_argument(
        "--reserve",
        default="0",
        metavar="SIZE",
        help="of each device for the rest of the model, its gradients and optimizer: bytes, or "
        "such as 512MiB, 1.5GiB",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the ids; 0")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command: print the plan; return 0 if the model fits, else 1.

    Raises
    ------
    ShardcoreError
        If an argument or the model breaks a rule, or libtpu cannot be used.
    """
    asked = topology(arguments.topology)
    overrides: dict[str, Any] = {
        key: getattr(arguments, key)
        for key in ("batch", "ids", "optimizer", "placement", "layout", "strategy")
        if getattr(arguments, key) is not None
    }
    seed = as_count(arguments.seed, "seed", 0)
    reserve = _as_bytes(arguments.reserve)
    model = load_model(arguments.model or example_model(), overrides)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    plan = compiled_plan(model, asked, seed, _tell, reserve)
    # The verdict is out before the search, which may compile for minutes.
    if arguments.json:
        _tell(_verdict(plan))
    else:
        print(_needs(model, plan), flush=True)
    smallest, unknown = None, ""
    try:
        smallest = smallest_plan(model, plan, seed, _tell)
    except (UnavailableError, BrokenPluginError) as error:  # the verdict needed no compiler
        unknown = " ".join(str(error).split())
    if arguments.json:
        print(as_json(model, plan, smallest, unknown))
    else:
        print(_smallest(plan, smallest, unknown))
    return _FITS if plan.fits else _FITS_NOT


def _as_bytes(text: str) -> int:
    """Return a size as bytes.

    Examples
    --------
    >>> _as_bytes("1000"), _as_bytes("1.5 GiB")
    (1000, 1610612736)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ShardcoreValueError(
            "reserve must be a count of bytes, or a number of KiB, MiB, GiB or TiB such as "
            f"512MiB, got {text!r}"
        )
    number, unit = found[1], found[2]
    return int(number) if unit is None else int(float(number) * _UNITS[unit])


def _tell(line: str) -> None:
    print(f"plan: {line}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return 0, 1 if the model does not fit, or 2 after an error."""
    parser = argparse.ArgumentParser(
        prog="python -m shardcore_pjrt.planning.plan",
        description="Check whether a model fits on a TPU topology, by compiling for it.",
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        return run(arguments)
    except ShardcoreError as error:
        print(f"plan: error: {' '.join(str(error).split())}", file=sys.stderr)
        return _FAILED


if __name__ == "__main__":
    sys.exit(main())
