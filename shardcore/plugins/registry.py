"""Which backends and optimizers there are: discovery of the plugins of the group ``shardcore``.

Plugins are looked for on first use and the result is kept for the life of the process. Each plugin
is loaded on its own: one that fails is remembered with its error and keeps no other from working.
A plugin is known as ``distribution:entry``, never by its entry's name alone, which anyone can take.

Three things can go wrong with a name, and they are three errors: it is *unknown* (no plugin
provides it), *broken* (its plugin cannot be loaded) or *unavailable* (it cannot run here). A name
that two plugins provide is an error too. Asking for such a name raises; listing only shows it.

Two environment variables are read at first use. ``SHARDCORE_PLUGINS=""`` loads only the plugins
that come with shardcore, ``SHARDCORE_STRICT_PLUGINS=1`` raises the first failure instead of
remembering it. ``SHARDCORE_BACKEND`` names the backend of ``get_backend(None)``.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pluggy

from shardcore.backend.capabilities import Capabilities
from shardcore.errors import (
    BrokenPluginError,
    PluginConflictError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
    UnavailableError,
    UnknownPluginError,
)
from shardcore.plugins.hookspecs import PROJECT, BackendSpec, CommandSpec, Hooks, OptimizerSpec

if TYPE_CHECKING:
    from shardcore.backend.base import Backend

__all__ = [
    "BackendInfo",
    "PluginInfo",
    "backends",
    "commands",
    "get_backend",
    "get_optimizer",
    "optimizers",
    "plugins",
]

DEFAULT_BACKEND: Final = "cpu"
FIRST_PARTY: Final = "shardcore"
RESERVED_PREFIX: Final = "shardcore_"

_Spec = TypeVar("_Spec", BackendSpec, OptimizerSpec, CommandSpec)


@dataclass(frozen=True)
class BackendInfo:
    """A backend as its plugin describes it, without making it.

    Parameters
    ----------
    available : bool
        Whether it can be used on this machine.
    reason : str or None
        Why not, None if it is available.
    provider : str
        The plugin, ``distribution:entry``; several joined by " and " if they conflict.
    capabilities : Capabilities or None
        The tables it can have, if its plugin declares them.
    """

    available: bool
    reason: str | None
    provider: str
    capabilities: Capabilities | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PluginInfo:
    """A plugin that was found, whether it works or not.

    Parameters
    ----------
    name : str
        The name of its entry point.
    provider : str
        The distribution it comes with.
    version : str
        The distribution's version.
    error : str or None
        ``"<type>: <text>"`` of what kept it from being loaded, None if nothing did.
    """

    name: str
    provider: str
    version: str
    error: str | None = None

    @property
    def identity(self) -> str:
        """The name that no other plugin has, ``distribution:entry``."""
        return f"{self.provider}:{self.name}"

    @property
    def first_party(self) -> bool:
        """Whether it comes with shardcore itself."""
        return self.provider.lower().replace("_", "-") == FIRST_PARTY

    def __str__(self) -> str:
        failure = "" if self.error is None else f" could not be loaded: {self.error}"
        return f"{self.identity} ({self.provider} {self.version}){failure}"


@dataclass(frozen=True)
class _Provided(Generic[_Spec]):
    """A record and the plugin that yielded it."""

    spec: _Spec
    provider: str


_HOOKS: Final[Mapping[type[Any], str]] = {
    BackendSpec: "shardcore_backends",
    OptimizerSpec: "shardcore_optimizers",
    CommandSpec: "shardcore_commands",
}
"""The hook that yields each kind of record."""


class _Found:
    """The outcome of a discovery: the plugins, and the records of each kind by name."""

    def __init__(self, plugins: Iterable[PluginInfo], records: Iterable[_Provided[Any]]) -> None:
        self.plugins = tuple(plugins)
        by_kind: dict[type[Any], dict[str, list[_Provided[Any]]]] = {kind: {} for kind in _HOOKS}
        for one in records:
            kind = next(kind for kind in _HOOKS if isinstance(one.spec, kind))
            by_kind[kind].setdefault(one.spec.name, []).append(one)
        self._by_kind = {
            kind: MappingProxyType({name: tuple(known[name]) for name in sorted(known)})
            for kind, known in by_kind.items()
        }

    def of(self, kind: type[_Spec]) -> Mapping[str, tuple[_Provided[_Spec], ...]]:
        """Return the records of a kind, by name in order."""
        return self._by_kind[kind]


_lock = threading.RLock()
_found: _Found | None = None
_discovering = False


def _discovered() -> _Found:
    """Return the plugins, discovered by the first thread that asks."""
    global _found, _discovering
    if _found is not None:
        return _found
    with _lock:
        if _discovering:  # the lock lets its own thread in again
            raise ShardcoreRuntimeError(
                "plugins are being loaded; a plugin must not ask for backends or optimizers "
                "while it is imported or yields its records"
            )
        if _found is None:
            _discovering = True
            try:
                _found = _discover()
            finally:
                _discovering = False
        return _found


def _reset() -> None:
    """Forget what was discovered, so that a test can change what is installed."""
    global _found
    with _lock:
        _found = None


def _discover() -> _Found:
    """Load every plugin that the environment allows, each in its own ``try``."""
    chosen = os.environ.get("SHARDCORE_PLUGINS")
    if chosen:
        raise ShardcoreValueError(
            "SHARDCORE_PLUGINS must be unset (all plugins) or empty (first-party plugins only), "
            f"got {chosen!r}"
        )
    strict = os.environ.get("SHARDCORE_STRICT_PLUGINS", "0") not in ("", "0")
    plugins: list[PluginInfo] = []
    records: list[_Provided[Any]] = []
    candidates = [(_describe(entry), entry) for entry in entry_points(group=PROJECT)]
    candidates.sort(key=lambda pair: (not pair[0].first_party, pair[0].identity))
    for plugin, entry in candidates:
        if chosen == "" and not plugin.first_party:
            continue
        try:
            own = _load(plugin, entry)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            failed = PluginInfo(plugin.name, plugin.provider, plugin.version, text)
            if strict:
                raise BrokenPluginError(f"plugin {failed}") from error
            plugins.append(failed)
            continue
        plugins.append(plugin)
        records += [_Provided(record, plugin.identity) for record in own]
    return _Found(plugins, records)


def _describe(entry: EntryPoint) -> PluginInfo:
    """Return where an entry point comes from; metadata on disk may lack anything."""
    distribution = entry.dist
    provider = getattr(distribution, "name", None) or "unknown"
    version = getattr(distribution, "version", None) or "unknown version"
    return PluginInfo(entry.name, provider, version)


def _load(plugin: PluginInfo, entry: EntryPoint) -> list[Any]:
    """Return the records of one plugin, or raise whatever is wrong with it."""
    if not plugin.first_party:
        _refuse_reserved(entry.name, "entry point")
    # One manager per plugin: a failure leaves nothing half registered, a misspelt hook is known
    # by its plugin, and records need no attribution afterwards.
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    manager.register(entry.load(), name=plugin.identity)
    manager.check_pending()
    callers = {kind: getattr(manager.hook, name) for kind, name in _HOOKS.items()}
    if not any(caller.get_hookimpls() for caller in callers.values()):
        raise ShardcoreValueError(
            "it implements no hook; mark shardcore_backends, shardcore_optimizers or "
            "shardcore_commands with @hookimpl"
        )
    records = [
        record
        for kind, caller in callers.items()
        for record in _records(caller(), kind, _HOOKS[kind])
    ]
    if not plugin.first_party:
        for record in records:
            _refuse_reserved(record.name, "name")
    return records


def _refuse_reserved(name: str, what: str) -> None:
    if name.startswith(RESERVED_PREFIX):
        raise ShardcoreValueError(
            f"{what} {name!r} is reserved: names starting with {RESERVED_PREFIX!r} belong to the "
            f"distribution {FIRST_PARTY}"
        )


def _records(results: Iterable[Any], kind: type[_Spec], hook: str) -> list[_Spec]:
    """Return what a plugin's hook yielded, checked; `results` has one item per implementation."""
    records: list[_Spec] = []
    for result in results:
        if not isinstance(result, Iterable):
            raise ShardcoreTypeError(f"{hook}() must yield {kind.__name__} records, got {result!r}")
        for record in result:
            if not isinstance(record, kind):
                raise ShardcoreTypeError(
                    f"{hook}() must yield {kind.__name__} records, got {record!r}"
                )
            if any(record.name == other.name for other in records):
                raise ShardcoreValueError(f"{hook}() yields the name {record.name!r} twice")
            records.append(record)
    return records


