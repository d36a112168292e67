"""The meaning of jax-tpu-embedding's calls on CPU devices, for tests of what is built on them.

Written from the package's docstring of `shardcore_pjrt.sparsecore` and from the package's row
functions, not from the code that is tested. Where a partition exceeds the limits it was compiled
with, a chip would end the process; here all results are NaN.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir

OPTIMIZERS = ("SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL")
SLOTS = {"SGD": 0, "Adagrad": 1, "AdagradMomentum": 2, "Adam": 2, "FTRL": 2}


def cores_of(pointers, devices, minibatched):
    """Return how many cores a device has that gives so many pointers."""
    minibatches = 64 if minibatched else 1
    (found,) = (
        cores
        for cores in (1, 2, 4)
        if pointers.size == cores * minibatches * max(8, devices * cores)
    )
    return found


def triples(pointers, ids, samples, gains, minibatches, devices, limits, minibatched):
    """Return what each place of a device's buffer means: (valid, worker, holder), and if it may."""
    cores = cores_of(pointers, devices, minibatched)
    width = max(8, devices * cores)
    place = jnp.arange(ids.size)
    parts = 1 if minibatched else cores
    ends = pointers.reshape(parts, -1)
    size = ids.size // parts  # of a part of the buffer
    used = (cores * minibatches if minibatched else 1) * width
    valid, number, allowed = [], [], jnp.bool_(True)
    for part in range(parts):
        end = ends[part]
        start = jnp.concatenate([jnp.zeros(1, end.dtype), (end[:-1] + 7) // 8 * 8])
        own = place[part * size : (part + 1) * size] - part * size
        at = jnp.minimum(jnp.searchsorted(end, own, side="right"), end.size - 1)
        inside = (at < used) & (own >= start[at]) & (own < end[at])
        row = ids[part * size : (part + 1) * size]
        new = inside & ((own == start[at]) | (row != jnp.roll(row, 1)))
        distinct = (
            jnp.zeros(end.size, jnp.int32)
            .at[jnp.where(inside, at, end.size)]
            .add(new.astype(jnp.int32), mode="drop")
        )
        counts = jnp.where(jnp.arange(end.size) < used, end - start, 0)
        allowed &= (counts <= limits[0]).all() & (distinct <= limits[1]).all()
        valid.append(inside)
        number.append(at + part * width)
    at = jnp.concatenate(number)
    worker = at // ((minibatches if minibatched else 1) * width)
    return jnp.concatenate(valid), worker, at % width, allowed


def address(holder, row, cores, rows_per_device):
    """Return where a row of a core lies among those of all devices."""
    device, core = holder // cores, holder % cores
    return device * rows_per_device + core * (rows_per_device // cores) + row


def look_up(
    pointers,
    ids,
    samples,
    gains,
    minibatches,
    table,
    *,
    device_batch_size,
    max_ids_per_partition,
    max_unique_ids_per_partition,
    enable_minibatching,
    **_,
):
    devices = lax.axis_size("x")
    cores = cores_of(pointers, devices, enable_minibatching)
    limits = max_ids_per_partition, max_unique_ids_per_partition
    valid, worker, holder, allowed = triples(
        pointers, ids, samples, gains, minibatches, devices, limits, enable_minibatching
    )
    everything = lax.all_gather(table, "x").reshape(-1, table.shape[1])
    rows = everything[jnp.where(valid, address(holder, ids, cores, table.shape[0]), 0)]
    bag = jnp.where(valid, worker * (device_batch_size // cores) + samples, device_batch_size)
    products = jnp.where(valid, gains, 0)[:, None] * rows
    found = jnp.zeros((device_batch_size, table.shape[1]), jnp.float32)
    found = found.at[bag].add(products, mode="drop")
    return jnp.where(allowed, found, jnp.nan)


def update(
    name,
    pointers,
    ids,
    samples,
    gains,
    minibatches,
    *operands,
    max_ids_per_partition,
    max_unique_ids_per_partition,
    enable_minibatching,
    min_value=None,
    max_value=None,
    multiply_linear_by_learning_rate=False,
    **_,
):
    table, *slots = operands[: 1 + SLOTS[name]]
    gradients, *numbers = operands[1 + SLOTS[name] :]
    devices = lax.axis_size("x")
    cores = cores_of(pointers, devices, enable_minibatching)
    limits = max_ids_per_partition, max_unique_ids_per_partition
    valid, worker, holder, allowed = triples(
        pointers, ids, samples, gains, minibatches, devices, limits, enable_minibatching
    )
    mine = (
        jnp.where(valid, gains, 0)[:, None]
        * gradients[jnp.where(valid, worker * (gradients.shape[0] // cores) + samples, 0)]
    )
    place = jnp.where(valid, address(holder, ids, cores, table.shape[0]), -1)
    allowed = lax.all_gather(allowed, "x").all()
    place = lax.all_gather(place, "x").reshape(-1) - lax.axis_index("x") * table.shape[0]
    mine = lax.all_gather(mine, "x").reshape(-1, table.shape[1])
    own = (place >= 0) & (place < table.shape[0])
    place = jnp.where(own, place, table.shape[0])
    summed = jnp.zeros(table.shape, jnp.float32).at[place].add(mine, mode="drop")
    touched = jnp.zeros(table.shape[0], bool).at[place].set(True, mode="drop")
    options = [multiply_linear_by_learning_rate] if name == "FTRL" else []
    rows, *new = FORMULAS[name](summed, table, *slots, *numbers, *options)
    rows = jnp.clip(rows, min_value, max_value)
    return tuple(
        jnp.where(allowed, jnp.where(touched[:, None], after, before), jnp.nan)
        for before, after in zip((table, *slots), (rows, *new), strict=True)
    )


# --- the package's functions of a row ------------------------------------------------------------


def sgd(g, w, rate):
    return (w - g * rate,)


def adagrad(g, w, a, rate):
    a = a + g * g
    return w - rate * g / jnp.sqrt(a), a


def adagrad_momentum(g, w, a, m, rate, momentum, beta2, epsilon, exponent, nesterov):
    a = jnp.where(beta2 == 1, a + g * g, beta2 * a + (1 - beta2) * g * g)
    scaled = (a + epsilon) ** (-1 / exponent) * g
    m = momentum * m + scaled
    return w - rate * jnp.where(nesterov, momentum * m + scaled, m), a, m


def adam(g, w, m, v, rate, beta_1, beta_2, epsilon):
    m = m + (1 - beta_1) * (g - m)
    v = v + (1 - beta_2) * (g * g - v)
    return w - rate * m / (jnp.sqrt(v) + epsilon), m, v


def ftrl(g, w, a, linear, rate, power, l1, l2, beta, multiplied):
    new = a + g * g
    shift = new**-power - a**-power
    if multiplied:
        linear = linear + rate * g - shift * w
        numerator = jnp.clip(linear, -rate * l1, rate * l1) - linear
        return numerator / (new**-power + 2 * rate * l2 + beta), new, linear
    linear = linear + g - shift / rate * w
    numerator = jnp.clip(linear, -l1, l1) - linear
    return numerator / ((new**-power + beta) / rate + 2 * l2), new, linear


FORMULAS = dict(zip(OPTIMIZERS, (sgd, adagrad, adagrad_momentum, adam, ftrl), strict=True))


def register():
    """Let CPU devices do what SparseCores do; in this process, for the package's calls only."""
    from shardcore_pjrt.sparsecore.primitives import primitive

    mlir.register_lowering(
        primitive("csr"), mlir.lower_fun(look_up, multiple_results=False), platform="cpu"
    )
    for name in OPTIMIZERS:
        several = primitive(name).multiple_results
        whole = partial(update, name)
        one = whole if several else lambda *args, whole=whole, **kwargs: whole(*args, **kwargs)[0]
        mlir.register_lowering(
            primitive(name), mlir.lower_fun(one, multiple_results=several), platform="cpu"
        )
