"""Work of the host per batch: which device needs which rows of which other.

::

    strategy       how rows reach the bags that name them
    capacity       the few sizes that arrays are made in
    spread         which device has which bags
    request        the rows one device needs of each other
    lookup_route   all of it for a lookup
    update_route   all of it for an update
"""
