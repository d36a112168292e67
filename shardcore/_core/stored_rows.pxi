"""Where rows lie, for kernels that work on many tables. A part of ``rows.pxi``."""

cdef struct Stored:
    void* table                 # the first row
    Py_ssize_t rows
    Py_ssize_t dim
    int64_t kind
    int64_t working             # the kind that is computed with
    Py_ssize_t slots
    char** slot_bases           # per slot: first byte
    int64_t* slot_bytes         # per slot: bytes per row
    int64_t* slot_kinds
    Py_ssize_t converted        # slots of another type than the working one
    bint writable


cdef class StoredRows:
    """Where the rows of a table lie, and those of its slots: what all of its lookups and updates find.

    `table__rd` (r, bytes of a row) holds rows of `dim` elements of `kind`; a slot's rows begin at its
    address and take so many bytes each, of elements of its kind. `wide`: the working type is double.
    Rows that are not `writable` can be looked up only. `held` keeps the memory of the slots.
    """

    cdef const uint8_t[:, ::1] table__rd
    cdef const int64_t[::1] slot_addresses
    cdef const int64_t[::1] slot_bytes
    cdef const int64_t[::1] slot_kinds
    cdef Stored memory
    cdef object held

    def __init__(self, const uint8_t[:, ::1] table__rd, int kind, Py_ssize_t dim,
                 const int64_t[::1] slot_addresses, const int64_t[::1] slot_bytes,
                 const int64_t[::1] slot_kinds, bint wide, bint writable, held):
        cdef Stored* stored = &self.memory
        cdef Py_ssize_t k
        self.table__rd, self.held = table__rd, held
        self.slot_addresses, self.slot_bytes, self.slot_kinds = slot_addresses, slot_bytes, slot_kinds
        memset(stored, 0, sizeof(Stored))
        stored.kind, stored.dim, stored.rows = kind, dim, table__rd.shape[0]
        stored.slots = slot_addresses.shape[0]
        stored.working, stored.writable = FLOAT64 if wide else FLOAT32, writable
        if table__rd.shape[0] and table__rd.shape[1]:
            stored.table = <void*>&table__rd[0, 0]
        if stored.slots:
            stored.slot_bases = <char**>&slot_addresses[0]
            stored.slot_bytes = <int64_t*>&slot_bytes[0]
            stored.slot_kinds = <int64_t*>&slot_kinds[0]
        for k in range(stored.slots):
            stored.converted += stored.slot_kinds[k] != stored.working
