"""The pure form of an optimizer, run with its arguments watched."""

from __future__ import annotations

import numpy as np


def apply(optimizer, grad, rows, slots=None, step=1, first_row=0):
    """Run the pure form, and check on the way that it changed none of its arguments."""
    slots = optimizer.init(rows) if slots is None else slots
    row_ids = np.arange(first_row, first_row + len(rows))
    before = [array.copy() for array in (grad, rows, *slots.values())]
    result = optimizer.update(grad, rows, slots, optimizer.hyper(), step, row_ids)
    for array, copy in zip((grad, rows, *slots.values()), before, strict=True):
        np.testing.assert_array_equal(array, copy, strict=True)
    assert result[0].dtype == rows.dtype
    return result
