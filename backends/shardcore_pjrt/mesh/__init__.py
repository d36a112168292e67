"""Devices and the arrays on them: places of rows, transfers, and the processes that share them.

::

    geometry        which device has which rows and columns of a table
    placed_arrays   a table's arrays on the mesh, and rows in their lines
    placing         host arrays onto devices and back
    processes       the processes of one program, which make the same calls
    batch_parts     the parts of a call that must be the same in all of them
"""
