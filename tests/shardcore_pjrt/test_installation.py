"""Absent, mismatched and broken installations of jax, each a real one on disk; devices by name.

An installation is a folder with the modules and the metadata that pip would leave there. It is put
on the path of an interpreter that sees no other site-packages, beside shardcore and what that
needs, so that the same installations are tested whether jax is here or not.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from packaging.specifiers import SpecifierSet
from shardcore_pjrt.platform import installation, pins

import shardcore as sc
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, UnavailableError

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None,
    reason="jax is not installed",
)

ENTRIES = "[shardcore]\nshardcore_cpu = shardcore_cpu\nshardcore_pjrt = shardcore_pjrt\n"
OF_SHARDCORE = [
    f'{package}; extra == "{extra}"'
    for extra, jax in (("jax", "jax"), ("tpu", "jax[tpu]"), ("cuda", "jax[cuda12]"))
    for package in (f"{jax}<0.13,>=0.10", "packaging>=24")
]
OF_JAX = [
    "jaxlib<=0.10.2,>=0.10.1",
    "numpy>=2.0",
    'jaxlib<=0.10.2,>=0.10.2; extra == "tpu"',
    'libtpu==0.0.42.*; extra == "tpu"',
    'requests; extra == "tpu"',
    'jax-cuda12-plugin[with-cuda]<=0.10.2,>=0.10.2; extra == "cuda12"',
    'jax-cuda13-plugin[with-cuda]<=0.10.2,>=0.10.2; extra == "cuda13"',
]
# A client that starts no platform but "cpu", and no device that works.
JAX_THAT_STARTS_CPU_ONLY = """
class Device: pass
def devices(platform):
    if platform == "cpu":
        return [Device()]
    raise RuntimeError(f"Backend '{platform}' failed to initialize: NOT_FOUND:\\n no chip")
