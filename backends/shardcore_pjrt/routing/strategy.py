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

The bytes that "gather" moves to each device grow with the batch of all devices, those of
"all_to_all" do not; but the latter takes longer to start. Updates have the same choice: all
gradients of bags to all devices, or sums of each device's own to the owners.

Measured on CPU devices (XLA of jax 0.10.2, two cores, 1,000,000 x 64 float32, uniform ids, bags of
8; medians of nine interleaved calls, in ms; update by SGD; one device: "local"):

=======  ===========  ======  ==========  ======  ==========
devices  rows         lookup  lookup      update  update
         looked up    gather  all_to_all  gather  all_to_all
=======  ===========  ======  ==========  ======  ==========
1        2,048          0.23                0.36
1        32,768         2.03                4.42
1        131,072        3.87               16.34
2        2,048          0.75        0.96    0.43        1.89
2        32,768         6.60        6.16    4.20        6.72
2        131,072       44.53       27.86   16.39       51.95
4        2,048          0.82        0.68    0.61        0.84
4        32,768         8.93        6.81    4.47        6.56
4        131,072       74.88       21.50   15.45       25.96
8        2,048          1.23        0.85    0.74        0.85
8        32,768        16.21        8.82    5.03        8.07
8        131,072      131.23       25.86   22.57       27.63
=======  ===========  ======  ==========  ======  ==========

Ragged bags of 8 on average came to the same choices. So on a CPU lookups use "all_to_all" from four
devices on, and updates "gather" always. All this was measured when CPU devices worked in blocks of
rows. Now every platform runs one path, so that a CPU tests what a TPU or GPU runs; a whole step of
SGD on one CPU device takes 59 ms for 32,768 rows (44 in blocks, plain JAX 401), and 386 ms for
131,072 (plain JAX 347).

Nothing has been measured on a TPU or GPU: `GATHER_BELOW` and `ONE_HOT_ROWS` are assumptions there.
"""

from __future__ import annotations

from typing import Final, Literal

from shardcore.errors import ShardcoreValueError
from shardcore_pjrt.mesh.geometry import Geometry, Placement

__all__ = [
    "Exchange",
    "check_exchange",
    "choose_exchange",
    "default_layout",
    "sorts_on_device",
    "update_exchange",
]

Exchange = Literal["local", "one_hot", "gather", "all_to_all", "columns"]

GATHER_BELOW: Final = 8
"""Devices from which on rows that are cut are looked up by "all_to_all"; not measured."""
GATHER_BELOW_ON_CPU: Final = 4
"""The same where the devices are a CPU's: measured, see above."""
ONE_HOT_ROWS: Final = 128
"""Rows up to which a TPU takes a product with ones instead of a gather. Not measured, and small for
that reason: a product costs all rows of the table for each bag."""


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
    below = GATHER_BELOW_ON_CPU if platform == "cpu" else GATHER_BELOW
    return "gather" if devices < below else "all_to_all"


def default_layout(
    devices: int, placement: Placement, platform: str, exchange: Exchange | None = None
) -> Literal["div", "mod"]:
    """Return the layout of a table whose user gave none: "mod" where lookups use "all_to_all".

    There, every pair of devices has the same room, that of the pair with most rows. Ids are often
    numbered by how frequent they are; then the first device of "div" owns nearly all rows of a
    batch: its pairs decide the room of all, and the others wait for it. A device of "mod" has one
    row of every few. Compiled for v5e:4x4, 40,000,000 x 128 float32, SGD, 65,536 bags of 27 ids,
    that follow a power law and are numbered by rank:

    ========  ======  =====================  ============================
    exponent  layout  room for rows that     MiB of temporaries
                      reach a device         of the lookup, of the update
    ========  ======  =====================  ============================
    1.05      "div"   655,360                640, 648
    1.05      "mod"   49,152                 54, 0
    1.2       "div"   327,680                320, 320
    1.2       "mod"   24,576                 54, 0
    ========  ======  =====================  ============================

    Parameters
    ----------
    devices : int
        Of the backend.
    placement : {"row", "table", "column", "replicated"}
    platform : str
        Of the devices, as JAX calls it: "tpu", "cpu", ...
    exchange : {"gather", "all_to_all"}, optional
        Of lookups of rows that are cut. None: by `choose_exchange`.

    Examples
    --------
    >>> default_layout(16, "row", "tpu"), default_layout(4, "row", "tpu")
    ('mod', 'div')
    """
    if placement != "row" or devices == 1:
        return "div"
    chosen = exchange or choose_exchange(devices, placement, ONE_HOT_ROWS + 1, platform)
    return "mod" if chosen == "all_to_all" else "div"


def sorts_on_device(devices: int, platform: str) -> bool:
    """Return whether the ids of an update are sorted on the devices, not on the host.

    The device that has all of a table needs no list but the lookup's, whose ids are in the order in
    which they came: `programs.sort_program` makes the others of it. A GPU sorts them in less time
    than a host does; not measured, and a CPU is no better at it in a program than out of it.

    Parameters
    ----------
    devices : int
        Of the table's mesh.
    platform : str
        Of the devices, as the backend was given it.

    Examples
    --------
    >>> sorts_on_device(1, "cuda"), sorts_on_device(1, "cpu"), sorts_on_device(4, "cuda")
    (True, False, False)
    """
    return devices == 1 and platform in ("cuda", "rocm", "gpu")


def update_exchange(exchange: Exchange, accumulate: bool, platform: str | None = None) -> Exchange:
    """Return the exchange that updates use, of a table whose lookups use `exchange`.

    Where gradients of one row are not summed but applied one after the other, the device that holds
    the row needs each of them, in order: not the sums that "all_to_all" sends.

    Parameters
    ----------
    exchange : {"local", "one_hot", "gather", "all_to_all", "columns"}
    accumulate : bool
        Whether the gradients of a row are summed.
    platform : str, optional
        Of the devices. On a CPU updates use "gather" where lookups use "all_to_all": measured, see
        above. None: as the lookups, if that can be.

    Examples
    --------
    >>> update_exchange("one_hot", True), update_exchange("all_to_all", False)
    ('local', 'gather')
    >>> update_exchange("all_to_all", True), update_exchange("all_to_all", True, "cpu")
    ('all_to_all', 'gather')
    """
    if exchange == "one_hot":
        return "local"
    if exchange == "all_to_all" and (not accumulate or platform == "cpu"):
        return "gather"
    return exchange


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
