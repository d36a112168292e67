"""The demo from the command line to the picture, its refusals, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardcore as sc
from shardcore.cli import main

PNG = b"\x89PNG\r\n\x1a\n"

PROGRAM = """
import signal, sys
from shardcore.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
sys.exit(main(sys.argv[1:]))
"""


def write_modules(root: Path, *, alike: bool = False) -> Path:
    """Write three modules of 40 functions each, told apart by their words unless `alike`."""
    for module in ("ant", "bee", "cow"):
        word = "same" if alike else module
        functions = [
            f"def {word}_{number}(x):\n    return {word}_walk(x, {number})\n"
            for number in range(40)
        ]
        (root / f"{module}.py").write_text("\n".join(functions))
    return root


def small(source: Path, output: Path, *more: str) -> list[str]:
    shape = ["--short", "--buckets", "512", "--dim", "4", "--epochs", "2", "--batch-size", "16"]
    return ["demo", "--source", str(source), "--output-dir", str(output), *shape, *more]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sim", "cpu"])
def test_the_short_job_learns_restores_and_draws(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["demo", "--short", "--backend", backend, "--output-dir", str(tmp_path)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    out = captured.out
    share = re.search(r"^[\d,]+ functions from \d+ modules, .* a share of (0\.\d{3})$", out, re.M)
    assert share is not None
    epochs = re.findall(
        r"^epoch (\d) of 3: loss \d+\.\d{3}, held-out accuracy (0\.\d{3}), [\d,]+ ids per second$",
        out,
        re.M,
    )
    assert [int(number) for number, _ in epochs] == [1, 2, 3]
    assert float(epochs[-1][1]) > 2 * float(share[1])

    hosts = " on 3 hosts" if backend == "sim" else ""
    restored = re.search(
        rf"^step (\d+) restored into a fresh engine{hosts}: all ([\d,]+) predictions and all "
        r"([\d,]+) logits are identical$",
        out,
        re.M,
    )
    assert restored is not None
    root = tmp_path / "checkpoints-1"
    assert sc.checkpoint.steps(root) == [int(restored[1])]
    assert f"checkpoint: {sc.checkpoint.latest(root)}\n" in out

    assert re.search(r"^  \w+: (\w+ -?\d\.\d\d(, |$)){4}", out, re.M)
    exchanged = re.search(r"^bytes exchanged between hosts: ([\d,]+)$", out, re.M)
    assert exchanged is not None
    assert (int(exchanged[1].replace(",", "")) > 0) == (backend == "sim")
    assert f"picture: {tmp_path / 'modules.png'}\n" in out
    assert (tmp_path / "modules.png").read_bytes().startswith(PNG)
    assert captured.err == ""


README = Path(__file__).parents[2] / "README.md"


def shapes(text: str) -> list[str]:
    """Return lines without their numbers, paths and names of modules, each kind once."""
    text = re.sub(r"\S*/\S*", "PATH", text)
    text = re.sub(r"-?\d[\d,]*(\.\d+)?", "0", text)
    text = re.sub(r"^  \w+: \w+ 0, .*$", "  NAME: NAME 0, ...", text, flags=re.M)
    text = re.sub(r"the largest is \w+", "the largest is NAME", text)
    return list(dict.fromkeys(text.splitlines()))


@pytest.mark.skipif(not README.is_file(), reason="the documents are not beside these tests")
def test_the_readme_shows_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (shown,) = re.findall(r"^    \$ make demo\n((?:    .*\n)+)", README.read_text("utf-8"), re.M)
    lines = [line for line in textwrap.dedent(shown).splitlines() if line.strip() != "…"]
    assert main(small(write_modules(tmp_path), tmp_path / ".out", "--epochs", "2")) == 0
    assert shapes("\n".join(lines)) == shapes(capsys.readouterr().out)


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = write_modules(tmp_path)
    losses = []
    for number, hosts in enumerate(("1", "4")):
        output = tmp_path / f".out-{number}"
        assert main(small(source, output, "--hosts", hosts, "--restore-hosts", "7")) == 0
        out = capsys.readouterr().out
        losses.append(re.findall(r"loss (\d\.\d+), held-out accuracy (\d\.\d+)", out))
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]


def test_every_run_has_its_own_checkpoints(tmp_path: Path):
    source = write_modules(tmp_path)
    output = tmp_path / ".out"
    for _ in range(2):
        assert main(small(source, output)) == 0
    for number in (1, 2):
        root = output / f"checkpoints-{number}"
        assert len(sc.checkpoint.steps(root)) == 1
        assert [path.name for path in root.iterdir()] == [sc.checkpoint.latest(root).name]


def test_steps_of_another_run_are_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = tmp_path / ".checkpoints"
    sc.Checkpoint(dense=np.zeros(3)).save(root, 12)
    before = sorted(root.rglob("*"))
    arguments = small(write_modules(tmp_path), tmp_path / ".out", "--checkpoint-dir", str(root))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        f"shardcore: error: --checkpoint-dir must hold no steps yet, got {root} with step 12\n"
    )
    assert captured.out == ""
    assert sorted(root.rglob("*")) == before
    assert not (tmp_path / ".out").exists()


def test_an_output_directory_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "file"
    file.touch()
    assert main(small(write_modules(tmp_path), file / "out")) == 2
    error = capsys.readouterr().err
    assert error.startswith("shardcore: error: output directory cannot be made: ")
    assert str(file / "out") in error


def test_a_picture_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    picture = tmp_path / ".out" / "modules.png"
    picture.mkdir(parents=True)
    assert main(small(write_modules(tmp_path), tmp_path / ".out")) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"shardcore: error: picture {picture} cannot be written: ")


def test_files_that_are_no_python_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write_modules(tmp_path)
    (source / "old.py").write_text("print 'old'\n")
    assert main(small(source, tmp_path / ".out")) == 0
    assert "\n1 files left out: no Python of this version\n" in capsys.readouterr().out


def test_learning_too_little_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write_modules(tmp_path, alike=True)
    assert main(small(source, tmp_path / ".out")) == 2
    assert re.fullmatch(
        r"shardcore: error: the short job must reach a held-out accuracy of 0\.667, twice the "
        r"share of the largest module, got 0\.\d{3}\n",
        capsys.readouterr().err,
    )


def test_a_restored_model_that_differs_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from shardcore_demo.model import Model

    restore = Model.restore

    def restore_and_forget(self: Model, path: Any) -> int:
        step = restore(self, path)
        self._layer.arrays["bias"][0] += 1000
        return step

    monkeypatch.setattr(Model, "restore", restore_and_forget)
    assert main(small(write_modules(tmp_path), tmp_path / ".out")) == 2
    assert re.fullmatch(
        r"shardcore: error: step 14 restored on 3 hosts must predict as it did when it was saved, "
        r"got \d+ of 12 predictions and 12 of 36 logits that differ\n",
        capsys.readouterr().err,
    )


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to a process")
@pytest.mark.parametrize(
    ("sign", "saved"), [("reading the functions", False), ("epoch 2 of 5000", True)]
)
def test_ctrl_c_says_which_checkpoint_there_is(sign: str, saved: bool, tmp_path: Path):
    source = write_modules(tmp_path)
    arguments = [*small(source, tmp_path / ".out"), "--epochs", "5000"]
    if not saved:  # so that reading takes long enough to be interrupted
        arguments = ["demo", "--output-dir", str(tmp_path / ".out")]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(sign):
            break
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    root = tmp_path / ".out" / "checkpoints-1"
    if not saved:
        assert error == "shardcore: interrupted: no checkpoint was saved\n"
        assert sc.checkpoint.steps(root) == []
        return
    [step] = sc.checkpoint.steps(root)
    path = sc.checkpoint.latest(root)
    assert error == f"shardcore: interrupted: the checkpoint of step {step} is {path}\n"
    sc.checkpoint.verify(path)