"""
SETTINGS = (
    *("SHARDCORE_PLUGINS", "SHARDCORE_STRICT_PLUGINS", "SHARDCORE_BACKEND", "PYTHONPATH"),
    *("JAX_PLATFORMS", "TPU_LIBRARY_PATH", "PJRT_NAMES_AND_LIBRARY_PATHS"),
)
PRELUDE = """
import sys
import shardcore as sc
def shown(call, *args, **options):
    try:
        print(call(*args, **options))
    except sc.ShardcoreError as error:
        print(f"{type(error).__name__}: {error}")
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder):
        self.folder = folder
        for package in (
            "shardcore",
            "shardcore_cpu",
            "shardcore_pjrt",
            "numpy",
            "packaging",
            "pluggy",
        ):
            found = Path(importlib.util.find_spec(package).origin).parent
            for path in (found, *found.parent.glob(f"{package}.libs")):
                (folder / path.name).symlink_to(path, target_is_directory=True)
        self.metadata("shardcore", "0.1.0", OF_SHARDCORE)
        (folder / "shardcore-0.1.0.dist-info" / "entry_points.txt").write_text(ENTRIES)

    def metadata(self, name, version, requires=()):
        """Leave what tells that a distribution is installed."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")

    def module(self, name, code=""):
        """Leave a package of one module."""
        (self.folder / name).mkdir(parents=True)
        (self.folder / name / "__init__.py").write_text(code)

    def jax(self, version="0.10.2", jaxlib="0.10.2", code=""):
        """Leave a jax that does what `code` does when it is imported."""
        self.metadata("jax", version, OF_JAX)
        self.module("jax", code)
        self.module("jax/extend")
        self.module("jax/extend/backend", "def backends(): return {'cpu': object()}")
        self.metadata("jaxlib", jaxlib)

    def libtpu(self, version="0.0.42.1"):
        self.metadata("libtpu", version)
        self.module("libtpu")

    def run(self, code, **env):
        """Return what `code` prints there, line by line."""
        inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        done = subprocess.run(
            [sys.executable, "-P", "-S", "-W", "error", "-c", PRELUDE + code],
            env={
                **inherited,
                "PYTHONPATH": str(self.folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                **env,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def why_not(self, name="pjrt", **options):
        """Return what asking for a backend raises."""
        env = {key: options.pop(key) for key in list(options) if key.isupper()}
        (line,) = self.run(f"shown(sc.get_backend, {name!r}, **{options!r})", **env)
        return line

    def listed(self, name, **env):
        """Return why a listing says that a backend is not available, and that jax stayed out."""
        reason, out = self.run(
            f"print(sc.backends()[{name!r}].reason)\nprint('jax' in sys.modules)", **env
        )
        assert out == "False"
        return reason


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


# ------------------------------------------------------------------------------------- absent


INSTALL = "pip install 'jax<0.13,>=0.10' 'packaging>=24'"
REINSTALL = INSTALL.replace("install", "install --force-reinstall")
NO_JAX = f"jax is not installed; {INSTALL}"
NO_LIBTPU = (
    "libtpu, which jax needs for TPUs, is not installed; "
    "pip install 'jax[tpu]<0.13,>=0.10' 'packaging>=24'"
)
NO_CUDA = (
    "jax's CUDA plug-in (jax-cuda12-plugin or a later one) is not installed; "
    "pip install 'jax[cuda12]<0.13,>=0.10' 'packaging>=24'"
)


@pytest.mark.slow
def test_no_jax(site):
    assert site.listed("pjrt") == site.listed("tpu") == NO_JAX
    for name in ("pjrt", "tpu"):
        assert site.why_not(name) == (
            f"UnavailableError: backend {name!r} is installed but cannot run here: {NO_JAX}"
        )


def test_jax_without_its_module(site):
    site.metadata("jax", "0.10.2", OF_JAX)
    assert site.listed("pjrt") == (
        "jax 0.10.2 is in the list of installed distributions, but its module is not there; "
        f"{REINSTALL}"
    )


@pytest.mark.slow
def test_tpu_without_libtpu(site):
    site.jax()
    assert site.listed("pjrt") == "None"
    assert site.listed("tpu") == NO_LIBTPU
    assert site.why_not("tpu") == (
        f"UnavailableError: backend 'tpu' is installed but cannot run here: {NO_LIBTPU}"
    )
    assert site.why_not(platform="tpu") == (
        f"UnavailableError: platform 'tpu' cannot be used here: {NO_LIBTPU}"
    )


def test_a_libtpu_named_by_hand_is_no_distribution_to_check(site):
    site.jax()
    assert site.listed("tpu", TPU_LIBRARY_PATH="/somewhere/libtpu.so") == "None"
    site.libtpu("0.0.51")
    assert site.listed("tpu", TPU_LIBRARY_PATH="/somewhere/libtpu.so") == "None"


@pytest.mark.slow
def test_cuda_without_its_plug_in(site):
    site.jax(code=JAX_THAT_STARTS_CPU_ONLY)
    assert site.why_not(platform="cuda") == (
        f"UnavailableError: platform 'cuda' cannot be used here: {NO_CUDA}"
    )
    code = (
        "from shardcore_pjrt.platform.installation import unavailable; print(unavailable('cuda'))"
    )
    assert site.run(code, PJRT_NAMES_AND_LIBRARY_PATHS="acme:/a.so,cuda:/c.so") == ["None"]
    assert site.run(code, PJRT_NAMES_AND_LIBRARY_PATHS="acme:/a.so") == [NO_CUDA]
    site.metadata("jax-cuda13-plugin", "0.10.2")
    assert site.run(code) == ["None"]


# ------------------------------------------------------------------------------------- mismatched


@pytest.mark.parametrize("version", ["0.0.51", "0.0.42rc1", "0.0.4.2"])
def test_a_libtpu_that_jax_does_not_pin(site, version):
    site.jax()
    site.libtpu(version)
    if version.startswith("0.0.42"):
        assert site.listed("tpu") == "None"
        return
    mismatch = (
        f"libtpu {version} is installed, but jax 0.10.2 needs libtpu==0.0.42.*; "
        "pip install 'libtpu==0.0.42.*'"
    )
    assert site.listed("tpu") == mismatch
    assert site.listed("pjrt") == "None"  # the CPU does without it
    assert site.why_not("tpu") == (
        f"UnavailableError: backend 'tpu' is installed but cannot run here: {mismatch}"
    )


def test_a_libtpu_that_jax_pins(site):
    site.jax()
    site.libtpu()
    assert site.listed("tpu") == "None"


def test_a_jaxlib_of_another_jax(site):
    site.jax(jaxlib="0.9.0")
    assert site.listed("pjrt") == (
        "jaxlib 0.9.0 is installed, but jax 0.10.2 needs jaxlib<=0.10.2,>=0.10.1; "
        "pip install 'jaxlib<=0.10.2,>=0.10.1'"
    )


def test_a_jaxlib_that_serves_the_cpu_and_not_the_tpu(site):
    site.jax(jaxlib="0.10.1")
    site.libtpu()
    assert site.listed("pjrt") == "None"
    assert site.listed("tpu") == (
        "jaxlib 0.10.1 is installed, but jax 0.10.2 needs jaxlib<=0.10.2,>=0.10.2; "
        "pip install 'jaxlib<=0.10.2,>=0.10.2'"
    )


def test_a_cuda_plug_in_of_another_jax(site):
    site.jax(code=JAX_THAT_STARTS_CPU_ONLY)
    site.metadata("jax-cuda12-plugin", "0.11.0")
    assert site.why_not(platform="cuda") == (
        "UnavailableError: platform 'cuda' cannot be used here: jax-cuda12-plugin 0.11.0 is "
        "installed, but jax 0.10.2 needs jax-cuda12-plugin<=0.10.2,>=0.10.2; "
        "pip install 'jax-cuda12-plugin[with-cuda]<=0.10.2,>=0.10.2'"
    )


@pytest.mark.parametrize("version", ["0.4.38", "0.13.0"])
def test_a_jax_that_we_do_not_know(site, version):
    site.jax(version)
    assert site.listed("pjrt") == (
        f"jax {version} is installed, but shardcore needs jax<0.13,>=0.10; "
        "pip install 'jax<0.13,>=0.10'"
    )


# ------------------------------------------------------------------------------------- broken


@pytest.mark.slow
def test_a_jax_that_cannot_be_imported(site):
    site.jax(code="raise RuntimeError('this CPU has no\\nAVX')")
    assert site.listed("pjrt") == "None"  # metadata cannot tell
    broken = (
        "BrokenPluginError: jax 0.10.2 is installed but broken: importing it raised "
        f"RuntimeError: this CPU has no AVX; {REINSTALL}"
    )
    assert site.why_not() == broken
    site.libtpu()
    assert site.why_not("tpu") == broken.replace("'jax<", "'jax[tpu]<")


def test_a_jax_without_metadata_that_lacks_its_other_half(site):
    site.module("jax", "import jaxlib_that_is_not_there")
    assert site.why_not() == (
        "BrokenPluginError: jax of unknown version is installed but broken: importing it raised "
        f"ModuleNotFoundError: No module named 'jaxlib_that_is_not_there'; {REINSTALL}"
    )


def devices_of(site, platform, **env):
    code = "from shardcore_pjrt.platform.installation import devices_of"
    (line,) = site.run(f"{code}\nshown(devices_of, {platform!r})", **env)
    return line


@pytest.mark.slow
def test_a_platform_that_does_not_start(site):
    site.jax(code=JAX_THAT_STARTS_CPU_ONLY)
    site.libtpu()
    told = (
        "UnavailableError: platform 'tpu' is installed but cannot be started: RuntimeError: "
        "Backend 'tpu' failed to initialize: NOT_FOUND: no chip; "
        "platforms that jax has started here: cpu"
    )
    assert devices_of(site, "tpu") == told
    assert devices_of(site, "tpu", JAX_PLATFORMS="cpu") == f"{told} (JAX_PLATFORMS is 'cpu')"
    assert devices_of(site, "cpu").startswith("[<jax.Device object")


def test_one_platform_that_fails_loudly_is_told(site):
    site.jax(code="def devices(platform): raise RuntimeError('Unable to initialize acme')")
    loud = "def backends(): raise RuntimeError('Unable to initialize acme')"
    (site.folder / "jax" / "extend" / "backend" / "__init__.py").write_text(loud)
    assert devices_of(site, "cpu") == (
        "UnavailableError: platform 'cpu' is installed but cannot be started: RuntimeError: "
        "Unable to initialize acme; platforms that jax has started here: none"
    )


# ------------------------------------------------------------------------------------- lightness


def test_jax_is_imported_only_for_the_backend_that_needs_it(site):
    site.jax(code="raise ImportError('imported')")
    code = """
