"""``shardcore plan``: whether a model fits on TPUs that are not here.

::

    plan            the command
    fits            a model's programs compiled, their memory added up
    ahead_of_time   compiling for a topology without devices
    device_bytes    the memory of tables, by arithmetic
    topologies      the TPU topologies by name
"""