def _only(name: str, what: str, provided: tuple[_Provided[_Spec], ...]) -> _Provided[_Spec]:
    """Return the one provider of a name."""
    if len(provided) > 1:
        raise PluginConflictError(_conflict(name, what, provided))
    return provided[0]


def _conflict(name: str, what: str, provided: tuple[_Provided[Any], ...]) -> str:
    both = "both " if len(provided) == 2 else ""
    return (
        f"{what} {name!r} is provided by {both}{' and '.join(one.provider for one in provided)}; "
        "uninstall all but one of them, or set SHARDCORE_PLUGINS='' to load only the plugins that "
        "come with shardcore"
    )


def _unknown(name: str, what: str, origin: str, available: Iterable[str]) -> UnknownPluginError:
    """Return the error for a name that no plugin provides, with all that may explain it."""
    found = _discovered()
    lines = [f"unknown {what} {name!r}{origin}; available: {', '.join(available) or 'none'}"]
    lines += [f"plugin {plugin}" for plugin in found.plugins if plugin.error is not None]
    if not any(plugin.first_party for plugin in found.plugins):
        lines.append(
            "no plugin of shardcore itself was found: shardcore is not installed, "
            "a bare checkout has no backends and no optimizers; run pip install -e ."
        )
    return UnknownPluginError("\n".join(lines))


