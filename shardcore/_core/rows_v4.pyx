"""The body of rows.pxi, compiled for: x86-64-v4."""

include "rows.pxi"
