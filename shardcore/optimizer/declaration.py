"""The statement ``class Mine(Optimizer)``: it makes a frozen dataclass, and checks it."""

from __future__ import annotations

import dataclasses
from abc import ABCMeta
from typing import Any, Final

from shardcore.errors import ShardcoreTypeError

__all__ = ["OptimizerMeta", "check_parameter_names"]

_PARAMETERS: Final = "__dataclass_params__"
_BEFORE: Final = "__before_dataclass__"
_ABSENT: Final = object()


class OptimizerMeta(ABCMeta):
    """The type of optimizer classes: each is a frozen dataclass, decorated as one or not.

    ``@dataclass`` cannot decorate what is a dataclass already: a default that is a
    `dataclasses.field` is gone then, and ``__init__`` is not written over. So the first thing that
    it does, setting ``__dataclass_params__``, undoes what was done without it.
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        if name == _PARAMETERS:
            if not value.frozen:
                raise ShardcoreTypeError(
                    f"optimizer class {cls.__name__} must be a frozen dataclass: "
                    "@dataclass(frozen=True, eq=False, repr=False)"
                )
            cls._undo()
        super().__setattr__(name, value)

    def _make_dataclass(cls, kw_only: bool) -> None:
        """Make the class a frozen dataclass, unless it was copied from one."""
        if _PARAMETERS in cls.__dict__:  # with slots=True the decorator makes a second class
            return
        own = dict(cls.__dict__)
        decorate: Any = dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=kw_only)
        decorate(cls)
        now = dict(cls.__dict__)
        changed = [name for name in own | now if own.get(name) is not now.get(name)]
        before = {name: own.get(name, _ABSENT) for name in changed}
        type.__setattr__(cls, _BEFORE, before)

    def _undo(cls) -> None:
        """Give the class the attributes back that it had before it was made a dataclass."""
        for name, value in cls.__dict__.get(_BEFORE, {}).items():
            if value is _ABSENT:
                type.__delattr__(cls, name)
            else:
                type.__setattr__(cls, name, value)
        type.__setattr__(cls, _BEFORE, {})


def check_parameter_names(cls: type, base: type) -> None:
    """Raise if a parameter of an optimizer class has the name of an attribute of the base class.

    Raises
    ------
    ShardcoreTypeError
        If one has: what is meant as a declaration was annotated.
    """
    for field in dataclasses.fields(cls):
        if hasattr(base, field.name) or field.name in base.__annotations__:
            raise ShardcoreTypeError(
                f"optimizer class {cls.__name__} must declare {field.name} without an annotation "
                f"or as ClassVar, or it is a parameter, got {field.name}: {_as_text(field.type)}"
            )


def _as_text(annotation: Any) -> str:
    """Return an annotation as it stands in the source."""
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