def heavy():
    return sorted(name for name in sys.modules if name.startswith(("jax", "shardcore_pjrt.b")))
print(heavy())
print(sorted(sc.backends()), type(sc.get_backend("cpu")).__name__, heavy())
shown(sc.get_backend, "pjrt", mesh=3)
print(heavy())
shown(sc.get_backend, "pjrt")
"""
    printed = site.run(code)
    assert printed[:2] == ["[]", "['cpu', 'pjrt', 'tpu'] CpuBackend []"]
    assert printed[2] == (
        "ShardcoreTypeError: options of backend 'pjrt': got an unexpected keyword argument 'mesh'; "
        "it takes: platform: 'str' = 'cpu', devices: 'int | Sequence[jax.Device] | None' = None, "
        "lanes: 'int | None' = None, "
        "exchange: \"Literal['gather', 'all_to_all'] | None\" = None, "
        "strategy: \"Literal['sparsecore'] | None\" = None, "
        "batches: \"Literal['same', 'own']\" = 'same', check_agreement: 'bool' = False"
    )
    assert printed[3] == "[]"
    assert "ImportError: imported" in printed[4]


def test_the_backend_tpu_takes_no_platform(site):
    site.jax()
    site.libtpu()
    assert site.why_not("tpu", platform="cpu").startswith(
        "ShardcoreTypeError: options of backend 'tpu': got an unexpected keyword argument "
        "'platform'; it takes: devices: "
    )


@pytest.mark.parametrize(
    "module",
    [
        *("mesh.geometry", "platform.installation", "platform.pins", "routing.capacity"),
        *("routing.lookup_route", "routing.strategy", "routing.update_route"),
    ],
)
def test_what_needs_no_jax_imports_none(site, module):
    site.jax(code="raise ImportError('imported')")
    assert site.run(f"import shardcore_pjrt.{module}; print('jax' in sys.modules)") == ["False"]


def test_the_command_plan_is_listed():
    from shardcore_pjrt import shardcore_commands

    (command,) = shardcore_commands()
    assert (command.name, command.module) == ("plan", "shardcore_pjrt.planning.plan")
    assert importlib.util.find_spec(command.module) is not None


@pytest.mark.parametrize("name", ["pjrt", "tpu"])
def test_a_listing_shows_what_devices_can_hold(name):
    found = sc.backends()[name].capabilities
    assert found.dtypes == found.slot_dtypes == ("float32", "float16", "bfloat16")
    assert (found.exchanges, found.device_arrays) == (("exact",), True)


# ------------------------------------------------------------------------------------- pins


@pytest.mark.parametrize(
    ("specifier", "found", "allowed"),
    [
        ("==0.0.42.*", "0.0.42.1", True),
        ("==0.0.42.*", "0.0.51", False),
        (">=0.10.1,<=0.10.2", "0.10.2", True),
        (">=0.10.1,<=0.10.2", "0.10.3", False),
        ("<0.11", "0.11.0rc1", False),
        (">=0.10", "0.11.0.dev3", True),  # a nightly build is judged by its number
        ("==1.0", "1.0+cuda12", True),
        ("==1.0", "built yesterday", True),  # not judged
        ("", "1.0", True),
    ],
)
def test_versions_are_compared_as_pip_does(specifier, found, allowed):
    assert pins.Pin("libtpu", (), SpecifierSet(specifier)).allows(found) is allowed


def test_without_packaging_the_backend_says_so(site):
    site.jax()
    (site.folder / "packaging").unlink()
    assert site.listed("pjrt") == (
        f"packaging, by which versions are compared, is not installed; {INSTALL}"
    )


def test_requirements_are_read_as_pip_reads_them(site):
    site.metadata(
        "odd",
        "1",
        [
            "Under_Score.d (>=1)",
            "direct @ https://example.org/direct.whl",
            "mixed[a,b] >= 1 , < 2 ; python_version > '3' and extra == 'x'",
            "bare",
        ],
    )
    code = """