def _reason(spec: BackendSpec) -> str | None:
    """Return why a backend cannot run here, or None.

    Raises
    ------
    BrokenPluginError
        If its own answer to that question fails.
    """
    if spec.unavailable is None:
        return None
    try:
        reason = spec.unavailable()
    except Exception as error:
        raise BrokenPluginError(
            f"cannot tell whether it is available: {type(error).__name__}: {error}"
        ) from error
    if reason is not None and not (isinstance(reason, str) and reason):
        raise BrokenPluginError(
            f"cannot tell whether it is available: unavailable() must return None or a sentence, "
            f"got {reason!r}"
        )
    return reason


def backends() -> dict[str, BackendInfo]:
    """Return what is known of every backend, by name; nothing is made and nothing raised.

    A backend that two plugins provide, or whose own check fails, is listed as not available.
    Plugins that could not be loaded are in `plugins`.

    Returns
    -------
    dict of str to BackendInfo
        Sorted by name.

    Examples
    --------
    >>> backends()["cpu"]
    BackendInfo(available=True, reason=None, provider='shardcore:shardcore_cpu')
    """
    listed = {}
    for name, provided in _discovered().of(BackendSpec).items():
        reason: str | None
        if len(provided) > 1:
            reason = _conflict(name, "backend", provided)
        else:
            try:
                reason = _reason(provided[0].spec)
            except BrokenPluginError as error:
                reason = str(error)
        provider = " and ".join(one.provider for one in provided)
        capabilities = provided[0].spec.capabilities
        listed[name] = BackendInfo(reason is None, reason, provider, capabilities)
    return listed


