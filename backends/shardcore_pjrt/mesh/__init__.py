"""Devices and what lies on them: where rows live, how arrays get there, and who shares them.

::

    geometry        which device has which rows and columns of a table
    placed_arrays   a table's arrays on the mesh, and rows in their lines
    placing         host arrays onto devices and back
    processes       the processes of one program, which make the same calls
    batch_parts     what of a call has to be the same in all of them
"""
