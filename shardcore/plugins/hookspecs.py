"""The hooks of the plugin group ``shardcore``, and the records that a plugin yields.

A plugin is a module, light to import, that an installed distribution names in its metadata::

    [project.entry-points.shardcore]
    acme = "shardcore_acme"

It implements one or more hooks of `Hooks`, marked with `hookimpl`. A hook yields records; what they
name is made when it is asked for (see `shardcore.plugins.registry`), and only then should anything
heavy be imported. Hooks may gain arguments in later versions and never lose any; an implementation
names only those it uses.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pluggy

from shardcore.backend.capabilities import Capabilities
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

__all__ = ["BackendSpec", "CommandSpec", "Hooks", "OptimizerSpec", "hookimpl", "hookspec"]

PROJECT: Final = "shardcore"
"""Name of the entry-point group and of the hooks' project."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


def _check_callable(value: object, argument: str) -> None:
    if not callable(value):
        raise ShardcoreTypeError(f"{argument} must be callable, got {value!r}")


@dataclass(frozen=True)
class BackendSpec:
    """A backend that a plugin provides.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and underscores, starting with a letter; what users say.
    factory : callable
        Called as ``factory(**options)`` with the user's options; returns the backend.
    unavailable : callable, optional
        Called without arguments whenever the backend is listed or asked for. Returns None if it can
        be used on this machine, else one sentence that says why not and what to do.
    capabilities : Capabilities, optional
        What ``shardcore info`` shows of it: those of the class, where they are known without it.

    Raises
    ------
    ShardcoreValueError
        If the name breaks the rule.
    ShardcoreTypeError
        If `factory` or `unavailable` is not callable, or `capabilities` are none.

    Examples
    --------
    >>> BackendSpec("acme", factory=dict).name
    'acme'
    >>> BackendSpec("Acme", factory=dict)
    Traceback (most recent call last):
    shardcore.errors.ShardcoreValueError: name of a backend must be lower-case letters, digits \
and underscores, starting with a letter, got 'Acme'
    """

    name: str
    factory: Callable[..., Any]
    unavailable: Callable[[], str | None] | None = None
    capabilities: Capabilities | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and re.fullmatch("[a-z][a-z0-9_]*", self.name)):
            raise ShardcoreValueError(
                "name of a backend must be lower-case letters, digits and underscores, "
                f"starting with a letter, got {self.name!r}"
            )
        _check_callable(self.factory, f"factory of backend {self.name!r}")
        if self.unavailable is not None:
            _check_callable(self.unavailable, f"unavailable of backend {self.name!r}")
        if not isinstance(self.capabilities, Capabilities | None):
            raise ShardcoreTypeError(
                f"capabilities of backend {self.name!r} must be Capabilities or None, "
                f"got {self.capabilities!r}"
            )


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer that a plugin provides, as ``shardcore.optimizers.<name>``.

    Parameters
    ----------
    name : str
        Letters, digits and underscores, starting with a letter; by custom the name of the class.
    factory : callable
        The class, a subclass of `shardcore.optimizer.Optimizer`.

    Raises
    ------
    ShardcoreValueError
        If the name breaks the rule or is a keyword of Python.
    ShardcoreTypeError
        If `factory` is not callable.

    Examples
    --------
    >>> OptimizerSpec("class", factory=dict)
    Traceback (most recent call last):
    shardcore.errors.ShardcoreValueError: name of an optimizer must be letters, digits and \
underscores, starting with a letter, and no keyword, got 'class'
    """

    name: str
    factory: Callable[..., Any]

    def __post_init__(self) -> None:
        if not (
            isinstance(self.name, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", self.name)
        ) or keyword.iskeyword(self.name):
            raise ShardcoreValueError(
                "name of an optimizer must be letters, digits and underscores, "
                f"starting with a letter, and no keyword, got {self.name!r}"
            )
        _check_callable(self.factory, f"factory of optimizer {self.name!r}")


@dataclass(frozen=True)
class CommandSpec:
    """A command that a plugin adds to the console program ``shardcore``.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and dashes, starting with a letter; what users type.
    help : str
        A description for the list of commands.
    module : str
        A module with ``add_arguments(parser)`` and ``run(arguments)``, imported only when the
        command line names the command. `run` returns the exit code, or None for 0; errors of
        shardcore that it raises are shown and become 2.

    Raises
    ------
    ShardcoreValueError
        If the name breaks the rule.

    Examples
    --------
    >>> CommandSpec("estimate", "tell what a step costs", "shardcore_acme.estimate").name
    'estimate'
    """

    name: str
    help: str
    module: str

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and re.fullmatch("[a-z][a-z0-9-]*", self.name)):
            raise ShardcoreValueError(
                "name of a command must be lower-case letters, digits and dashes, "
                f"starting with a letter, got {self.name!r}"
            )


class Hooks:
    """The hooks that a plugin can implement."""

    @hookspec
    def shardcore_backends(self) -> Iterable[BackendSpec]:
        """Provide backends.

        A complete plugin, the module ``shardcore_acme``::

            from shardcore import BackendSpec, hookimpl

            @hookimpl
            def shardcore_backends():
                yield BackendSpec("acme", factory=_make, unavailable=_why_not)

            def _make(**options):
                from shardcore_acme.backend import AcmeBackend  # heavy imports here

                return AcmeBackend(**options)

            def _why_not():
                import importlib.util

                if importlib.util.find_spec("acme") is None:
                    return "acme is not installed; pip install acme"
                return None

        Returns
        -------
        iterable of BackendSpec
        """
        return ()

    @hookspec
    def shardcore_optimizers(self) -> Iterable[OptimizerSpec]:
        """Provide optimizers.

        A complete plugin, the module ``shardcore_acme``::

            from shardcore import OptimizerSpec, hookimpl

            @hookimpl
            def shardcore_optimizers():
                from shardcore_acme.heavy_ball import HeavyBall

                yield OptimizerSpec("HeavyBall", factory=HeavyBall)

        Returns
        -------
        iterable of OptimizerSpec
        """
        return ()

    @hookspec
    def shardcore_commands(self) -> Iterable[CommandSpec]:
        """Provide commands of the console program.

        A complete plugin, the module ``shardcore_acme``::

            from shardcore.plugins.hookspecs import CommandSpec, hookimpl

            @hookimpl
            def shardcore_commands():
                yield CommandSpec("estimate", "tell what a step costs", "shardcore_acme.estimate")

        Returns
        -------
        iterable of CommandSpec
        """
        return ()
