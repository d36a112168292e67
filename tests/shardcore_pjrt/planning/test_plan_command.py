"""`shardcore plan`: what it prints, its messages and exit codes."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from planned_models import SMALL, compiled_of, needs
from shardcore_pjrt.planning import plan
from shardcore_pjrt.planning.fits import Plan, compiled_plan, counted_plan
from shardcore_pjrt.planning.topologies import Topology, topology
from shardcore_pjrt.platform import installation
from shardcore_pjrt.platform.pins import Pin

from shardcore import cli
from shardcore.errors import UnavailableError
from shardcore.planning.model_file import example_model, load_model

MIB = 1 << 20
GIB = 1 << 30
CHIP = Topology("v5e:2x2", 4, 1, 1000)


def test_text(write):
    model = load_model(write(SMALL))
    held = Plan(
        Topology("v4:2x2x1", 4, 2, GIB),
        (
            needs("a", None, 512 * MIB, 256 * MIB, MIB, 64 * MIB, code=MIB, seconds=2.5),
            needs("b", 3, table=128 * MIB, seconds=1.25),
        ),
        True,
    )  # fmt: skip
    assert plan.as_text(model, held, held) == (
        "v4:2x2x1: 4 chips, 2 devices a chip, 1.00 GiB for programs on each device\n"
        "3 tables, 5196 rows, batch 64, ids uniform\n"
        "\n"
        "MiB on each device that holds the table, and seconds to compile\n"
        "table  placement  device  exchange  table  slots  batch  temporaries  programs  seconds\n"
        "a      row        all     gather    512.0  256.0    1.0         64.0       1.0      2.5\n"
        "b      table      3       gather    128.0    0.0    0.0          0.0       0.0      1.2\n"
        "\n"
        "on device 3, the fullest: tables 640.0 MiB, slots 256.0 MiB, "
        "batch 1.0 MiB, temporaries 64.0 MiB, programs 1.0 MiB\n"
        "fits: 962.0 MiB of 1.00 GiB\n"
        "most is taken by table 'a': 834.0 MiB, 512.0 MiB of rows\n"
        "smallest listed topology that fits: v4:2x2x1, with 962.0 MiB of 1.00 GiB on each device"
    )


@pytest.mark.parametrize(
    ("tables", "compiled", "lines"),
    [
        ((needs("a", table=1200),), True,
         ["does not fit: 0.0 MiB of 0.0 MiB",
          "most is taken by table 'a': 0.0 MiB, 0.0 MiB of rows"]),
        ((needs("a", 0, table=1200),), False,
         ["does not fit: at least 0.0 MiB of 0.0 MiB, so nothing was compiled",
          "most is taken by table 'a': 0.0 MiB, 0.0 MiB of rows; it is placed 'table', "
          "placement 'row' would cut it"]),
        ((needs("a", table=1), needs("b", refused="RESOURCE_EXHAUSTED: no")), True,
         ["does not fit: the compiler refused a program",
          "to blame is table 'b': RESOURCE_EXHAUSTED: no"]),
    ],
)  # fmt: skip
def test_text_of_what_does_not_fit(write, tables, compiled, lines):
    text = plan.as_text(load_model(write(SMALL)), Plan(CHIP, tables, compiled), None)
    last = "smallest listed topology that fits: none of v5e"
    assert text.splitlines()[-3:] == [*lines, last]


def test_without_a_compiler_the_command_tells_what_does_not_fit(no_compiler, capsys):
    asked = no_compiler(compiled_of)
    assert plan.main(["--topology", "v6e:2x2", "--batch", "64", "--json"]) == 1
    assert {size for size, _ in asked} == {8, 16, 32}  # for the smallest that fits
    told = json.loads(capsys.readouterr().out)
    assert (told["fits"], told["compiled"], told["largest_table"]) == (False, False, "cat_0")
    assert told["needed"] > told["available"] == topology("v6e:2x2").hbm
    assert [len(one["members"]) for one in told["tables"]] == [26]
    assert cli.main(["plan", "--topology", "v6e:2x2", "--batch", "64"]) == 1
    assert "does not fit: at least 48.68 GiB of 31.25 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v5e:4x5"], "topology must be one of v3:2x2, 4x4"),
        (["--topology", "v5e:4x4", "none.toml"], "model none.toml cannot be read: "),
        (["--topology", "v5e:4x4", "--seed", "-1"], "seed must be an integer >= 0, got -1"),
        (["--topology", "v5e:4x4", "--ids", "zip"], f"model {example_model()}: ids must be"),
    ],
)  # fmt: skip
def test_messages_of_the_command(arguments, message, capsys):
    assert plan.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"plan: error: {message}")
    assert cli.main(["plan", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"shardcore: error: {message}")


def test_without_libtpu(monkeypatch, write, capsys):
    monkeypatch.setattr(installation, "_importable", lambda module: module != "libtpu")
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    message = (
        "platform 'tpu' cannot be used here: libtpu, which jax needs for TPUs, is not installed; "
        "pip install 'jax[tpu]<0.13,>=0.10' 'packaging>=24'"
    )
    with pytest.raises(UnavailableError, match=f"^{re.escape(message)}$"):
        compiled_plan(load_model(write(SMALL)), topology("v5e:2x2"))
    assert plan.main(["--topology", "v5e:2x2", str(write(SMALL))]) == 2
    assert message in capsys.readouterr().err


def test_with_a_libtpu_of_another_jax(monkeypatch, write):
    versions = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.51"}
    pins = {"jax": [Pin("libtpu", (), SpecifierSet("==0.0.42.*"))]}
    monkeypatch.setattr(installation, "_importable", lambda module: True)
    monkeypatch.setattr(installation, "_installed", versions.get)
    monkeypatch.setattr(
        "shardcore_pjrt.platform.pins.pins_of", lambda name, extras: pins.get(name, [])
    )
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    message = "libtpu 0.0.51 is installed, but jax 0.10.2 needs libtpu==0.0.42.*; pip install"
    with pytest.raises(UnavailableError, match=re.escape(message)):
        compiled_plan(load_model(write(SMALL)), topology("v5e:2x2"))


def test_help_tells_the_exit_codes():
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    told = " ".join(parser.format_help().split())
    assert "The exit code is 0 if the model fits, 1 if it does not, 2 after an error." in told


def test_the_command_imports_no_jax_before_it_compiles():
    program = (
        "import sys; from shardcore.cli import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: print('jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


README = Path(__file__).parents[3] / "README.md"


@pytest.mark.skipif(not README.is_file(), reason="the documents are not beside these tests")
def test_the_readme_shows_a_plan_as_it_is_told():
    """What is counted is compared; of what only the compiler knows, the shape of the line."""
    page = README.read_text(encoding="utf-8")
    (shown,) = re.findall(r"^    \$ shardcore plan --topology v5e:4x4\n((?:    .*\n)+)", page, re.M)
    model = load_model(example_model())
    counted = replace(counted_plan(model, topology("v5e:4x4")), compiled=True)
    lines = plan.as_text(model, counted, counted).splitlines()
    wanted = [line for line in textwrap.dedent(shown).splitlines() if line != "…"]

    def shape(line):
        line = re.sub(r"by table '\w+'", "by table NAME", line)  # temporaries decide among equals
        return re.sub(r"\d[\d.]* [MG]iB", "SIZE", line)

    assert [shape(line) for line in wanted] == [shape(line) for line in (lines[0], *lines[-4:])]
    assert wanted[0] == lines[0]
    for counts in (r"tables [\d.]+ GiB, slots [\d.]+ GiB", r"\S+ \wiB of rows", r"that fits: \S+"):
        (number,) = re.findall(counts, "\n".join(wanted))
        assert [number] == re.findall(counts, "\n".join(lines))


@pytest.mark.libtpu
def test_a_model_that_fits(write, capsys):
    path = write(SMALL)
    assert cli.main(["plan", "--topology", "v5e:2x2", "--json", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["fits"], told["smallest_topology"]) == (True, "v5e:2x2")
    a, b, c = told["tables"]
    assert [one["programs"] for one in (a, b, c)] == [2, 2, 1]
    assert [one["exchange"] for one in (a, b, c)] == ["gather", "local", "one_hot"]
    counted = counted_plan(load_model(path), topology("v5e:2x2"))
    for one, before in zip(told["tables"], counted.tables, strict=True):
        assert one["batch"] >= before.batch
        assert one["seconds"] > 0
        assert one["code"] > 0


@pytest.mark.libtpu
def test_temporaries_are_what_makes_it_too_large(write, monkeypatch, capsys):
    """The rows fit; what one batch of very long bags needs besides does not."""
    text = 'batch = 1048576\nids = "uniform"\noptimizer = ""\n[[table]]\nname = "a"\n'
    text += 'rows = 20000000\ndim = 128\nhot = 64\nplacement = "replicated"\n'
    assert cli.main(["plan", "--topology", "v5e:2x2", str(write(text))]) == 1
    out = capsys.readouterr().out
    assert "does not fit: the compiler refused a program" in out
    assert "to blame is table 'a': RESOURCE_EXHAUSTED" in out
    assert counted_plan(load_model(write(text)), topology("v5e:2x2")).possible
