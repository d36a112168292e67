"""The meaning of the buffers, read one pointer at a time; and the package's own preprocessing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


def partitions(geometry, pointers, minibatches, room, minibatched=True):
    """Yield (working core, minibatch, holding core, first, end) of every partition.

    `pointers` are those of all devices; of the buffer, each has `room` triples.
    """
    cores, width = geometry.all_cores, max(8, geometry.all_cores)
    for device, of_device in enumerate(pointers.reshape(geometry.devices, -1)):
        own, first, base = iter(of_device.tolist()), 0, device * room
        for core in range(geometry.cores):
            if not minibatched:
                first, base = 0, device * room + core * room // geometry.cores
            for minibatch in range(minibatches):
                for holder in range(width):
                    end = next(own)
                    if holder < cores:
                        worker = device * geometry.cores + core
                        yield worker, minibatch, holder, base + first, base + end
                    else:
                        assert end == first, "what fills up the pointers is empty"
                    first = -(-end // 8) * 8


def triples_of(geometry, buffers):
    """Return {(working core, bag, holding core, row): gain}, and the minibatches of each row."""
    found, minibatches_of, counts = {}, {}, []
    shape = buffers.shape
    for worker, minibatch, holder, first, end in partitions(
        geometry, buffers.row_pointers, buffers.num_minibatches, shape.room, shape.minibatched
    ):
        rows, bags = buffers.embedding_ids[first:end], buffers.sample_ids[first:end]
        pairs = list(zip(rows.tolist(), bags.tolist(), strict=True))
        assert pairs == sorted(set(pairs)), "triples are sorted, and no pair comes twice"
        counts.append((end - first, len(set(rows.tolist()))))
        for (row, bag), gain in zip(pairs, buffers.gains[first:end].tolist(), strict=True):
            found[worker, bag, holder, row] = gain
            minibatches_of.setdefault((holder, row), set()).add(minibatch)
        padding = slice(end, -(-end // 8) * 8)
        assert (buffers.embedding_ids[padding] == 2**31 - 1).all()
        assert (buffers.sample_ids[padding] == 2**31 - 1).all()
        assert np.isnan(buffers.gains[padding]).all()
    return found, minibatches_of, np.array(counts)


def preprocessed(geometry, rows, splits, weights, limits, minibatching=True):
    """Return what jax-tpu-embedding makes of bags of rows, numbered as it numbers them."""
    from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as package

    bags, stack_rows = splits.size - 1, geometry.all_cores * geometry.rows_per_core
    common = {
        "max_ids_per_partition": limits.ids,
        "max_unique_ids_per_partition": limits.unique,
        "suggested_coo_buffer_size_per_device": None,
        "optimizer": None,
        "combiner": "sum",
    }
    stack = SimpleNamespace(
        stack_name="t",
        stack_vocab_size=stack_rows,
        stack_embedding_dim=geometry.columns,
        total_sample_count=bags,
        **common,
    )
    setting = SimpleNamespace(
        stack_name="t",
        padded_vocab_size=stack_rows,
        padded_embedding_dim=geometry.columns,
        row_offset_in_shard=0,
        shard_rotation=0,
    )
    table = SimpleNamespace(
        name="t",
        vocabulary_size=stack_rows,
        embedding_dim=geometry.columns,
        stacked_table_spec=stack,
        _stacked_table_spec=stack,
        setting_in_stack=setting,
        _setting_in_stack=setting,
        **common,
    )
    transformation = SimpleNamespace(row_offset=0, col_offset=0, col_shift=0)
    feature = SimpleNamespace(
        name="f",
        table_spec=table,
        input_shape=[bags, 1],
        output_shape=[bags, geometry.columns],
        id_transformation=transformation,
        _id_transformation=transformation,
    )

    def ragged(values, dtype):
        out = np.empty(bags, object)
        for bag in range(bags):
            out[bag] = values[splits[bag] : splits[bag + 1]].astype(dtype)
        return [out]

    *arrays, minibatches, statistics = package.preprocess_sparse_dense_matmul_input(
        ragged(rows, np.int32),
        None if weights is None else ragged(weights, np.float32),
        [feature],
        geometry.devices,
        geometry.devices,
        num_sc_per_device=geometry.cores,
        sharding_strategy=package.ShardingStrategy.MOD,
        has_leading_dimension=False,
        allow_id_dropping=False,
        batch_number=0,
        enable_minibatching=minibatching,
        all_reduce_interface=None,
    )
    return [array["t"] for array in arrays], minibatches, statistics
