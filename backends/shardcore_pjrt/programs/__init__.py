"""The compiled programs: lookups, updates, and reads and writes of rows.

::

    compiled           the programs of this process, one per signature
    lookup_program     a table's lookup
    split_features     the activations of many features, one array each
    update_program     a table's update
    sent_lists         lists of an update by "all_to_all", from those of its lookup
    summed_gradients   gradients of bags to gradients of rows
    row_update         the optimizer over lines of rows
    device_rounding    stochastic rounding
    quantized          rounding to buckets
    scaled_to_norm     scaling to a greatest norm
    blocks             many rows, a few at a time
    activations        between the caller's shapes and the programs'
    row_access         single rows, for the host
    refusals           gradients tested where they live
"""
