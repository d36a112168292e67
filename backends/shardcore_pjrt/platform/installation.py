"""Whether JAX can be used here, and its devices, by name.

An installation that cannot be used is one of three things, and each has its own sentence with the
command that mends it:

absent
    JAX, or what it needs for a platform, is not installed.
mismatched
    Two parts of it do not belong together. JAX does not report some of these: a libtpu other than
    the one it pins compiles for a few chips, fails on others and misreports memory on the rest.
broken
    It is there and cannot be imported, or cannot start the platform.

The first two are found from metadata alone (`unavailable`), without importing JAX and without a
client, so that listing the backends is quick and has no effects. Only `require` and `devices_of`
import it. Nothing here sets anything in JAX or in the environment, and devices are always those
of a platform by name: JAX's default platform plays no part.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distributions, version
from typing import TYPE_CHECKING, Any

import numpy as np

from shardcore.errors import (
    BrokenPluginError,
    ShardcoreTypeError,
    ShardcoreValueError,
    UnavailableError,
)
from shardcore.extras import pip_install

if TYPE_CHECKING:
    import jax

    from shardcore_pjrt.platform.pins import Pin

__all__ = ["devices_of", "require", "unavailable"]

_CUDA_PLUGIN = re.compile(r"jax-(cuda\d+)-plugin")


def _installed(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def unavailable(platform: str) -> str | None:
    """Return why a platform cannot be used here, or None if metadata shows no reason.

    Parameters
    ----------
    platform : str
        As JAX names it: ``"cpu"``, ``"tpu"``, ``"cuda"``, or one of a third party's plug-in.

    Returns
    -------
    str or None
        One sentence that ends in the command that mends it.

    Examples
    --------
    >>> from shardcore.plugins.registry import backends
    >>> unavailable("cpu") == backends()["pjrt"].reason
    True
    """
    absent = _absent(platform)
    if absent is not None:
        return absent
    for owner, pin in _pins(platform):
        found = _installed(pin.name)
        if found is not None and not pin.allows(found):
            return (
                f"{pin.name} {found} is installed, but {owner} needs {pin.name}{pin.specifier}; "
                f"pip install '{pin}'"
            )
    return None


def require(platform: str) -> None:
    """Import JAX for a platform, or raise with the reason and the command that mends it.

    Parameters
    ----------
    platform : str
        As JAX names it.

    Raises
    ------
    ShardcoreTypeError
        If `platform` is no string.
    UnavailableError
        If JAX, or what it needs for the platform, is absent, or its parts do not match.
    BrokenPluginError
        If JAX is there and cannot be imported.
    """
    if not isinstance(platform, str):
        raise ShardcoreTypeError(f"platform must be a str, got {platform!r}")
    reason = unavailable(platform)
    if reason is not None:
        raise UnavailableError(f"platform {platform!r} cannot be used here: {reason}")
    try:
        importlib.import_module("jax")
    except Exception as error:
        extra = platform if platform in ("tpu", "cuda") else "jax"
        raise BrokenPluginError(
            f"jax {_installed('jax') or 'of unknown version'} is installed but broken: importing "
            f"it raised {_in_one_line(error)}; {pip_install(extra, '--force-reinstall')}"
        ) from error


def devices_of(
    platform: str, devices: int | Sequence[jax.Device] | None = None
) -> list[jax.Device]:
    """Return devices of a platform, all of them or those chosen.

    Parameters
    ----------
    platform : str
        As JAX names it. It is started if it was not yet.
    devices : int or sequence of jax.Device, optional
        How many, the first ones, or which ones, in this order. None is all of them; in a program
        of several processes, those of all its processes.

    Returns
    -------
    list of jax.Device
        At least one.

    Raises
    ------
    ShardcoreTypeError
        If `platform` is no string, or `devices` is none of the above.
    ShardcoreValueError
        If JAX knows no such platform, it has fewer devices, or `devices` is empty, names a device
        twice or one of another platform.
    UnavailableError
        If the platform cannot be used or started here.
    BrokenPluginError
        If JAX cannot be imported.
    """
    require(platform)
    found = _started(platform)
    if devices is None:
        return found
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Sequence):
        return found[: _count(devices, platform, len(found))]
    return _chosen(devices, platform, found)


# --- from metadata alone ------------------------------------------------------------------------


def _absent(platform: str) -> str | None:
    found = _installed("jax")
    if not _importable("jax"):
        if found is None:
            return f"jax is not installed; {pip_install('jax')}"
        return (
            f"jax {found} is in the list of installed distributions, but its module is not "
            f"there; {pip_install('jax', '--force-reinstall')}"
        )
    if not _importable("packaging"):
        return f"packaging, by which versions are compared, is not installed; {pip_install('jax')}"
    if platform == "tpu" and not _importable("libtpu") and "TPU_LIBRARY_PATH" not in os.environ:
        return f"libtpu, which jax needs for TPUs, is not installed; {pip_install('tpu')}"
    if platform == "cuda" and not _cuda_plugins() and not _named_by_hand(platform):
        return (
            "jax's CUDA plug-in (jax-cuda12-plugin or a later one) is not installed; "
            f"{pip_install('cuda')}"
        )
    return None


def _importable(module: str) -> bool:
    """Return whether a module of the top level can be found; it is not imported."""
    return importlib.util.find_spec(module) is not None


def _named_by_hand(platform: str) -> bool:
    """Return whether the environment names the library of a platform, as JAX lets it."""
    named = os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", "")
    return platform in [pair.split(":")[0] for pair in named.split(",")]


def _cuda_plugins() -> dict[str, str]:
    """Return jax's installed CUDA plug-ins, by the extra of jax that pins them."""
    plugins = {}
    for found in distributions():
        name = re.sub("[-_.]+", "-", found.name or "").lower()
        kind = _CUDA_PLUGIN.fullmatch(name)
        if kind:
            plugins[kind[1]] = name
    return plugins


