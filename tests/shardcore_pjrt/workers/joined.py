"""Activations of all processes as one array, and back: for a model jitted over all devices."""

import jax


def of_all(own, sharding):
    """Return the activations of all processes as one array, cut over all devices by sample."""
    parts = [shard.data for shard in own.addressable_shards]
    shape = (len(parts[0]) * len(sharding.device_set), *own.shape[1:])
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def of_own(gradient, own):
    """Return the part of a gradient that is of the samples that `own` are the activations of."""
    parts = [shard.data for shard in gradient.addressable_shards]
    return jax.make_array_from_single_device_arrays(own.shape, own.sharding, parts)
