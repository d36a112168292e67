"""The console command: what info tells, how errors and interruptions look."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardcore as sc
from shardcore import cli
from shardcore.plugins import registry
from shardcore.plugins.registry import BackendInfo, PluginInfo
from shardcore.store import instruction_set


def test_info_tells_versions_kernels_backends_and_plugins(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = dict(line.split(maxsplit=1) for line in lines[:4])
    assert told["Python"].startswith(platform.python_version())
    assert told["NumPy"] == np.__version__
    assert told["platform"] == platform.platform()
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)+.*", told["shardcore"])
    assert f"kernels        {instruction_set.NAME}: {instruction_set.REASON}" in lines
    assert f"threads        {sc.get_num_threads()}" in lines
    assert "  cpu: available (from shardcore:shardcore_cpu)" in lines
    assert "  sim: available (from shardcore:shardcore_sim)" in lines
    assert len([line for line in lines if line.endswith(" (from shardcore:shardcore_pjrt)")]) == 2
    assert any(line.startswith("  shardcore:shardcore_optimizers ") for line in lines)


def test_info_says_why_something_cannot_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        registry,
        "backends",
        lambda: {"acme": BackendInfo(False, "no accelerator was found", "acme:acme_backend")},
    )
    monkeypatch.setattr(
        registry,
        "plugins",
        lambda: [PluginInfo("broken", "acme", "2.0", "ImportError: no acme")],
    )
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "  acme: unavailable: no accelerator was found (from acme:acme_backend)\n" in out
    assert "  acme:broken (acme 2.0) could not be loaded: ImportError: no acme\n" in out


def test_an_error_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    missing = tmp_path / "missing"
    arguments = ["demo", "--source", str(missing), "--output-dir", str(tmp_path / "out")]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"shardcore: error: source {missing} cannot be listed: ")
    assert error.count("\n") == 1


def test_a_backend_that_nobody_provides_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("def f(x):\n    return x\n")
    arguments = ["demo", "--source", str(tmp_path), "--min-functions", "1", "--backend", "abacus"]
    assert cli.main([*arguments, "--output-dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("shardcore: error: ")
    assert "'abacus'" in error
    assert error.count("\n") == 1


def test_an_error_of_several_lines_is_printed_as_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fail() -> list[str]:
        raise sc.ShardcoreError("first\n  second")

    monkeypatch.setattr("shardcore.info.describe", fail)
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err == "shardcore: error: first second\n"


@pytest.mark.parametrize("package", ["matplotlib", "tqdm"])
def test_a_missing_package_is_named_before_any_work(
    package: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["demo", "--output-dir", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert re.fullmatch(
        rf"shardcore: error: shardcore demo needs the package {package}, which cannot be imported "
        rf"\(.*{package}.*\); pip install 'matplotlib>=3\.8' 'tqdm>=4\.66'\n",
        captured.err,
    )
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["hosts", "restore-hosts"])
def test_hosts_are_refused_where_there_are_none(option: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["demo", "--backend", "cpu", f"--{option}", "2"]) == 2
    assert capsys.readouterr().err == (
        f"shardcore: error: --{option} is for the backend 'sim', got the backend 'cpu'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["demo", "--dim", "0"], "argument --dim: must be an integer >= 1, got '0'"),
        (["demo", "--epochs", "two"], "argument --epochs: must be an integer >= 1, got 'two'"),
        (["demo", "--seed", "-1"], "argument --seed: must be an integer >= 0, got '-1'"),
        (
            ["demo", "--learning-rate", "nan"],
            "argument --learning-rate: must be a finite number > 0, got 'nan'",
        ),
        (
            ["demo", "--learning-rate", "fast"],
            "argument --learning-rate: must be a finite number > 0, got 'fast'",
        ),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_an_interruption_is_code_130_and_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def interrupt() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardcore.info.describe", interrupt)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "shardcore: interrupted: no checkpoint was saved\n"


def test_the_command_line_loads_nothing_that_only_the_demo_needs():
    program = (
        "import sys; from shardcore.cli import main; main(['info']); "
        "print([name for name in ('matplotlib', 'tqdm', 'jax') if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines()[-1] == "[]"


def test_a_plugin_adds_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--hosts", "1,2", "--batch", "256"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("26 tables, 204184588 rows")
    assert [line.split()[0] for line in lines[-2:]] == ["1", "2"]


def test_the_module_of_a_command_that_is_not_run_is_not_imported() -> None:
    script = (
        "import sys; from shardcore.cli import main; main(['info']); "
        "assert 'shardcore_sim' in sys.modules; assert 'shardcore_sim.simulate' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"shardcore {sc.__version__}\n"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shardcore", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"shardcore {sc.__version__}\n"


@pytest.mark.skipif(os.name != "posix", reason="reads the output as a shell's pipe does")
def test_a_pipe_that_is_closed_ends_the_command_quietly() -> None:
    code = (  # more than a pipe holds, so that the command is still writing when its reader goes
        "import sys; from shardcore import cli, info; "
        "info.describe = lambda: ['x' * 99] * 20_000; sys.exit(cli.main(['info']))"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout.readline() == "x" * 99 + "\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141
