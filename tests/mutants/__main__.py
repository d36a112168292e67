"""Plant each fault of a list, one at a time, in a copy of the tree, and run the tests for it.

A fault that its tests do not find has survived: a proof is missing. ``python tests/mutants --help``
tells the options; `fault_list` tells what an entry holds. The exit status is 0 if every fault was
found, and 1 if one survived, does not fit the sources any more, or could not be tried. A fault
that needs a module which is not installed here is left out, and the last line counts it.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from anchors import find_place, find_tests, planted
from fault_list import Fault, FaultListError, read_faults
from trees import Ended, TreeError, Trees

HERE = Path(__file__).resolve().parent
_FAILED, _SHOWN = 1, 3000

Tests = tuple[tuple[str, ...], str]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/mutants", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="only faults whose part or name holds one of these"
    )
    parser.add_argument("--list", action="store_true", help="print the faults and end")
    parser.add_argument("--check", action="store_true", help="only look every fault up")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of those to try, by chance")
    parser.add_argument("--seed", type=int, help="of the sample and of the tests; by chance")
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the tree")
    parser.add_argument("--faults", type=Path, default=HERE / "faults", help="the lists' folder")
    return parser.parse_args()


def _cannot_be_tried(fault: Fault) -> bool:
    return bool(fault.needs) and importlib.util.find_spec(fault.needs) is None


def _not_tried(faults: list[Fault]) -> str:
    """Return how many faults are not tried and for want of what; "" if all are."""
    missing = sorted({fault.needs for fault in faults if _cannot_be_tried(fault)})
    count = sum(map(_cannot_be_tried, faults))
    return f"{count} not tried: needs {', '.join(missing)}" if missing else ""


def _chosen(options: argparse.Namespace, seed: int) -> list[Fault]:
    faults = [
        fault
        for fault in read_faults(options.faults)
        if not options.names or any(name in f"{fault.part}: {fault.name}" for name in options.names)
    ]
    if options.sample is not None:
        faults = [fault for fault in faults if not _cannot_be_tried(fault)]
        count = min(options.sample, len(faults))
        picked = random.Random(seed).sample(range(len(faults)), count)
        faults = [faults[at] for at in sorted(picked)]
    return faults


def _look_up(root: Path, fault: Fault) -> None:
    for place in fault.places:
        find_place(root, place)
    find_tests(root, fault)


def _first_failure(ended: Ended) -> str:
    lines = ended.output.splitlines()
    failures = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return failures[0].split(" - ")[0].split(" ", 1)[1] if failures else "?"


def _sound_sets(trees: Trees, faults: list[Fault]) -> set[Tests]:
    """Run the tests of all faults at once; return them if they pass, else none: `_try` tells whose.

    That saves as many starts of pytest as there are sets of tests.
    """
    ids: dict[str, list[str]] = {}
    seconds = dict.fromkeys((fault.only for fault in faults), 0.0)
    for fault in faults:
        try:
            ids.setdefault(fault.only, []).extend(find_tests(trees.work, fault))
        except FaultListError:
            continue
        seconds[fault.only] += fault.seconds
    sound: set[Tests] = set()
    for only, some in ids.items():
        ended = trees.test(list(dict.fromkeys(some)), only, seconds[only])
        trees.restore()
        if ended.code == 0:
            sound.update((fault.tests, only) for fault in faults if fault.only == only)
    return sound


def _try(trees: Trees, fault: Fault, sound: set[Tests]) -> tuple[str, str]:
    """Return the verdict on a fault, and what is to be said of it."""
    trees.restore()
    ids = find_tests(trees.work, fault)
    if (fault.tests, fault.only) not in sound:
        ended = trees.test(ids, fault.only, fault.seconds)
        if ended.code != 0:
            how = f"do not end in {fault.seconds:g} s" if ended.code is None else "do not pass"
            return "ERROR", f"its tests {how} without it:\n{ended.output[-_SHOWN:]}"
        sound.add((fault.tests, fault.only))
        trees.restore()
    texts: dict[Path, str] = {}
    for place in fault.places:
        path, text = planted(trees.work, place)
        if path in texts:
            raise FaultListError("two of its places are in one file: make them one")
        texts[path] = text
    trees.plant(texts)
    ended = trees.test(ids, fault.only, fault.seconds)
    if ended.code is None:
        verdict = "found" if fault.hangs else "ERROR"
        return verdict, f"its tests did not end in {fault.seconds:g} s"
    if ended.code == _FAILED:
        return "found", f"by {_first_failure(ended)}"
    if ended.code == 0:
        return "SURVIVED", f"{', '.join(ids)}"
    if fault.crashes and ended.code == -signal.SIGSEGV:
        return "found", "by the crash that the tests are for"
    return "ERROR", f"pytest ended with {ended.code}:\n{ended.output[-_SHOWN:]}"


def _plant_all(options: argparse.Namespace, chosen: list[Fault], seed: int) -> int:
    faults = [fault for fault in chosen if not _cannot_be_tried(fault)]
    for fault in chosen:
        if fault not in faults:
            print(f"not tried           {fault.part}: {fault.name}\n    needs {fault.needs}")
    verdicts: dict[str, list[Fault]] = {"found": [], "SURVIVED": [], "ERROR": []}
    if faults:  # else there is nothing to build a copy for
        _plant_each(options, faults, seed, verdicts)
    for verdict in ("SURVIVED", "ERROR"):
        for fault in verdicts[verdict]:
            print(f"{verdict} {fault.part}: {fault.name}")
    found, survived, errors = map(len, verdicts.values())
    tried = f"{found + survived + errors} planted, {found} found"
    print(", ".join(filter(None, (tried, _not_tried(chosen)))))
    return int(survived + errors > 0)


def _plant_each(
    options: argparse.Namespace, faults: list[Fault], seed: int, verdicts: dict[str, list[Fault]]
) -> None:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = Trees(options.root, Path(folder).resolve(), seed)
        sound = _sound_sets(trees, faults)
        for fault in faults:
            start = time.monotonic()
            try:
                verdict, said = _try(trees, fault, sound)
            except (FaultListError, TreeError) as error:
                verdict, said = "ERROR", str(error)
            verdicts[verdict].append(fault)
            spent = time.monotonic() - start
            print(
                f"{verdict:<8} {spent:6.1f} s  {fault.part}: {fault.name}\n    {said}", flush=True
            )


def _check_all(options: argparse.Namespace, faults: list[Fault]) -> int:
    wrong = 0
    for fault in faults:
        try:
            _look_up(options.root, fault)
        except FaultListError as error:
            wrong += 1
            print(f"{fault.part}: {fault.name}: {error}")
    print(f"{len(faults)} faults, {wrong} do not fit the sources")
    return int(wrong > 0)


def main() -> int:
    """Do what the command line asks; return the exit status."""
    options = _options()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    try:
        faults = _chosen(options, seed)
    except FaultListError as error:
        print(error)
        return 1
    if options.list:
        for fault in faults:
            needs = f", needs {fault.needs}" if fault.needs else ""
            print(f"{fault.part}: {fault.name} ({', '.join(fault.tests)}){needs}")
        if not_tried := _not_tried(faults):
            print(not_tried)
        return 0
    if options.check:
        return _check_all(options, faults)
    print(f"seed {seed}", flush=True)
    return _plant_all(options, faults, seed)


if __name__ == "__main__":
    sys.exit(main())
