cdef tuple plain_parts(leaf)
