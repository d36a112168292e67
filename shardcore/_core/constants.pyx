"""What C and Python must agree on, out of the headers, for Python.

::

    KINDS             the kinds of elements that kernels of rows tell apart, by the names of dtypes
    ASKING            the ways in which kernels ask for rows ahead, which suit different processors
    UPDATE_VERSION    of the C boundary of optimizers, see shardcore_update.h
    UPDATE_CAPSULES   what capsules with an update are named, by the names of working dtypes
"""

from shardcore_update cimport (
    SHARDCORE_UPDATE_FLOAT32, SHARDCORE_UPDATE_FLOAT64, SHARDCORE_UPDATE_VERSION,
)
from types cimport (
    BFLOAT, BY_LINES, BY_PAIRS, FLOAT32, FLOAT64, HALF, INT32, INT64, INTO_FIRST,
)

KINDS = {
    "float32": FLOAT32,
    "float64": FLOAT64,
    "float16": HALF,
    "bfloat16": BFLOAT,
    "int32": INT32,
    "int64": INT64,
}

ASKING = {"by pairs": BY_PAIRS, "by lines": BY_LINES, "into first": INTO_FIRST}

UPDATE_VERSION = SHARDCORE_UPDATE_VERSION

UPDATE_CAPSULES = {
    "float32": (<bytes>SHARDCORE_UPDATE_FLOAT32).decode("ascii"),
    "float64": (<bytes>SHARDCORE_UPDATE_FLOAT64).decode("ascii"),
}
