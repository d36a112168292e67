"""The body of few_bags.pxi, compiled for: x86-64-v3."""

include "few_bags.pxi"
