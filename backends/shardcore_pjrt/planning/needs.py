"""What a table, or several that lie together, need of a device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardcore_pjrt.planning.ahead_of_time import Compiled, Refused

__all__ = ["TableNeeds", "activation_bytes", "with_programs"]


@dataclass(frozen=True)
class TableNeeds:
    """The bytes that a table, or a stack of them, needs on each device that holds a part of it.

    Attributes
    ----------
    name, placement : str
        Of the table, or of the first one of the stack.
    home : int or None
        The one device that holds it; None: all do.
    exchange : str
        Of lookups; "" before they were compiled.
    table, slots : int
    batch : int
        Lists, activations and gradients. Before compilation: activations and gradients.
    elsewhere : int
        Activations and gradients on devices other than `home`.
    temporaries : int
        Of the lookup or the update, whichever needs more; 0 before compilation.
    code : int
        Of both programs; 0 before compilation.
    programs : int
        Compiled.
    seconds : float
        That compiling took.
    refused : str
        The compiler's message if a program of this table alone was too large, or the backend's if
        a batch was; else "".
    members : tuple of str
        The tables that lie together, itself among them; empty: it lies alone.
    """

    name: str
    placement: str
    home: int | None
    exchange: str
    table: int
    slots: int
    batch: int
    elsewhere: int
    temporaries: int = 0
    code: int = 0
    programs: int = 0
    seconds: float = 0.0
    refused: str = ""
    members: tuple[str, ...] = ()

    @property
    def others(self) -> int:
        """How many tables lie with it."""
        return max(0, len(self.members) - 1)

    @property
    def total(self) -> int:
        """The sum of its needs."""
        return self.table + self.slots + self.batch + self.temporaries + self.code

    def held_on(self, device: int) -> int:
        """Return what a device holds of it besides temporaries."""
        if self.home in (None, device):
            return self.total - self.temporaries
        return self.elsewhere


def activation_bytes(batch: int, devices: int, dims: Sequence[int], trained: bool) -> int:
    """Return the bytes of two batches' activations on a device, and of gradients if there are any.

    Parameters
    ----------
    batch : int
        Samples, cut over the devices.
    devices : int
    dims : sequence of int
        Of each feature.
    trained : bool

    Examples
    --------
    >>> activation_bytes(64, 4, [16], trained=True)
    3072
    """
    return (3 if trained else 2) * -(-batch // devices) * sum(dims) * 4


def with_programs(
    needs: TableNeeds, exchange: str, batch: int, found: Sequence[Compiled | Refused]
) -> TableNeeds:
    """Return the needs with those of compiled programs.

    Parameters
    ----------
    needs : TableNeeds
    exchange : str
    batch : int
        Bytes of lists, activations and gradients, as the programs take them.
    found : sequence of Compiled or Refused
        The programs of one batch; one of them runs at a time.
    """
    programs = [one for one in found if isinstance(one, Compiled)]
    return replace(
        needs,
        exchange=exchange,
        batch=max(batch, needs.batch),
        temporaries=max((one.temporaries for one in programs), default=0),
        code=sum(one.code for one in programs),
        programs=len(programs),
        seconds=sum(one.seconds for one in found),
        refused=next((one.message for one in found if isinstance(one, Refused)), ""),
    )
