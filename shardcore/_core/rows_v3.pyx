"""The body of rows.pxi, compiled for: x86-64-v3."""

include "rows.pxi"