from shardcore_pjrt.platform.pins import pins_of
print([str(pin) for pin in pins_of("odd")])
print([str(pin) for pin in pins_of("odd", ["x", "y"])], pins_of("even"))
"""
    assert site.run(code) == [
        "['under-score-d>=1', 'bare']",
        "['under-score-d>=1', 'mixed[a,b]<2,>=1', 'bare'] []",
    ]


# ------------------------------------------------------------------------------------- devices


@needs_jax
def test_devices_by_name():
    import jax

    cpus = jax.devices("cpu")
    assert len(cpus) >= 8
    assert installation.devices_of("cpu") == cpus
    assert installation.devices_of("cpu", np.int64(3)) == cpus[:3]
    assert installation.devices_of("cpu", [cpus[5], cpus[2]]) == [cpus[5], cpus[2]]
    assert installation.devices_of("cpu", tuple(cpus)) == cpus


@needs_jax
def test_messages_about_devices():
    import jax

    cpus = jax.devices("cpu")
    count = len(cpus)

    def refused(error, text, *arguments):
        with pytest.raises(error, match=f"^{re.escape(text)}"):
            installation.devices_of(*arguments)

    refused(ShardcoreTypeError, "platform must be a str, got None", None)
    refused(ShardcoreValueError, "devices must be an integer >= 1, got 0", "cpu", 0)
    refused(
        ShardcoreValueError,
        f"devices must be at most {count}, the devices of platform 'cpu', got {count + 1}",
        "cpu",
        count + 1,
    )
    for devices in (True, np.True_, 1.5, "all", b"2", {1}):
        refused(
            ShardcoreTypeError,
            f"devices must be None, an integer or a sequence of jax.Device, got {devices!r}",
            "cpu",
            devices,
        )
    refused(
        ShardcoreValueError,
        "devices must hold at least one device, got an empty sequence",
        "cpu",
        [],
    )
    refused(
        ShardcoreTypeError,
        "devices must hold jax.Device only: devices[1] = 3",
        "cpu",
        [cpus[0], 3],
    )
    refused(
        ShardcoreValueError,
        f"devices must be distinct: devices[2] = {cpus[1]!r} is also devices[0]",
        "cpu",
        [cpus[1], cpus[0], cpus[1]],
    )
    refused(
        ShardcoreValueError,
        "platform must be one that jax knows, got 'abacus'; platforms that jax has started "
        "here: cpu",
        "abacus",
    )


@needs_jax
@pytest.mark.libtpu
def test_devices_of_another_platform():
    import jax
    from jax.experimental import topologies

    foreign = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    cpu = jax.devices("cpu")[0]
    text = (
        f"devices must be of platform 'cpu': devices[1] = {foreign!r} is of platform "
        f"{foreign.platform!r}"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        installation.devices_of("cpu", [cpu, foreign])


@needs_jax
@pytest.mark.libtpu
def test_a_real_libtpu_without_a_chip_is_a_sentence():
    code = """
import jax
from shardcore_pjrt.platform.installation import devices_of
from shardcore.errors import ShardcoreError
try:
    print(devices_of("tpu"))
except ShardcoreError as error:
    print(f"{type(error).__name__}: {error}")
"""
    env = {**os.environ, "JAX_PLATFORMS": "", "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    if line.startswith("["):
        pytest.skip("there is a TPU here")
    assert line.startswith(
        "UnavailableError: platform 'tpu' is installed but cannot be started: RuntimeError: "
    )
    assert "platforms that jax has started here: cpu" in line


@needs_jax
def test_a_matching_installation_passes():
    installation.require("cpu")
    assert installation.unavailable("cpu") is None


@needs_jax
def test_cuda_is_a_sentence_where_there_is_none():
    if any(device.platform == "gpu" for device in __import__("jax").devices()):
        pytest.skip("there is a GPU here")
    with pytest.raises(UnavailableError, match=f"{re.escape(NO_CUDA)}$"):
        installation.devices_of("cuda")
