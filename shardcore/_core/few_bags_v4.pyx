"""The body of few_bags.pxi, compiled for: x86-64-v4."""

include "few_bags.pxi"