def _pins(platform: str) -> Iterator[tuple[str, Pin]]:
    """Yield the requirements that count for a platform, each with whose it is."""
    from shardcore_pjrt.platform.pins import pins_of

    for pin in pins_of("shardcore", ["jax"]):
        if pin.name == "jax" and not pin.extras:
            yield "shardcore", pin
    jax = f"jax {_installed('jax')}"
    extras = set()
    if platform == "tpu" and "TPU_LIBRARY_PATH" not in os.environ:  # else it is no distribution's
        extras.add("tpu")
    elif platform == "cuda":
        extras.update(_cuda_plugins())
    for pin in pins_of("jax", extras):
        if pin.name.startswith(("jax", "libtpu")):
            yield jax, pin


# --- from a started platform --------------------------------------------------------------------


def _in_one_line(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _started(platform: str) -> list[jax.Device]:
    """Return all devices of a platform, started now if it was not."""
    import jax
    import jax.extend.backend

    try:
        return list(jax.devices(platform))
    except RuntimeError as error:
        reason = _in_one_line(error)
        cause = error
    try:
        known = ", ".join(jax.extend.backend.backends())
    except RuntimeError:  # the same one: jax starts nothing while one platform fails loudly
        known = "none"
    here = f"platforms that jax has started here: {known}"
    restricted = os.environ.get("JAX_PLATFORMS")
    if restricted:
        here += f" (JAX_PLATFORMS is {restricted!r})"
    if platform not in ("cpu", "tpu", "cuda") and "unknown backend" in reason.lower():
        raise ShardcoreValueError(
            f"platform must be one that jax knows, got {platform!r}; {here}"
        ) from cause
    raise UnavailableError(
        f"platform {platform!r} is installed but cannot be started: {reason}; {here}"
    ) from cause


def _count(devices: Any, platform: str, available: int) -> int:
    try:
        count = None if isinstance(devices, bool | np.bool_) else operator.index(devices)
    except TypeError:
        count = None
    if count is None:
        raise ShardcoreTypeError(
            f"devices must be None, an integer or a sequence of jax.Device, got {devices!r}"
        )
    if count < 1:
        raise ShardcoreValueError(f"devices must be an integer >= 1, got {count}")
    if count > available:
        raise ShardcoreValueError(
            f"devices must be at most {available}, the devices of platform {platform!r}, "
            f"got {count}"
        )
    return count


def _chosen(
    devices: Sequence[jax.Device], platform: str, found: list[jax.Device]
) -> list[jax.Device]:
    import jax

    if not devices:
        raise ShardcoreValueError("devices must hold at least one device, got an empty sequence")
    first: dict[jax.Device, int] = {}
    for position, device in enumerate(devices):
        if not isinstance(device, jax.Device):
            raise ShardcoreTypeError(
                f"devices must hold jax.Device only: devices[{position}] = {device!r}"
            )
        if device not in found:
            raise ShardcoreValueError(
                f"devices must be of platform {platform!r}: devices[{position}] = {device!r} is of "
                f"platform {device.client.platform!r}"
            )
        if device in first:
            raise ShardcoreValueError(
                f"devices must be distinct: devices[{position}] = {device!r} is also "
                f"devices[{first[device]}]"
            )
        first[device] = position
    return list(devices)