def get_backend(name: str | None = None, **options: Any) -> Backend:
    """Make a backend.

    Parameters
    ----------
    name : str, optional
        One of `backends`. None is ``$SHARDCORE_BACKEND``, or ``"cpu"`` if that is unset or empty.
    **options
        The backend's own options.

    Returns
    -------
    Backend

    Raises
    ------
    UnknownPluginError
        If no plugin provides the name.
    BrokenPluginError
        If its plugin, or what the plugin needs, cannot be loaded.
    UnavailableError
        If it cannot run on this machine.
    PluginConflictError
        If several plugins provide it.
    ShardcoreTypeError
        If the name is no string, or the backend does not take the options.

    Examples
    --------
    >>> get_backend("abacus")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    shardcore.errors.UnknownPluginError: unknown backend 'abacus'; available: cpu, ...
    """
    origin = ""
    if name is None:
        name = os.environ.get("SHARDCORE_BACKEND") or None
        origin = " (from SHARDCORE_BACKEND)" if name is not None else ""
        name = name or DEFAULT_BACKEND
    if not isinstance(name, str):
        raise ShardcoreTypeError(f"name of a backend must be a str or None, got {name!r}")
    found = _discovered()
    if name not in found.of(BackendSpec):
        for plugin in found.plugins:
            if plugin.error is not None and plugin.name in (name, RESERVED_PREFIX + name):
                raise BrokenPluginError(f"backend {name!r}{origin} is broken: plugin {plugin}")
        usable = [known for known, info in backends().items() if info.available]
        raise _unknown(name, "backend", origin, usable)
    provided = _only(name, "backend", found.of(BackendSpec)[name])
    label = f"backend {name!r} of {provided.provider}"
    try:
        reason = _reason(provided.spec)
    except BrokenPluginError as error:
        raise BrokenPluginError(f"{label} is broken: it {error}") from error.__cause__
    if reason is not None:
        raise UnavailableError(
            f"backend {name!r}{origin} is installed but cannot run here: {reason}"
        )
    _check_options(name, provided.spec.factory, options)
    try:
        backend: Backend = provided.spec.factory(**options)
    except ImportError as error:
        raise BrokenPluginError(f"{label} is broken: {type(error).__name__}: {error}") from error
    return backend


def _check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that the factory does not take, before it does anything."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some built-in callables have none; calling them shows
        return
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = ", ".join(map(str, signature.parameters.values())) or "none"
        raise ShardcoreTypeError(
            f"options of backend {name!r}: {error}; it takes: {takes}"
        ) from error


def optimizers() -> tuple[str, ...]:
    """Return the names of all optimizers, sorted; each is an attribute of `shardcore.optimizers`.

    Examples
    --------
    >>> "SGD" in optimizers()
    True
    """
    return tuple(_discovered().of(OptimizerSpec))


def get_optimizer(name: str) -> Callable[..., Any]:
    """Return an optimizer's class by name.

    Parameters
    ----------
    name : str
        One of `optimizers`.

    Raises
    ------
    UnknownPluginError
        If no plugin provides the name.
    PluginConflictError
        If several do.
    ShardcoreTypeError
        If the name is no string.

    Examples
    --------
    >>> get_optimizer("SGD")(learning_rate=0.1)
    SGD(learning_rate=0.1)
    """
    if not isinstance(name, str):
        raise ShardcoreTypeError(f"name of an optimizer must be a str, got {name!r}")
    found = _discovered()
    if name not in found.of(OptimizerSpec):
        raise _unknown(name, "optimizer", "", found.of(OptimizerSpec))
    return _only(name, "optimizer", found.of(OptimizerSpec)[name]).spec.factory


def commands() -> list[CommandSpec]:
    """Return the commands that plugins add to the console program, sorted by name.

    Raises
    ------
    PluginConflictError
        If several plugins provide one name.

    Examples
    --------
    >>> [command.name for command in commands()]
    ['bench', 'demo', 'plan', 'simulate']
    """
    found = _discovered().of(CommandSpec)
    return [_only(name, "command", provided).spec for name, provided in found.items()]


def plugins() -> list[PluginInfo]:
    """Return every plugin that was found, with the error of those that could not be loaded.

    Examples
    --------
    >>> [plugin.name for plugin in plugins() if plugin.first_party and "s" in plugin.name[10:]]
    ['shardcore_optimizers', 'shardcore_sim']
    """
    return list(_discovered().plugins)
