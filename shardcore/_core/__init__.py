"""The kernels: everything shardcore does to ids and rows, in Cython, one idea a module.

::

    lengths, row_splits ──offsets──▶ row_splits, row ids
    slice over shards ────slices───▶ (shard, local slice) pieces
    ids ──────────────────partition▶ ids grouped by shard, and the way back
    rows, ids, row_splits ──rows───▶ activations; gradients of rows and weights; scatters; updates;
                                     of many tables: lookups.pxi and updates.pxi, by shares.pxi
    rows, bags as given ─────rows──▶ activations, by one call: given_bags.pxi
    bags as given ────────taken_bags▶ ids, row_splits: copies that are checked
    rows, row_splits ─────bag_max──▶ greatest values of bags; gradients of the rows that have them
    (row, source) pairs ─occurrences▶ the same sorted by row, and where each row's run starts
    (row, bag, gain) ─────triples──▶ the same sorted by worker, holder and row
    seed, rows, columns ──random───▶ initial values
    strings, integers ────hashing──▶ rows
    cpu                              what this processor can do
    constants                        what C and Python must agree on, out of the headers
    source_tree                      whether a clone's kernels are those of its sources

Axes in names: n values, b bags (row_splits has b + 1), r rows, u unique rows, d columns, s shards.

Rules, so that every kernel is safe from any thread and after any fork:

* Input views are ``const``; the output is given; all are C-contiguous; nothing is allocated on the
  Python heap. Scratch memory is given too.
* The computing part is ``noexcept nogil``. A kernel reports (-1, or the first offending position),
  the Python face in `shardcore.ids`, `shardcore.sharding` or `shardcore.store` raises.
* Work on many tables is added to an object (``shares.pxi``), with plain memory of its own. That one
  raises itself, at arrays that it could not read.
* No threads, no OpenMP, no global state. At import those that read NumPy's record of an array, see
  ``plain_arrays.pxi``, check that they were compiled for this NumPy; no kernel does anything else.
* A body is written once, over the fused types of ``types.pxd``. ``rows.pxi`` is compiled once per
  instruction set, without floating contraction, so that all of them agree to the last bit.
* Every kernel has a readable twin in `shardcore.reference`.

To add one: write it here with its ``.pyi``, name it in ``setup.py``, write its twin, and let
``tests/_core`` compare the two.
"""

from pathlib import Path

from shardcore._core.source_tree import require_built

require_built(Path(__file__).parents[2])  # here, because every import of a kernel passes by
