"""Discovery of plugins, against real packages on disk, each case in an interpreter of its own.

The packages are under ``tests/plugins/site``: a folder per case with a module and a hand-written
``*.dist-info``, put on the path of a subprocess.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError
from shardcore.extras import pip_install
from shardcore.plugins.hookspecs import BackendSpec, CommandSpec, Hooks, OptimizerSpec

SITE = Path(__file__).parent / "site"
SETTINGS = ("SHARDCORE_PLUGINS", "SHARDCORE_STRICT_PLUGINS", "SHARDCORE_BACKEND")

# What every subprocess starts with: `shown` runs a call and prints its result or its error.
PRELUDE = """
import sys
from shardcore import optimizers
from shardcore.plugins import registry
from shardcore.errors import ShardcoreError

def shown(call, *args, **options):
    try:
        print(call(*args, **options))
    except ShardcoreError as error:
        print(f"{type(error).__name__}: {error}")
"""


FIRST_PARTY = (
    *("Adagrad", "AdagradMomentum", "Adam", "AdamW", "Custom", "FTRL", "LAMB", "LARS"),
    *("RMSProp", "RowwiseAdagrad", "RowwiseAdam", "SGD"),
)


def provided(*more):
    """Return the names of all optimizers: the first-party ones and those of a plugin."""
    return tuple(sorted([*FIRST_PARTY, *more]))


def importable(module):
    return importlib.util.find_spec(module) is not None


BACKENDS = ("cpu", "pjrt", "sim", "tpu")
NOT_USABLE = {}
if not importable("jax"):
    NOT_USABLE = dict.fromkeys(
        ("pjrt", "tpu"),
        f"jax is not installed; {pip_install('jax')}",
    )
elif not importable("libtpu"):
    NOT_USABLE["tpu"] = f"libtpu, which jax needs for TPUs, is not installed; {pip_install('tpu')}"


def usable(*more):
    """Return, as a message does, the backends that can be used here: ours and a plugin's."""
    return ", ".join(sorted([*(name for name in BACKENDS if name not in NOT_USABLE), *more]))


