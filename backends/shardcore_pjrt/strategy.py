"""How rows reach the bags that name them: the exchange of a table, by a rule from measurements.

============  ==================  ==================================================================
exchange      where               how
============  ==================  ==================================================================
"local"       one device, or      each device takes rows from what it holds
              replicated
"one_hot"     the same, on a TPU, the same as a product with a matrix of ones: no gather
              tiny table
"gather"      rows cut, small     every device offers those of the batch's distinct rows that it
              mesh                holds; one sum over the devices brings all of them to all
"all_to_all"  rows cut, larger    every device sends each other the distinct rows it asked for
              mesh
"columns"     columns cut         each device combines its columns for all bags; then they are sent
============  ==================  ==================================================================

What "gather" moves to each device grows with the batch of all devices, what "all_to_all" moves
does not; but the latter takes longer to start.
"""

from __future__ import annotations

from typing import Final, Literal

from shardcore.errors import ShardcoreValueError
from shardcore_pjrt.geometry import Geometry, Placement

__all__ = ["Exchange", "check_exchange", "choose_exchange", "update_exchange"]

Exchange = Literal["local", "one_hot", "gather", "all_to_all", "columns"]

GATHER_BELOW: Final = 8
"""Devices from which on "all_to_all" is the faster way to look up rows that are cut."""
ONE_HOT_ROWS: Final = 512
"""Rows up to which a TPU's product with ones beats its gather."""


def choose_exchange(devices: int, placement: Placement, num_rows: int, platform: str) -> Exchange:
    """Return the exchange that lookups of a table use.

    Parameters
    ----------
    devices : int
        Of the table's mesh.
    placement : {"row", "table", "column", "replicated"}
    num_rows : int
    platform : str
        Of the devices, as JAX calls it: "tpu", "cpu", ...

    Returns
    -------
    {"local", "one_hot", "gather", "all_to_all", "columns"}

    Examples
    --------
    >>> choose_exchange(4, "row", 1000, "tpu"), choose_exchange(16, "row", 1000, "tpu")
    ('gather', 'all_to_all')
    >>> choose_exchange(16, "replicated", 100, "tpu"), choose_exchange(1, "row", 100, "cpu")
    ('one_hot', 'local')
    """
    if devices == 1 or placement == "replicated":
        return "one_hot" if platform == "tpu" and num_rows <= ONE_HOT_ROWS else "local"
    if placement == "column":
        return "columns"
    return "gather" if devices < GATHER_BELOW else "all_to_all"


def update_exchange(exchange: Exchange, accumulate: bool) -> Exchange:
    """Return the exchange that updates use, of a table whose lookups use `exchange`.

    Where gradients of one row are not summed but applied one after the other, the device that holds
    the row needs each of them, in order: not the sums that "all_to_all" sends.

    Parameters
    ----------
    exchange : {"local", "one_hot", "gather", "all_to_all", "columns"}
    accumulate : bool
        Whether the gradients of a row are summed.

    Examples
    --------
    >>> update_exchange("one_hot", True), update_exchange("all_to_all", False)
    ('local', 'gather')
    """
    if exchange == "one_hot":
        return "local"
    return "gather" if exchange == "all_to_all" and not accumulate else exchange


def check_exchange(geometry: Geometry, exchange: str, allowed: tuple[str, ...]) -> None:
    """Raise unless an exchange is allowed and can serve a table that lies so.

    Parameters
    ----------
    geometry : Geometry
    exchange : str
    allowed : tuple of str

    Raises
    ------
    ShardcoreValueError

    Examples
    --------
    >>> check_exchange(Geometry(10, 4, 2, "row"), "gather", ("gather", "columns"))
    """
    one_shard = geometry.devices == 1 or geometry.placement == "replicated"
    able = {
        "local": one_shard,
        "one_hot": one_shard,
        "gather": geometry.placement == "row",
        "all_to_all": geometry.placement == "row",
        "columns": geometry.placement == "column",
    }
    possible = [name for name in allowed if able[name]]
    if exchange not in possible:
        raise ShardcoreValueError(
            f"exchange must be one of {', '.join(possible)} for placement {geometry.placement!r} "
            f"on {geometry.devices} devices, got {exchange!r}"
        )
