"""Clicks of generated logs are learnt, as a user would; of either form, and again after a stop."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import shardcore as sc

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow cannot read Parquet")

SMALL = ("--buckets", 1000, "--batch-size", 128, "--report", 20)


@pytest.fixture
def criteo(imported):
    return imported("criteo")


@pytest.fixture(scope="session")
def logs(run, tmp_path_factory):
    """The folder of one generated log in both forms."""
    folder = tmp_path_factory.mktemp("criteo")
    for suffix in ("tsv", "parquet"):
        run(folder, "criteo.py", f"clicks.{suffix}", "--generate", 12_000)
    return folder


def reports_in(printed):
    """Return (batch, loss, AUC or None) of each line."""
    line = r"batch (\d+): [\d,]+ rows per second, loss ([\d.]+)(?:, held-out AUC ([\d.]+))?"
    found = [re.fullmatch(line, one) for one in printed.splitlines()]
    return [(int(one[1]), float(one[2]), one[3] and float(one[3])) for one in found]


def rows_of(criteo, path, size=500):
    """Return all labels, numbers and ids of a file."""
    read = [
        (labels, numbers, np.stack(list(criteo.ids_of(categories, 1000).values()), axis=1))
        for labels, numbers, categories in criteo.batches(path, size)
    ]
    return [np.concatenate(one) for one in zip(*read, strict=True)]


# --- the form of the files ------------------------------------------------------------------------

# Of Criteo's own form: numbers that are empty, negative or large; categories that are empty.
ROWS = """\
0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t25c83c98\t\
7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t1adce6ef\t\
8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\tc5c50484\t\
e8b83407\t9727dd16
1\t\t-2\t\t\t3000000000\t\t\t\t\t\t\t\t\t05db9164\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t00000000
"""
SECOND = [0, -2, 0, 0, 3_000_000_000, *[0] * 8]


def test_rows_of_the_true_form_are_read(criteo, tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text(ROWS)
    labels, numbers, ids = rows_of(criteo, path)
    assert labels.tolist() == [0, 1]
    assert numbers.tolist() == [[1, 1, 5, 0, 1382, 4, 15, 2, 181, 1, 2, 0, 2], SECOND]
    words = [line.split("\t")[14:] for line in ROWS.splitlines()]
    assert ids.tolist() == [sc.hash_ids(one, 1000).tolist() for one in words]


def test_a_generated_log_is_of_the_true_form(logs):
    lines = (logs / "clicks.tsv").read_text().splitlines()
    assert len(lines) == 12_000
    category = "(?:[0-9a-f]{8})?"
    form = re.compile(r"[01]" + r"\t(?:-?\d+)?" * 13 + rf"\t{category}" * 26)
    assert all(form.fullmatch(line) for line in lines)
    fields = np.array([line.split("\t") for line in lines])
    assert 0.15 < (fields[:, 0] == "1").mean() < 0.5
    empty = (fields[:, 1:] == "").mean(axis=0)
    assert empty.min() > 0.05
    assert empty.max() < 0.25


def test_both_forms_have_the_same_rows_in_the_same_batches(criteo, logs):
    for suffix in ("tsv", "parquet"):
        sizes = [len(labels) for labels, _, _ in criteo.batches(logs / f"clicks.{suffix}", 5000)]
        assert sizes == [5000, 5000, 2000]
    text, arrow = (rows_of(criteo, logs / f"clicks.{suffix}") for suffix in ("tsv", "parquet"))
    assert len(text[0]) == 12_000
    for one, other in zip(text, arrow, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_column_may_be_empty_for_long(criteo, tmp_path):
    path = tmp_path / "rows.tsv"
    first, second = ROWS.splitlines(keepends=True)
    path.write_text(second * 20_000 + first)  # the second has few; a block is a megabyte
    labels, numbers, ids = rows_of(criteo, path, 5000)
    assert labels.sum() == 20_000
    assert numbers[-1, 10:].tolist() == [2, 0, 2]
    assert ids[-1].tolist() == sc.hash_ids(first.rstrip("\n").split("\t")[14:], 1000).tolist()


def test_a_file_of_polars_is_read(criteo, logs, tmp_path):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    path = tmp_path / "clicks.parquet"
    polars.read_parquet(logs / "clicks.parquet").write_parquet(path)
    for one, other in zip(rows_of(criteo, path), rows_of(criteo, logs / "clicks.tsv"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["tsv", "parquet"])
def test_a_file_is_never_in_memory_as_a_whole(criteo, logs, tmp_path, suffix):
    path = tmp_path / f"large.{suffix}"
    if suffix == "tsv":
        path.write_bytes((logs / "clicks.tsv").read_bytes() * 40)
    else:
        table = parquet.read_table(logs / "clicks.parquet")
        parquet.write_table(pa.concat_tables([table] * 40), path)
    before = pa.total_allocated_bytes()
    rows = most = 0
    for labels, _, _ in criteo.batches(path, 512):
        rows += len(labels)
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 480_000  # which are 190 MB, in Arrow's form
    assert most < 70_000_000  # measured: 40


# --- learning -------------------------------------------------------------------------------------


def test_gradients_are_those_of_the_loss(criteo):
    draw = np.random.default_rng(0)
    dim, vectors = criteo.DIM, len(criteo.CATEGORIES)
    pairs = len(criteo.PAIRS[0])
    model = {
        "bottom": criteo.initial_layers((13, 6, dim), draw),
        "top": criteo.initial_layers((dim + pairs, 5, 1), draw),
    }
    for layers in model.values():
        for layer in layers:
            layer |= {name: array.astype(float) for name, array in layer.items()}
    numbers = draw.integers(-2, 100, (3, 13))
    embedded = {name: draw.normal(size=(3, dim)) for name in criteo.CATEGORIES}
    slopes = draw.normal(size=3)

    def value():
        return criteo.scores_of(model, numbers, embedded)[0] @ slopes

    _, on_the_way = criteo.scores_of(model, numbers, embedded)
    of_layers, of_vectors = criteo.gradients_of(model, on_the_way, slopes)
    assert len(of_vectors) == vectors
    tried = [(embedded[name], of_vectors[name]) for name in ("C1", "C7", "C26")]
    for part, layers in model.items():
        for layer, gradients in zip(layers, of_layers[part], strict=True):
            tried += [(layer[name], gradients[name]) for name in ("kernel", "bias")]
    assert len(tried) == 3 + 8
    for array, gradient in tried:
        assert gradient.shape == array.shape
        for _ in range(10):
            place = tuple(draw.integers(0, array.shape))
            kept = array[place]
            array[place] = kept + 1e-6
            above = value()
            array[place] = kept - 1e-6
            below = value()
            array[place] = kept
            assert (above - below) / 2e-6 == pytest.approx(gradient[place], rel=1e-4, abs=1e-6)


def test_auc_counts_pairs(criteo):
    draw = np.random.default_rng(0)
    scores, labels = draw.integers(0, 9, 200), draw.integers(0, 2, 200)  # many ties
    above = scores[labels == 1][:, None] - scores[labels == 0]
    assert criteo.auc(scores, labels) == pytest.approx(np.mean((np.sign(above) + 1) / 2), abs=1e-12)
    assert np.isnan(criteo.auc(scores, np.ones(200)))


@pytest.mark.slow
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(logs, run, tmp_path):
    def train(root, rows):
        arguments = (logs / "clicks.tsv", *SMALL, "--checkpoints", root, "--rows", rows)
        return run(tmp_path, "criteo.py", *arguments)

    through = reports_in(train("through", 10_000))
    before = reports_in(train("stopped", 5_000))
    then, after = train("stopped", 10_000).split("\n", 1)
    done, last = before[-1][0], through[-1][0]
    assert 20 < done < last
    assert then == f"goes on after batch {done}"
    assert reports_in(after)[-1][0] == last
    assert before[:-1] == through[: len(before) - 1]
    one, other = (content(tmp_path / root / f"step-{last:08}") for root in ("through", "stopped"))
    assert len(one) > 2
    assert one == other
    assert one != content(tmp_path / "stopped" / f"step-{done:08}")


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["clicks.tsv"], "there is no file clicks.tsv"),
        (["clicks.tsv", "--rows", "0"], "must be at least 1, got 0"),
    ],
)
def test_the_program_refuses(run, tmp_path, arguments, message):
    assert message in run(tmp_path, "criteo.py", *arguments, fails=True)


def test_columns_are_counted(criteo, tmp_path):
    parquet.write_table(pa.table({"label": [1], "I1": [2]}), tmp_path / "two.parquet")
    with pytest.raises(ValueError, match=r"two\.parquet must have 40 columns, has 2"):
        next(criteo.batches(tmp_path / "two.parquet", 10))
    (tmp_path / "two.tsv").write_text("1\t2\n")
    with pytest.raises(pa.ArrowInvalid, match="Expected 40 columns, got 2"):
        next(criteo.batches(tmp_path / "two.tsv", 10))


def test_pyarrow_is_asked_for_where_a_file_is_read(script, tmp_path):
    (tmp_path / "clicks.tsv").write_text(ROWS)
    code = "import runpy, sys; sys.modules['pyarrow'] = None; del sys.argv[0]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"

    def run_without(*arguments):
        return subprocess.run(
            [sys.executable, "-c", code, script("criteo.py"), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = run_without("clicks.tsv", "--buckets", "10")
    assert done.returncode == 1
    assert re.match("ModuleNotFoundError: .*pyarrow", done.stderr.splitlines()[-1])
    assert run_without("--help").returncode == 0


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_shows_what_is_printed(commands):
    """Which learns: the loss falls, and clicks held out are told from other rows."""
    (silent, nothing), (shown, printed) = commands("criteo.md")
    assert silent == nothing == []
    found = reports_in("\n".join(printed))
    expected = reports_in("\n".join(shown))
    assert len(found) == len(expected) >= 5
    for (batch, loss, area), (number, its_loss, its_area) in zip(found, expected, strict=True):
        assert batch == number
        assert loss == pytest.approx(its_loss, abs=0.005)  # processors multiply in other orders
        assert (area is None) == (its_area is None)
        assert area is None or area == pytest.approx(its_area, abs=0.01)
    losses = [loss for _, loss, _ in found]
    areas = [area for _, _, area in found if area is not None]
    assert losses[-1] < losses[0] - 0.05
    assert areas[-1] > 0.7 > areas[0]


def test_the_page_shows_the_program(excerpts, script):
    found = excerpts("criteo.md")
    assert len(found) >= 2
    for name, excerpt in found:
        assert excerpt in script(name).read_text(encoding="utf-8")
