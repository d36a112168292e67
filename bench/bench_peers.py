"""The comparison itself: peers that are installed agree with us, and disagreement is found."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

import shardcore as sc

from .compare import CASES, HEADER, check_equal, interleave, main
from .peers import PEERS, Contender, Peer
from .workload import SMALL

# As many rows in every shard, as FBGEMM's blocks need it.
EVEN: Final = replace(SMALL, rows=143 * SMALL.shards)

DONE_BY: Final = {
    "NumPy": ("partition",),
    "torch": ("lookup", "step"),
    "FBGEMM": ("partition", "lookup", "step"),
    "TensorFlow": ("slices", "partition", "variable"),
}


@pytest.mark.filterwarnings("ignore:::torch", "ignore:::fbgemm_gpu", "ignore:::tensorflow")
@pytest.mark.parametrize(
    ("peer", "group"),
    [(peer, group) for peer in PEERS for group in DONE_BY[peer.name]],
    ids=lambda value: getattr(value, "name", value),
)
def test_peer_agrees(peer: Peer, group: str) -> None:
    reason = peer.missing()
    if reason is not None:
        pytest.skip(f"{peer.name}: {reason}")
    compared = 0
    for case in CASES[group](EVEN):
        theirs = case.theirs(peer)
        if theirs is not None:
            for ours in case.ours():
                check_equal(ours, theirs, case.name)
                if group == "step":
                    check_equal(ours, theirs, f"{case.name}, second step")
                compared += 1
    assert compared


def test_disagreement_is_found() -> None:
    right = Contender("right", lambda: np.array([1.0, 2.0]), lambda found: (found,))
    wrong = Contender("wrong", lambda: np.array([1.0, 2.1]), lambda found: (found,))
    check_equal(right, right, "a case")
    with pytest.raises(AssertionError, match=re.escape("a case: right and wrong disagree")):
        check_equal(right, wrong, "a case")
    short = Contender("short", tuple, lambda found: found)
    with pytest.raises(AssertionError, match=re.escape("right and short disagree: 1 and 0 arrays")):
        check_equal(right, short, "a case")


def test_rounds_take_turns() -> None:
    order: list[str] = []
    first = Contender("a", lambda: order.append("a"), lambda found: ())
    second = Contender("b", lambda: order.append("b"), lambda found: ())
    ours, theirs = interleave(first, second, 4)
    assert len(ours) == len(theirs) == 4
    turns = [name for at, name in enumerate(order) if at == 0 or order[at - 1] != name]
    # Warm-up a, b; then ab, ba, ab, ba; equal neighbours are one.
    assert "".join(turns) == "abababa"


@pytest.mark.slow
def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    before = sc.get_num_threads()
    try:
        main(["--quick", "--rounds", "1", "--only", "partition", "--peers", "NumPy", "FBGEMM"])
    finally:
        sc.set_num_threads(before)
    printed = capsys.readouterr().out
    assert HEADER in printed
    assert f"- NumPy {np.__version__}" in printed
    assert re.search(r"\| partition, div, .* \| NumPy: .* \| \*\*\d+\.\d\d\*\* \|", printed)
    fbgemm = next(peer for peer in PEERS if peer.name == "FBGEMM")
    reason = fbgemm.missing()
    if reason is not None:
        assert f"- FBGEMM left out: {reason}" in printed
