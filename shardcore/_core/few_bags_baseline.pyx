"""The body of few_bags.pxi, compiled for: any processor of the platform."""

include "few_bags.pxi"