def python(
    code: str, *sites: str | Path, prelude: str = PRELUDE, flags: tuple[str, ...] = (), **env: str
) -> str:
    """Return what `code` prints with the named folders of ``tests/plugins/site`` installed."""
    folders = [str(SITE / site) for site in sites]
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    path = os.pathsep.join([*folders, *filter(None, [inherited.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", *flags, "-c", prelude + code],
        env={**inherited, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


BROKEN = (
    "plugin broken-plugin:torn (broken-plugin 0.3) could not be loaded: "
    "ModuleNotFoundError: No module named 'a_module_that_does_not_exist'"
)

# ----------------------------------------------------------------------------- importing is light


def test_import_loads_no_plugin_and_nothing_heavy():
    code = """
import sys
import shardcore, shardcore.plugins.registry, shardcore.optimizers, shardcore.plugins.hookspecs
heavy = ("shardcore_", "jax", "ml_dtypes", "torch", "scipy", "pyarrow")
print(sorted(name for name in sys.modules if name.startswith(heavy)))
"""
    assert python(code, prelude="") == "[]"


def test_listing_loads_plugins_but_not_what_they_provide():
    code = """
import sys
from shardcore.plugins import registry
print(sorted(registry.backends()), registry.optimizers())
print(any(name.startswith(("jax", "ml_dtypes")) for name in sys.modules))
print([n for n in sys.modules if n.startswith("shardcore_") and n.endswith(".backend")])
print([name for name in sys.modules if "._update" in name])
"""
    printed = python(code, "good", prelude="").splitlines()
    assert printed == [
        f"{['acme', *BACKENDS]} {provided('HeavyBall')}",
        "False",
        "[]",
        "[]",
    ]


def test_door_does_not_discover_for_private_names():
    code = """
print(hasattr(optimizers, "__path__"), hasattr(optimizers, "_x"))
print("shardcore_optimizers" in sys.modules)
"""
    assert python(code).splitlines() == ["False False", "False"]


# ----------------------------------------------------------------------------- what comes with us


def test_first_party_plugins():
    code = """
for plugin in registry.plugins():
    print(plugin.identity, plugin.first_party, plugin.error)
for name, info in registry.backends().items():
    print(name, info)
"""
    assert python(code).splitlines() == [
        "shardcore:shardcore_bench True None",
        "shardcore:shardcore_cpu True None",
        "shardcore:shardcore_demo True None",
        "shardcore:shardcore_optimizers True None",
        "shardcore:shardcore_pjrt True None",
        "shardcore:shardcore_sim True None",
        *(
            f"{name} BackendInfo(available={name not in NOT_USABLE}, "
            f"reason={NOT_USABLE.get(name)!r}, provider='shardcore:shardcore_{plugin}')"
            for name, plugin in zip(BACKENDS, ("cpu", "pjrt", "sim", "pjrt"), strict=True)
        ),
    ]


@pytest.mark.slow
def test_default_backend():
    code = """
print(type(registry.get_backend()).__name__, type(registry.get_backend("sim")).__name__)
"""
    assert python(code) == "CpuBackend SimBackend"
    code = "print(type(registry.get_backend()).__name__)"
    assert python(code, SHARDCORE_BACKEND="") == "CpuBackend"
    assert python(code, SHARDCORE_BACKEND="sim") == "SimBackend"


def test_core_names_no_plugin():
    core = Path(importlib.util.find_spec("shardcore").origin).parent
    imported = {}
    for path in core.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.setdefault(node.module or "", path)
            elif isinstance(node, ast.Import):
                imported.update((alias.name, path) for alias in node.names)
    assert "shardcore.errors" in imported
    assert {name: path for name, path in imported.items() if name.startswith("shardcore_")} == {}


# ----------------------------------------------------------------------------- a third party's


def test_good_plugin():
    code = """
backend = registry.get_backend("acme", colour="blue")
print(type(backend).__module__, backend.colour, registry.get_backend("acme").colour)
print(registry.backends()["acme"])
print(registry.plugins()[-1])
print(optimizers.HeavyBall(0.5), registry.get_optimizer("HeavyBall") is optimizers.HeavyBall)
print(dir(optimizers))
"""
    assert python(code, "good").splitlines() == [
        "shardcore_acme.backend blue red",
        "BackendInfo(available=True, reason=None, provider='shardcore-acme:acme')",
        "shardcore-acme:acme (shardcore-acme 1.2)",
        "HeavyBall(learning_rate=0.5, momentum=0.9) True",
        str(sorted([*provided("HeavyBall"), "UnknownOptimizerError"])),
    ]


def test_options_that_a_backend_does_not_take():
    code = """
shown(registry.get_backend, "acme", size=3)
shown(registry.get_backend, "cpu", hosts=3)
"""
    assert python(code, "good").splitlines() == [
        "ShardcoreTypeError: options of backend 'acme': got an unexpected keyword argument 'size'; "
        "it takes: colour='red'",
        "ShardcoreTypeError: options of backend 'cpu': got an unexpected keyword argument 'hosts'; "
        "it takes: none",
    ]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="needs setuptools")
@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")
def test_good_plugin_really_installed(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(SITE / "good", source, ignore=shutil.ignore_patterns("*.dist-info"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code = """
import shardcore_acme
print(shardcore_acme.__file__)
print(registry.plugins()[-1], registry.get_backend("acme").colour, optimizers.HeavyBall())
"""
    assert python(code, target).splitlines() == [
        str(target / "shardcore_acme" / "__init__.py"),
        "shardcore-acme:acme (shardcore-acme 1.2) red HeavyBall(learning_rate=0.01, momentum=0.9)",
    ]


def as_project(folder, source):
    """Turn an installed package on disk into a project that pip can install."""
    (info,) = (SITE / folder).glob("*.dist-info")
    shutil.copytree(SITE / folder, source, ignore=shutil.ignore_patterns("*.dist-info"))
    metadata = dict(
        line.split(": ", 1) for line in (info / "METADATA").read_text().splitlines() if ": " in line
    )
    entries = (info / "entry_points.txt").read_text()
    quoted = re.sub(r"^(\w+) = (\S+)$", r'\1 = "\2"', entries, flags=re.MULTILINE)
    (source / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        f"[project]\nname = '{metadata['Name']}'\nversion = '{metadata['Version']}'\n"
        + quoted.replace("[shardcore]", "[project.entry-points.shardcore]")
    )


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="needs setuptools")
@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")
def test_bad_plugins_really_installed_are_told_as_those_on_disk(tmp_path):
    folders = ["broken", "clash", "misspelt", "unavailable"]
    for folder in folders:
        as_project(folder, tmp_path / folder)
    target = tmp_path / "target"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    sources = [str(tmp_path / folder) for folder in folders]
    done = subprocess.run([*command, *sources], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code = """
for plugin in registry.plugins():
    print(plugin)
for name, info in registry.backends().items():
    print(name, info)
    if not info.available:
        shown(registry.get_backend, name)
"""
    installed = python(code, target).replace(str(target), "PLACE")
    assert installed == python(code, *folders).replace(str(SITE / "misspelt"), "PLACE")
    assert "could not be loaded" in installed
    assert "PluginConflictError" in installed
    assert "UnavailableError" in installed


# ----------------------------------------------------------------------------- unknown


def test_unknown_names():
    code = """
shown(registry.get_backend, "gpu")
shown(registry.get_optimizer, "Adamm")
shown(getattr, optimizers, "Adamm")
shown(getattr, optimizers, "_private")
print(hasattr(optimizers, "Adamm"), getattr(optimizers, "Adamm", 7))
try:
    optimizers.Adamm
except AttributeError as error:
    print(isinstance(error, ShardcoreError), isinstance(error, ValueError))
"""
    assert python(code).splitlines() == [
        f"UnknownPluginError: unknown backend 'gpu'; available: {usable()}",
        f"UnknownPluginError: unknown optimizer 'Adamm'; available: {', '.join(provided())}",
        f"UnknownOptimizerError: unknown optimizer 'Adamm'; available: {', '.join(provided())}",
        "UnknownOptimizerError: module 'shardcore.optimizers' has no attribute '_private'",
        "False 7",
        "True True",
    ]


def test_unknown_name_from_the_environment():
    code = "shown(registry.get_backend)"
    text = (
        f"UnknownPluginError: unknown backend 'gpu' (from SHARDCORE_BACKEND); available: {usable()}"
    )
    assert python(code, SHARDCORE_BACKEND="gpu") == text


def test_unknown_name_lists_what_is_available_here_only():
    code = "shown(registry.get_backend, 'gpu')"
    text = f"UnknownPluginError: unknown backend 'gpu'; available: {usable('torn', 'usable')}"
    assert python(code, "unavailable") == text


def test_unknown_names_in_a_checkout_that_is_not_installed(tmp_path):
    # A folder with the packages and without any metadata, and an interpreter without its site.
    for package in ("shardcore", "numpy", "pluggy"):
        folder = Path(importlib.util.find_spec(package).origin).parent
        for path in (folder, *folder.parent.glob(f"{package}.libs")):
            (tmp_path / path.name).symlink_to(path, target_is_directory=True)
    code = """
print(registry.backends(), registry.optimizers(), registry.plugins())
shown(registry.get_backend)
shown(getattr, optimizers, "SGD")
"""
    note = (
        "no plugin of shardcore itself was found: shardcore is not installed, "
        "a bare checkout has no backends and no optimizers; run pip install -e ."
    )
    assert python(code, flags=("-S",), PYTHONPATH=str(tmp_path)).splitlines() == [
        "{} () []",
        "UnknownPluginError: unknown backend 'cpu'; available: none",
        note,
        "UnknownOptimizerError: unknown optimizer 'SGD'; available: none",
        note,
    ]


@pytest.mark.parametrize("name", [3, ["cpu"]])
def test_names_must_be_strings(name):
    code = f"shown(registry.get_backend, {name!r})\nshown(registry.get_optimizer, {name!r})"
    assert python(code).splitlines() == [
        f"ShardcoreTypeError: name of a backend must be a str or None, got {name!r}",
        f"ShardcoreTypeError: name of an optimizer must be a str, got {name!r}",
    ]


# ----------------------------------------------------------------------------- broken


def test_broken_plugin_keeps_no_other_from_working():
    code = """
print(registry.get_backend("acme").colour, sorted(registry.backends()))
print([plugin.identity for plugin in registry.plugins() if plugin.error])
shown(registry.get_backend, "gpu")
shown(registry.get_optimizer, "Adamm")
"""
    assert python(code, "broken", "good").splitlines() == [
        f"red {['acme', *BACKENDS]}",
        "['broken-plugin:torn']",
        f"UnknownPluginError: unknown backend 'gpu'; available: {usable('acme')}",
        BROKEN,
        "UnknownPluginError: unknown optimizer 'Adamm'; "
        f"available: {', '.join(provided('HeavyBall'))}",
        BROKEN,
    ]


def test_broken_plugin_asked_for_by_its_name():
    code = "shown(registry.get_backend, 'torn')"
    text = f"BrokenPluginError: backend 'torn' is broken: {BROKEN}"
    assert python(code, "broken") == text
    code = "shown(registry.get_backend)"
    text = f"BrokenPluginError: backend 'torn' (from SHARDCORE_BACKEND) is broken: {BROKEN}"
    assert python(code, "broken", SHARDCORE_BACKEND="torn") == text


def test_backend_whose_modules_cannot_be_imported():
    code = """
shown(registry.get_backend, "torn")
try:
    registry.get_backend("torn")
except ShardcoreError as error:
    print(type(error.__cause__).__name__)
"""
    assert python(code, "unavailable").splitlines() == [
        "BrokenPluginError: backend 'torn' of unavailable-plugin:unavailable is broken: "
        "ModuleNotFoundError: No module named 'a_module_that_does_not_exist'",
        "ModuleNotFoundError",
    ]


def test_misspelt_hook_is_a_failure_of_its_plugin():
    code = "shown(registry.get_backend, 'spelling')"
    first, second = python(code, "misspelt", "good").splitlines()
    assert first == f"UnknownPluginError: unknown backend 'spelling'; available: {usable('acme')}"
    assert second.startswith(
        "plugin misspelt-plugin:misspelt (misspelt-plugin 0.1) could not be loaded: "
        "PluginValidationError: unknown hook 'shardcore_optimisers' in plugin"
    )


def test_malformed_plugins():
    code = """
for plugin in registry.plugins():
    if plugin.error:
        print(plugin.name, plugin.error)
print(sorted(registry.backends()), registry.optimizers())
"""
    printed = python(code, "malformed").splitlines()
    assert printed.pop(0).startswith(
        "arguments PluginValidationError: Plugin 'malformed-plugin:arguments' for hook "
        "'shardcore_backends'"
    )
    assert printed == [
        "bare ShardcoreTypeError: shardcore_backends() must yield BackendSpec records, got "
        "BackendSpec(name='bare', factory=<class 'dict'>, unavailable=None, capabilities=None)",
        "name ShardcoreValueError: name of a backend must be lower-case letters, digits and "
        "underscores, starting with a letter, got 'Upper'",
        "nothing ShardcoreTypeError: shardcore_optimizers() must yield OptimizerSpec records, "
        "got None",
        "twice ShardcoreValueError: shardcore_optimizers() yields the name 'Twin' twice",
        "unmarked ShardcoreValueError: it implements no hook; mark shardcore_backends, "
        "shardcore_optimizers or shardcore_commands with @hookimpl",
        "wrong ShardcoreTypeError: shardcore_backends() must yield BackendSpec records, got "
        "OptimizerSpec(name='Wrong', factory=<class 'dict'>)",
        f"{[*BACKENDS]} {provided()}",
    ]


def test_plugin_that_asks_while_it_is_asked():
    code = "print(registry.plugins()[-1])"
    assert python(code, "curious") == (
        "curious-plugin:curious (curious-plugin 0.1) could not be loaded: ShardcoreRuntimeError: "
        "plugins are being loaded; a plugin must not ask for backends or optimizers while it is "
        "imported or yields its records"
    )


# ----------------------------------------------------------------------------- unavailable


def test_unavailable_backends():
    code = """
for name, info in registry.backends().items():
    if info.provider.startswith("unavailable"):
        print(name, info.available, info.reason)
for name in ("abacus", "moody", "vague"):
    shown(registry.get_backend, name)
print(registry.get_backend("usable", a=1))
"""
    assert python(code, "unavailable").splitlines() == [
        "abacus False no abacus is attached; attach one",
        "moody False cannot tell whether it is available: OSError: the device did not answer",
        "torn True None",
        "usable True None",
        "vague False cannot tell whether it is available: unavailable() must return None or a "
        "sentence, got True",
        "UnavailableError: backend 'abacus' is installed but cannot run here: no abacus is "
        "attached; attach one",
        "BrokenPluginError: backend 'moody' of unavailable-plugin:unavailable is broken: it "
        "cannot tell whether it is available: OSError: the device did not answer",
        "BrokenPluginError: backend 'vague' of unavailable-plugin:unavailable is broken: it "
        "cannot tell whether it is available: unavailable() must return None or a sentence, got "
        "True",
        "{'a': 1}",
    ]


# ----------------------------------------------------------------------------- conflicts


def conflict(what: str, name: str, ours: str) -> str:
    return (
        f"{what} {name!r} is provided by both shardcore:{ours} and clash-plugin:clash; uninstall "
        "all but one of them, or set SHARDCORE_PLUGINS='' to load only the plugins that come with "
        "shardcore"
    )


def test_two_providers_of_a_name():
    code = """
shown(registry.get_backend, "sim")
shown(registry.get_optimizer, "SGD")
shown(getattr, optimizers, "SGD")
shown(hasattr, optimizers, "SGD")
print(registry.backends()["sim"].available, registry.backends()["sim"].provider)
print(registry.backends()["sim"].reason)
print(registry.optimizers(), optimizers.Adagrad.__name__)
"""
    sim = conflict("backend", "sim", "shardcore_sim")
    sgd = conflict("optimizer", "SGD", "shardcore_optimizers")
    assert python(code, "clash").splitlines() == [
        f"PluginConflictError: {sim}",
        *[f"PluginConflictError: {sgd}"] * 3,
        "False shardcore:shardcore_sim and clash-plugin:clash",
        sim,
        f"{provided()} Adagrad",
    ]


def test_way_out_of_a_conflict():
    code = """
print(optimizers.SGD(), sorted(registry.backends()))
print([plugin.identity for plugin in registry.plugins() if not plugin.first_party])
"""
    assert python(code, "clash", "good", "broken", SHARDCORE_PLUGINS="").splitlines() == [
        f"SGD(learning_rate=0.01) {[*BACKENDS]}",
        "[]",
    ]


def test_reserved_names():
    code = """
for plugin in registry.plugins():
    print(plugin.identity, plugin.error)
print(registry.backends()["sim"].provider, "shardcore_fast" in registry.backends())
"""
    rule = "names starting with 'shardcore_' belong to the distribution shardcore"
    assert python(code, "reserved").splitlines() == [
        "shardcore:shardcore_bench None",
        "shardcore:shardcore_cpu None",
        "shardcore:shardcore_demo None",
        "shardcore:shardcore_optimizers None",
        "shardcore:shardcore_pjrt None",
        "shardcore:shardcore_sim None",
        "hijack-plugin:shardcore_sim ShardcoreValueError: entry point 'shardcore_sim' is reserved: "
        + rule,
        "hijack-plugin:squatter ShardcoreValueError: name 'shardcore_fast' is reserved: " + rule,
        "shardcore:shardcore_sim False",
    ]


# ----------------------------------------------------------------------------- settings, threads


def test_strict_raises_the_first_failure():
    code = """
shown(registry.backends)
try:
    registry.backends()
except ShardcoreError as error:
    print(type(error.__cause__).__name__)
"""
    assert python(code, "broken", SHARDCORE_STRICT_PLUGINS="1").splitlines() == [
        f"BrokenPluginError: {BROKEN}",
        "ModuleNotFoundError",
    ]
    code = "print(sorted(registry.backends()))"
    assert python(code, "broken", SHARDCORE_STRICT_PLUGINS="0") == str([*BACKENDS])


def test_plugins_setting_is_checked():
    assert python("shown(registry.backends)", SHARDCORE_PLUGINS="acme") == (
        "ShardcoreValueError: SHARDCORE_PLUGINS must be unset (all plugins) or empty (first-party "
        "plugins only), got 'acme'"
    )


def test_discovery_happens_once_whoever_comes_first():
    code = """
import threading
import importlib.metadata
from shardcore.plugins import registry as module

calls = []
find = importlib.metadata.entry_points
module.entry_points = lambda **group: calls.append(group) or find(**group)
barrier, seen = threading.Barrier(8), []

def ask():
    barrier.wait()
    seen.append((tuple(registry.backends()), registry.optimizers()))

threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(seen), len(set(seen)), calls)
registry._reset()
registry.backends()
print(len(calls))
"""
    assert python(code, "good").splitlines() == ["8 1 [{'group': 'shardcore'}]", "2"]


# ----------------------------------------------------------------------------- records


@pytest.mark.parametrize("name", ["Upper", "1st", "", "a-b", "a b", "_a", None, 3, "a\n"])
def test_backend_name_messages(name):
    text = (
        "name of a backend must be lower-case letters, digits and underscores, starting with a "
        f"letter, got {name!r}"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        BackendSpec(name, factory=dict)


@pytest.mark.parametrize("name", ["1st", "", "a-b", "_Adam", None, "lambda"])
def test_optimizer_name_messages(name):
    text = (
        "name of an optimizer must be letters, digits and underscores, starting with a letter, "
        f"and no keyword, got {name!r}"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        OptimizerSpec(name, factory=dict)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: BackendSpec("a", None), "factory of backend 'a' must be callable, got None"),
        (lambda: BackendSpec("a", dict, 3), "unavailable of backend 'a' must be callable, got 3"),
        (lambda: OptimizerSpec("A", "B"), "factory of optimizer 'A' must be callable, got 'B'"),
    ],
)
def test_factory_messages(make, text):
    with pytest.raises(ShardcoreTypeError, match=re.escape(text)):
        make()


def test_records_are_frozen_values():
    record: Any = BackendSpec("a", dict)
    assert record == BackendSpec("a", dict)
    with pytest.raises(AttributeError, match="name"):
        record.name = "b"


def test_specifications_yield_nothing_themselves():
    assert list(Hooks().shardcore_backends()) == []
    assert list(Hooks().shardcore_optimizers()) == []


def test_unknown_optimizer_error_is_a_shardcore_error():
    from shardcore.optimizers import UnknownOptimizerError

    assert issubclass(UnknownOptimizerError, ShardcoreError)
    assert issubclass(UnknownOptimizerError, AttributeError)


def test_name_of_a_command():
    message = (
        "name of a command must be lower-case letters, digits and dashes, starting with a letter, "
        "got 'Say hello'"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        CommandSpec("Say hello", "", "acme.hello")
