"""The comparison itself: peers that are installed agree with us, and disagreement is found."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from shardcore_bench import command, measure, peers, text_ids, timing
from shardcore_bench.cases import GROUPS, Point
from shardcore_bench.compare import ROOTS, environment
from shardcore_bench.contender import Contender, Tolerance, UnableError, check_equal, in_turn
from shardcore_bench.curves import OURS, curves_of
from shardcore_bench.goals import at_least, at_most, no_slower_than, of_the_table
from shardcore_bench.measure import LeftOut, Plan, Result, as_line, from_line, measured
from shardcore_bench.ours import optimizer_of
from shardcore_bench.peers import PEERS, Peer
from shardcore_bench.peers.machine import Machine
from shardcore_bench.report import HEADER, NOT_HERE, Report
from shardcore_bench.tasks import Bags, LookupTask, StepTask, Update
from shardcore_bench.timing import Times, take_turns
from shardcore_bench.workload import FULL, SMALL, bags_combined, bags_of_ids, draw_ids

import shardcore as sc
from shardcore.cli import main
from shardcore.errors import ShardcoreValueError

# As many rows in every shard, as FBGEMM's blocks need it.
EVEN: Final = replace(SMALL, rows=143 * SMALL.shards)

ASKED_OF: Final = {
    "shardcore": ("combiner", "short", "shards"),
    "NumPy": ("partition", "variable"),
    "torch": (
        *("lookup", "dims", "combiner", "short", "optimizer", "serving", "few", "doors"),
        "sizes",
    ),
    "Keras": ("doors",),
    "JAX": ("doors",),
    "FBGEMM": (
        *("lookup", "dims", "combiner", "short", "step", "widths", "form", "criteo", "many"),
        *("few", "partition", "sizes"),
    ),
    "TensorFlow": ("combiner", "optimizer", "partition", "slices", "variable"),
    "memory": ("lookup", "short", "step", "widths", "optimizer"),
}

UNABLE: Final = {
    ("FBGEMM", "short"): {"FBGEMM: no table of bfloat16 on a CPU"},
    ("FBGEMM", "form"): {"FBGEMM: no table of bfloat16 on a CPU"},
}


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = sc.get_num_threads()
    yield
    sc.set_num_threads(before)


@pytest.mark.slow
def test_every_case_is_asked_of_a_peer_here() -> None:
    for group, cases in GROUPS.items():
        asked = {name for case in cases(SMALL, 1) for name in case.goals}
        assert asked == {name for name, groups in ASKED_OF.items() if group in groups}


@pytest.mark.filterwarnings("ignore:::torch", "ignore:::fbgemm_gpu", "ignore:::tensorflow")
@pytest.mark.filterwarnings("ignore:::keras", "ignore:::google")
@pytest.mark.parametrize(
    ("name", "group"), [(name, group) for name, groups in ASKED_OF.items() for group in groups]
)
def test_peer_agrees(name: str, group: str) -> None:
    peer = PEERS[name]
    reason = peer.missing()
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    compared, unable = 0, set()
    for case in GROUPS[group](EVEN, 1):
        if name not in case.goals:
            continue
        try:
            theirs = case.theirs(peer)
        except UnableError as error:
            unable.add(str(error))
            continue
        ours = case.ours()
        check_equal(ours, theirs, case.name, case.tolerance)
        if case.repeatable:
            check_equal(ours, theirs, f"{case.name}, second time", case.tolerance)
        compared += 1
    assert compared
    assert unable == UNABLE.get((name, group), set())


class Off(Peer):
    """NumPy, a little wrong."""

    name = "off"
    modules = ("numpy",)

    def set_num_threads(self, threads: int) -> None:
        pass

    def partition(self, task: Any) -> Contender:
        right = PEERS["NumPy"].partition(task)

        def arrays(found: Any) -> Any:
            local, counts, inverse = right.arrays(found)
            return local, counts, inverse[::-1]

        return Contender("reversed", right.run, arrays)


def test_nothing_is_timed_where_a_peer_gives_another_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PEERS, "off", Off())
    monkeypatch.setattr(measure, "take_turns", lambda *_: pytest.fail("timed"))
    case = replace(next(GROUPS["partition"](SMALL, 1)), goals={"off": None})
    message = f"{case.name}: Layout.partition and reversed disagree"
    with pytest.raises(AssertionError, match=re.escape(message)):
        list(measured(case, Plan(["partition"], ["off"], {}, "small", 1, 1)))


def constant(*arrays: Any, what: str = "a") -> Contender:
    return Contender(what, lambda: tuple(map(np.asarray, arrays)), lambda found: found)


def halves(*values: float) -> NDArray[np.float16]:
    return np.array(values, np.float16)


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        (constant([1.0, 2.0]), constant([1.0, 2.1], what="b"), "Mismatched elements: 1 / 2"),
        (constant([1.0]), constant(what="b"), "1 and 0 arrays"),
        (constant([1, 2]), constant([1, 3], what="b"), "Mismatched elements: 1 / 2"),
        (constant([1.0]), constant([1.0, 1.0], what="b"), "shapes (1,), (2,) mismatch"),
        (
            constant(halves(1.0, -1.0)),
            constant(halves(1.002, -1.0), what="b"),
            "2 units in the last place",
        ),
        (constant(halves(1.0)), constant(halves(1.0, 1.0), what="b"), "shapes (1,)"),
        (constant(halves(np.nan)), constant(halves(np.nan), what="b"), "not finite"),
    ],
    ids=["value", "number", "integer", "shape", "units", "shape of two bytes", "nan"],
)
def test_disagreement_is_found(left: Contender, right: Contender, why: str) -> None:
    if "not finite" not in why:
        check_equal(left, left, "a case")
        check_equal(right, right, "a case")
    with pytest.raises(AssertionError, match=re.escape("a case: a and b disagree")) as found:
        check_equal(left, right, "a case")
    assert why in str(found.value)


def test_batches_in_turn_are_compared_if_all_of_them_are() -> None:
    one, two = constant([1.0], [2]), constant([3.0], [4])
    both = in_turn([one, two])
    assert both.arrays is not None
    assert [array.tolist() for array in both.arrays(both.run())] == [[1.0, 3.0], [2, 4]]
    with pytest.raises(AssertionError, match="a and a disagree"):
        check_equal(both, in_turn([one, one]), "a case")
    assert in_turn([one, replace(two, arrays=None)]).arrays is None


def test_a_neighbour_of_two_bytes_agrees() -> None:
    left, right = constant(halves(1.0, 0.0)), constant(halves(1.001, -0.0))
    check_equal(left, right, "a case")
    with pytest.raises(AssertionError, match="1 units in the last place"):
        check_equal(left, right, "a case", Tolerance(units=0))


def test_few_elements_may_lie_further_apart() -> None:
    left = constant(np.zeros(100))
    loose = Tolerance(exceptions=0.02, limit=0.5)
    for values, agree in (([0.5, 0.1], True), ([0.51, 0.1], False), ([0.1] * 3, False)):
        right = constant(np.concatenate((values, np.zeros(100 - len(values)))))
        if agree:
            check_equal(left, right, "a case", loose)
        with pytest.raises(AssertionError, match="disagree"):
            check_equal(left, right, "a case", Tolerance() if agree else loose)


def test_blocks_of_six_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "calls_per_sample", lambda run: 1)
    order: list[str] = []
    take_turns(lambda: order.append("a"), lambda: order.append("b"), 3)
    assert "".join(order) == "a" * 6 + "b" * 12 + "a" * 12 + "b" * 6


def test_the_first_two_of_a_block_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.cumsum([0, 9, 0, 8, 0, 1, 0, 3, 0, 4, 0, 2]).tolist())
    monkeypatch.setattr(timing, "perf_counter", lambda: next(clock))
    assert timing.block(lambda: None, 1) == [1, 3, 4, 2]


def test_short_calls_are_timed_several_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1

    monkeypatch.setattr(timing, "perf_counter", lambda: calls * 1e-4)
    assert timing.calls_per_sample(run) == 20
    calls = 0
    assert timing._sample(run, 20) == pytest.approx(1e-4)
    assert calls == 20


def test_ratio_and_spread_are_of_the_rounds() -> None:
    times = Times([1.0, 2.0, 1.0, 4.0, 1.0], [3.0, 2.0, 2.0, 2.0, 4.0])
    assert times.ratios == [3.0, 1.0, 2.0, 0.5, 4.0]
    assert (times.ratio, times.spread) == (2.0, (1.0, 3.0))
    assert Times([1.0, 1.0], [5.0, 2.0]).spread == (2.0, 5.0)


def test_goals() -> None:
    assert at_least(1.8).reached(1.8, 9.0)
    assert not at_least(1.8).reached(1.79, 0.0)
    assert no_slower_than(1.25).reached(0.8, 9.0)
    assert not no_slower_than(1.25).reached(0.79, 0.0)
    assert at_most(1e-5).reached(0.1, 1e-5)
    assert not at_most(1e-5).reached(9.0, 1.1e-5)
    assert [str(one) for one in (at_least(15), no_slower_than(1.1), at_most(1e-5))] == [
        "≥ 15",
        "≥ 0.909",
        "≤ 10 µs",
    ]
    assert of_the_table("lookup", "uniform", 2) == at_least(2.0)
    assert of_the_table("Adagrad", "text", 1) == of_the_table("Adagrad", "zipf 1.2", 1)
    assert of_the_table("Adagrad", "zipf 1.05", 1) == at_least(3.5)
    assert of_the_table("SGD", "uniform", 3) is None


@pytest.mark.slow
def test_ids_of_text_are_ngrams_of_the_library() -> None:
    ids, row_splits = bags_of_ids(replace(SMALL, bags=3_000, pooling=8, rows=1 << 22), "text")
    np.testing.assert_array_equal(row_splits, np.arange(3_001) * 8)
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < 1 << 22
    again, _ = bags_of_ids(replace(SMALL, bags=3_000, pooling=8, rows=1 << 22), "text")
    np.testing.assert_array_equal(ids, again)
    counts = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
    assert counts[0] > 50  # the commonest pair of tokens
    assert (counts == 1).sum() > 4_000  # and many that come once
    pairs, triples = text_ids._grams()
    assert len(triples) == len(pairs) - 1
    # A pair has one hash wherever it stands, and begins every triple with it.
    assert np.unique(triples).size > np.unique(pairs).size


def test_zipf_is_as_steep_as_it_says() -> None:
    for exponent in (1.05, 1.2):
        ids = draw_ids(np.random.default_rng(0), f"zipf {exponent}", 200_000, 10_000)
        counts = np.sort(np.bincount(ids, minlength=10_000))[::-1]
        law = np.arange(1, 10_001.0) ** -exponent
        np.testing.assert_allclose(counts[:10] / 200_000, law[:10] / law.sum(), rtol=0.05)


def test_the_oracle_of_combiners() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    ids, splits = np.array([0, 1, 1]), np.array([0, 2, 3])
    weights = np.array([3.0, 1.0, 2.0], np.float32)
    for combiner in ("sum", "mean", "sqrtn"):
        for given in (None, weights):
            ragged = None if given is None else sc.Ragged(given, splits)
            expected = sc.embedding_lookup_sparse(rows, (ids, splits), ragged, combiner)
            found = bags_combined(rows, ids, splits, given, combiner)
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_our_optimizers_are_those_of_the_update() -> None:
    presets: dict[str, dict[str, Any]] = {
        "Adam": {"preset": "fbgemm"},
        "FTRL": {"initial_accumulator_value": 0.1},
    }
    for name, options in presets.items():
        assert optimizer_of(Update(name)) == getattr(sc.optimizers, name)(0.01, **options)
    assert optimizer_of(Update("momentum")) == sc.optimizers.SGD(0.01, momentum=0.9)
    assert optimizer_of(Update("SGD")) == sc.optimizers.SGD(0.01)
    stochastic: Any = optimizer_of(Update("RowwiseAdagrad", stochastic=True))
    assert stochastic.stochastic_rounding


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256, 512, 1024])
def test_the_floor_reads_and_writes_the_rows_it_says(width: int, threads: int) -> None:
    machine = Machine()
    if machine.missing():
        pytest.skip(f"memory: {machine.missing()}")
    machine.set_num_threads(threads)
    draw = np.random.default_rng(4)
    rows = draw.random((300, width // 4), np.float32)
    ids = draw.integers(0, 300, 1_000)
    splits = np.array([0, 3, 3, 700, 1_000])
    words = rows.view(np.uint64)[ids]
    for way in (
        machine.lookup(LookupTask(rows, ids, splits)).run,
        machine.step(step_of(rows, ids)).run,
    ):
        assert way() == np.bitwise_xor.reduce(words, axis=None)
    table = rows.view(np.uint32).copy()
    own = table.view(np.uint8).reshape(300, width)
    for ahead in (0, 8, 400):
        machine._write([own], np.unique(ids), ahead, value=1)
    expected = rows.view(np.uint32).copy()
    expected[np.unique(ids)] += 3
    np.testing.assert_array_equal(table, expected)


def test_the_floor_of_wider_rows_is_that_of_their_bytes() -> None:
    """Of rows in a cache: vectors that a processor lacks took eight times as long as others."""
    machine = Machine()
    if machine.missing():
        pytest.skip(f"memory: {machine.missing()}")
    ids, splits = np.random.default_rng(4).integers(0, 100, 1 << 18), np.arange(0, 1 << 18, 32)
    reads = [
        machine.lookup(LookupTask(np.ones((100, dim), np.float32), ids, splits)).run
        for dim in (8, 16)
    ]
    seconds: list[list[float]] = [[], []]
    for _ in range(9):
        for read, taken in zip(reads, seconds, strict=True):
            start = time.perf_counter()
            read()
            taken.append(time.perf_counter() - start)
    narrow, wide = map(min, seconds)
    assert wide < 3 * narrow


def step_of(rows: NDArray[Any], ids: NDArray[np.int64]) -> StepTask:
    gradient = np.zeros((4, rows.shape[1]), np.float32)
    splits = np.array([0, 1, 2, 999, ids.size])
    return StepTask([rows], [Bags(0, ids, splits, gradient)], Update("RowwiseAdagrad"))


def test_a_floor_that_reads_other_rows_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    if machine.missing():
        pytest.skip(f"memory: {machine.missing()}")
    monkeypatch.setattr(machine, "_read", lambda *_: 0)
    rows = np.arange(48, dtype=np.float32).reshape(3, 16) ** 2
    task = LookupTask(rows, np.array([1]), np.array([0, 1]))
    with pytest.raises(AssertionError, match="other rows were read than those of the ids"):
        machine.lookup(task)


def test_without_a_compiler_there_is_no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert Machine().missing() == "there is no C compiler"


RESULT: Final = Result("a case", "f", "torch: g", Times([1e-3, 1e-3], [2e-3, 3e-3]), at_least(2.6))


def test_a_line_of_a_process_is_read_back() -> None:
    point = replace(RESULT, point=Point("lookup by ids", 100))
    for found in (RESULT, replace(RESULT, goal=None), point, LeftOut("a case", "torch: too hard")):
        assert from_line(as_line(found)) == found
    for line in ("", "a warning", "{}", "[1]", "3", "null", '{"kind": '):
        assert from_line(line) is None


def points(curve: str, peer: str, *times: tuple[int, float, float]) -> list[Result]:
    """Return the results of a curve: sizes, and seconds of ours and of the peer."""
    return [
        Result("a case", "f", f"{peer}: g", Times([ours] * 3, [theirs] * 3), None, Point(curve, at))
        for at, ours, theirs in times
    ]


def test_curves_are_of_those_who_took_part_by_ascending_size() -> None:
    results = [
        *points("lookup by ids", "torch", (1_000, 2.0, 9.0), (100, 1.0, 8.0)),
        RESULT,
        *points("lookup by rows", "FBGEMM", (10, 0.5, 3.0)),
        *points("lookup by ids", "FBGEMM", (100, 3.0, 5.0)),
    ]
    assert curves_of(results) == {
        "lookup by ids": {
            OURS: [(100, 2.0), (1_000, 2.0)],  # the first is the median of both
            "torch": [(100, 8.0), (1_000, 9.0)],
            "FBGEMM": [(100, 5.0)],
        },
        "lookup by rows": {OURS: [(10, 0.5)], "FBGEMM": [(10, 3.0)]},
    }
    assert curves_of([RESULT]) == {}


def test_cost_is_seen_to_grow_over_every_power_of_ten() -> None:
    cases = list(GROUPS["sizes"](SMALL, 1))
    found = [(case.point.curve, case.point.size) for case in cases if case.point is not None]
    assert found == [
        *(("lookup by ids", 100), ("step by ids", 100)),
        *(("lookup by ids", 1_000), ("step by ids", 1_000)),
        *(("lookup by rows", 1_000), ("step by rows", 1_000)),
    ]
    assert len(found) == len(cases)
    assert (FULL.most_rows, FULL.most_ids) == (10**8, 10**7)


def test_curves_are_drawn_beside_ratios_and_without_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from shardcore_bench.picture import draw

    curve = points("lookup by ids", "FBGEMM", (1_000, 2.0, 9.0), (100, 1.0, 8.0))
    for results, shown in (
        ({"1 thread": [RESULT, *curve]}, ("a case", "lookup by ids, 1 thread", OURS, "FBGEMM")),
        ({"1 thread": curve}, ("lookup by ids, 1 thread", OURS, "FBGEMM")),
        ({"1 thread": [RESULT]}, ("a case", "1 thread", "torch")),
    ):
        draw(results, tmp_path / "drawn.svg")
        drawn = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
        for text in shown:
            assert f"<!-- {text} -->" in drawn
        assert ("<!-- seconds of a call -->" in drawn) is ("lookup by ids, 1 thread" in shown)
        assert (f"<!-- {OURS} -->" in drawn) is (OURS in shown)


def test_the_report_says_what_was_reached_missed_and_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report()
    report.begin("2 threads")
    report.add(RESULT)
    report.add(replace(RESULT, goal=at_least(2.5)))
    report.add(replace(RESULT, goal=None))
    report.add(LeftOut("a case", "torch: too hard"))
    report.add(LeftOut("another", "torch: too hard"))
    report.begin("1 thread")
    report.add(LeftOut("a case", "torch: too hard"))
    assert not report.failed
    report.fail("lookup (exit code 1)")
    assert report.failed
    report.end()
    line = "| a case | f | torch: g | 1 ms | 2.5 ms | **2.50** | 2.00 to 3.00 |"
    assert capsys.readouterr().out.splitlines() == [
        *["", "### 2 threads", "", *HEADER.splitlines()],
        *[f"{line} ≥ 2.6 | no |", f"{line} ≥ 2.5 | yes |", f"{line}  |  |"],
        *["", "### 1 thread", "", *HEADER.splitlines()],
        *["", "Goals: 1 reached, 1 missed."],
        "- missed: a case, 2 threads: 2.50 of torch: g, 1 ms of ours; goal ≥ 2.6",
        *["", "Not compared:", "- torch: too hard: a case; another"],
        *(f"- {one}" for one in NOT_HERE),
        "- FAILED, see above: lookup (exit code 1), 1 thread",
    ]


def test_a_peer_that_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(["partition"], [], {"FBGEMM": "fbgemm_gpu is not installed"}, "small", 1, 1)
    assert measure.main([json.dumps(asdict(plan))]) == 0
    told = [from_line(line) for line in capsys.readouterr().out.splitlines()]
    assert len(told) == 4
    assert {one.reason for one in told if isinstance(one, LeftOut)} == {
        "FBGEMM: fbgemm_gpu is not installed"
    }


def test_a_process_sets_the_threads_of_all_that_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def record(peer: Peer, threads: int) -> None:
        asked.append((peer.name, threads))

    for peer in PEERS.values():
        monkeypatch.setattr(type(peer), "set_num_threads", record)
    monkeypatch.setattr(measure, "measured", lambda case, plan: iter(()))
    everybody = list(PEERS)
    assert list(measure.results(Plan(["slices", "many"], everybody, {}, "small", 3, 1))) == []
    assert asked == [("shardcore", 3), ("TensorFlow", 3), ("FBGEMM", 3)]


def test_each_policy_has_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    default, passive = environment("default"), environment("passive")
    assert "OMP_WAIT_POLICY" not in default
    assert passive == {**default, "OMP_WAIT_POLICY": "passive"}
    of_shardcore, of_cases, rest = default["PYTHONPATH"].split(os.pathsep)
    assert (Path(of_shardcore) / "shardcore" / "py.typed").is_file()
    assert (Path(of_cases) / "shardcore_bench" / "measure.py").is_file()
    assert rest == "elsewhere"
    monkeypatch.delenv("PYTHONPATH")
    assert environment("default")["PYTHONPATH"] == os.pathsep.join(ROOTS)


@pytest.mark.slow
def test_the_whole_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr(peers.PEERS["FBGEMM"], "missing", lambda: "it is not to be had")
    options = ["bench", "--quick", "--only", "partition", "--peers", "NumPy", "FBGEMM"]
    options += ["--threads", "1", "2", "--policies", "default", "passive"]
    picture = tmp_path / "ratios.svg"
    assert main([*options, "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert f"- NumPy {np.__version__}" in printed
    assert "- FBGEMM left out: it is not to be had" in printed
    assert re.findall(r"^### (.*)$", printed, re.MULTILINE) == [
        "1 thread",
        "2 threads",
        "1 thread, OMP_WAIT_POLICY=passive",
        "2 threads, OMP_WAIT_POLICY=passive",
    ]
    line = r"^\| partition, div, .* \| NumPy: .* \| \*\*\d+\.\d\d\*\* \| .* \|  \|  \|$"
    assert len(re.findall(line, printed, re.MULTILINE)) == 4 * 4
    assert "\nGoals: 0 reached, 0 missed.\n" in printed
    assert re.search(r"^- FBGEMM: it is not to be had: partition, div, ", printed, re.MULTILINE)
    assert printed.endswith(f"\nThe ratios are drawn in {picture}.\n")
    drawn = picture.read_text(encoding="utf-8")
    for shown in ("NumPy", "2 threads, OMP_WAIT_POLICY=passive", "int64 ids, zipf 1.2"):
        assert f"<!-- {shown}" in drawn or f"{shown} -->" in drawn


def options(*words: str) -> Any:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.options_of(parser.parse_args(words))


def test_what_is_compared_by_default_quickly_and_in_full() -> None:
    usual, quick, full = options(), options("--quick"), options("--full")
    assert (usual.groups, usual.size, usual.rounds) == (["lookup", "step"], "full", 3)
    assert (quick.groups, quick.size, quick.rounds) == (list(GROUPS), "quick", 1)
    assert (full.groups, full.size, full.rounds) == (list(GROUPS), "full", 7)
    assert [list(one.policies) for one in (usual, quick, full)] == [
        ["default"],
        ["default"],
        ["default", "passive"],
    ]
    assert usual.peers == list(PEERS)
    assert options("--full", "--only", "many", "--rounds", "2").groups == ["many"]
    assert options("--full", "--rounds", "2").rounds == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--quick", "--full"), "--quick and --full exclude each other"),
        (("--rounds", "0"), "--rounds must be at least 1, got 0"),
        (("--threads", "2", "-1"), "--threads must be at least 1, got -1"),
    ],
)
def test_options_that_cannot_be(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        options(*words)


def test_without_matplotlib_there_is_no_picture(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "--quick", "--picture", str(tmp_path / "a.png")]) == 2
    told = capsys.readouterr()
    assert told.out == ""  # nothing was measured
    assert told.err.startswith("shardcore: error: --picture needs the package matplotlib, which ")


@pytest.mark.slow
def test_a_process_that_fails_fails_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardcore_bench.compare.asdict", lambda plan: {})  # which is no plan
    assert main(["bench", "--quick", "--only", "partition", "--peers", "NumPy"]) == 1
    assert "- FAILED, see above: partition (exit code 1), 1 thread" in capsys.readouterr().out
