"""The body of rows.pxi, compiled for: any processor of the platform."""

include "rows.pxi"
