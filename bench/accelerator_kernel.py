"""The Triton kernel of `accelerator_anchor`: imported where Triton is installed, and only there."""

import triton
import triton.language as tl

__all__ = ["update_rows"]


@triton.jit
def update_rows(  # type: ignore[no-untyped-def]  # Triton reads the code, not types
    weight,
    squares,
    gradient,
    rows,
    starts,
    order,
    pooling,
    rate,
    dim: tl.constexpr,
    block: tl.constexpr,
    adagrad: tl.constexpr,
):
    """Update one distinct row by the gradients of the bags that name it."""
    segment = tl.program_id(0)
    columns = tl.arange(0, block)
    inside = columns < dim
    begin = tl.load(starts + segment)
    end = tl.load(starts + segment + 1)
    total = tl.zeros((block,), tl.float32)
    for at in range(begin, end):
        bag = tl.load(order + at) // pooling
        total += tl.load(gradient + bag * dim + columns, mask=inside, other=0.0)
    place = tl.load(rows + segment) * dim + columns
    step = rate * total
    if adagrad:
        square = tl.load(squares + place, mask=inside, other=1.0) + total * total
        tl.store(squares + place, square, mask=inside)
        step = step / tl.sqrt(square)
    old = tl.load(weight + place, mask=inside, other=0.0)
    tl.store(weight + place, old - step, mask=inside)
