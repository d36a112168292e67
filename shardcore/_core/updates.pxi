"""Updates of rows: sums of gradients, handed to an optimizer's function a block of rows at a time.

A part of ``rows.pxi``. The updates of all tables of a step are shared out: see ``shares.pxi``.
"""

cdef struct Rule:               # how an optimizer updates rows in one step
    void* function
    void* context
    const double* hyper
    int64_t step
    bint by_occurrence          # one call per occurrence of a row, instead of one for their sum
    Py_ssize_t block            # rows handed to the function at a time
    Py_ssize_t block_bytes      # most of a block: of rows as they are computed with, and slots
    Py_ssize_t section_bits     # 2**bits ranges of rows gone through side by side, see `walk_of`
    Py_ssize_t ahead            # rows between asking for one and updating it
    bint into_first             # whether they are asked for for the first cache
    bint all_into_first         # and their slots and gradients, too
    Py_ssize_t alone_bytes      # least ones of a row and its slots that are handed to it alone
    bint row_by_row             # whether a table's are: with a gradient where it lies

cdef struct Columns8:           # of a row, as a type: for the compiler to know how many there are
    char none
cdef struct Columns16:
    char none
cdef struct Columns32:
    char none
cdef struct Columns64:
    char none
cdef struct Columns128:
    char none
cdef struct AnyColumns:
    char none

ctypedef fused columns_t:
    Columns8
    Columns16
    Columns32
    Columns64
    Columns128
    AnyColumns

cdef struct Target:             # an update of one table, in plain memory
    Stored stored
    Rule rule
    const int64_t* unique       # the rows, distinct and ascending
    const int64_t* row_ids      # their numbers in the whole table
    const int64_t* run_splits   # which of the sources are each one's
    const int32_t* sources      # places in the gradients
    const void* gains           # their factors, or NULL
    const void* gradients
    bint stochastic             # how short rows are rounded back
    uint64_t key                # of the random bits of this table and step
    const int64_t* long_places  # which runs are summed already, ascending
    const void* long_sums       # their sums, or NULL
    Py_ssize_t long_count


cdef class UpdateRule:
    """How an optimizer updates rows: what the tables that it trains have in common, step after step.

    `function` is the address of its C function (see shardcore_update.h), which is called with
    `context`, `hyper` and the step. `by_occurrence`: once for each gradient of a row, not once for
    their sum. At most UPDATE_ROWS rows make a `block`, and `block_bytes` of rows and slots, but one row
    does; neighbours come from `sections` ranges of the rows in turn, a power of two. A row is asked
    for so many rows `ahead`; `asking` for them into the first cache: wide ones with their slots and
    gradients, as far as there is room; else all into the second. Rows of float32 and float64, with
    slots of the same, that have at least `alone_bytes` with them are handed to the function one by
    one, and the one gradient of a row where it lies, in which zeros have any sign. `held` keeps the
    function.
    """

    cdef Rule rule
    cdef const double[::1] hyper
    cdef object held

    def __init__(self, uint64_t function, uint64_t context, const double[::1] hyper,
                 bint by_occurrence, Py_ssize_t block, Py_ssize_t block_bytes, Py_ssize_t sections,
                 Py_ssize_t ahead, int asking, Py_ssize_t alone_bytes, held):
        self.hyper, self.held = hyper, held
        self.rule.function, self.rule.context = <void*>function, <void*>context
        self.rule.hyper = &hyper[0] if hyper.shape[0] else NULL
        self.rule.step, self.rule.by_occurrence = 0, by_occurrence
        self.rule.block, self.rule.block_bytes, self.rule.section_bits = block, block_bytes, 0
        while 1 << self.rule.section_bits < sections:
            self.rule.section_bits += 1
        if 1 << self.rule.section_bits != sections:
            raise ValueError(f"sections must be a power of two, got {sections}")
        self.rule.ahead, self.rule.into_first = ahead, asking == INTO_FIRST
        self.rule.alone_bytes = alone_bytes


cdef class Updates(Shares):
    """Updates of tables: added one by one, cut into shares, made by any number of threads.

    Attributes
    ----------
    scratch : int
        Bytes that `make` needs.
    """

    cdef Target* targets
    cdef readonly Py_ssize_t scratch
    cdef uint8_t* own_scratch       # of what `alone` returns

    def __dealloc__(self):
        PyMem_Free(self.targets)
        PyMem_Free(self.own_scratch)

    def add(self, StoredRows stored, UpdateRule rule, int64_t step, unique__u, row_ids__u, run_splits,
            sources__n, gains__n, gradients__gd, bint stochastic, uint64_t seed, long__h, sums__hd):
        """Add the update of a table by a rule, in one step.

        Rows `unique__u` (u,) are distinct and ascending, and called `row_ids__u` in the whole table;
        run u of `sources__n` and `gains__n` (or None) is [run_splits[u], run_splits[u + 1]), summed
        as `accumulate` does, an empty one to zeros. Where nothing is summed, of a block first those
        that have one get the gradient of their first occurrence, then of their second, and so on.
        Rows and slots of other types than the working one are converted for it and back, once per
        block: to the nearest, or, rows `stochastic`, with the upper 32 bits of (seed, row id,
        column) of `_core.random`. `sums__hd` (h, d) are the summed gradients of the runs `long__h`
        (h,), all those of LONG_RUN occurrences and more; or both are None. Return the elements that
        its work is counted as.
        """
        cdef Target target
        cdef Py_ssize_t dim = stored.memory.dim, size = 4, rows, occurrences
        cdef const char* floats = b"f"
        if dim == 0:
            return 0
        if not stored.memory.writable:
            raise ValueError("rows to update must be writable, got read-only ones")
        if stored.memory.working == FLOAT64:
            floats, size = b"d", 8
        rows = look_at(unique__u, INTEGERS, 8, 0, <const void**>&target.unique)
        occurrences = look_at(sources__n, INTEGERS, 4, 0, <const void**>&target.sources)
        target.long_count = look_at(long__h, INTEGERS, 8, 0, <const void**>&target.long_places)
        look_at(gradients__gd, floats, size, dim, &target.gradients)
        if (look_at(row_ids__u, INTEGERS, 8, 0, <const void**>&target.row_ids) != rows
                or look_at(run_splits, INTEGERS, 8, 0, <const void**>&target.run_splits) != rows + 1
                or look_at(gains__n, floats, size, 0,
                           &target.gains) != (gains__n is not None) * occurrences
                or look_at(sums__hd, floats, size, dim, &target.long_sums) != target.long_count):
            raise ValueError("an update must have a row id and a run of each row, a gain of each "
                             "source, and a sum of each long run")
        if rows == 0:
            return 0
        target.stored, target.rule = stored.memory, fitted(rule.rule, &stored.memory)
        target.rule.step = step
        target.stochastic, target.key = stochastic, mix(seed + INCREMENT)
        self.targets = <Target*>with_room(self.targets, self.count, sizeof(Target))
        self.targets[self.count] = target
        self.held += (stored, rule, unique__u, row_ids__u, run_splits, sources__n, gains__n,
                      gradients__gd, long__h, sums__hd)
        self.append(target.run_splits, rows, dim, False)
        self.scratch = max(self.scratch, scratch_of(&target))
        return all_of(&self.parts[self.count - 1])

    def make(self, uint8_t[::1] scratch, Py_ssize_t most=ALL):
        """Make shares that no thread has begun, at most so many. O(n·d)."""
        if scratch.shape[0] < self.scratch:
            raise ValueError(f"scratch must have {self.scratch} bytes, got {scratch.shape[0]}")
        if self.count == 0:
            return
        with nogil:
            self.make_shares(&scratch[0], most)

    def alone(self, Py_ssize_t most):
        """Return what makes all at once, called without arguments, if that is at most so much work.

        It is to be called once. None: it is more work.
        """
        if not self.is_alone(most):
            return None
        PyMem_Free(self.own_scratch)
        self.own_scratch = <uint8_t*>PyMem_Malloc(max(self.scratch, 1))
        if self.own_scratch == NULL:
            raise MemoryError("no room to update in")
        return self.make_all

    def make_all(self):
        """Make what `alone` has cut. O(n·d)."""
        if self.own_scratch == NULL:
            raise ValueError("updates must be made alone")
        with nogil:
            self.make_shares(self.own_scratch, ALL)

    cdef void make_shares(self, uint8_t* scratch, Py_ssize_t most) noexcept nogil:
        cdef Py_ssize_t share, at
        while most > 0:
            share = self.next_share()
            if share == self.shares:
                break
            for at in range(self.borders[share].part, self.part_after(share)):
                if self.first_of(share, at) < self.last_of(share, at):
                    update_target(&self.targets[at], self.first_of(share, at),
                                  self.last_of(share, at), scratch)
            most -= 1


cdef inline Rule fitted(Rule rule, const Stored* stored) noexcept nogil:
    """Return the rule with a block, or none, and a distance ahead, that a table's rows and slots allow."""
    cdef Py_ssize_t size = sizeof(float64_t) if stored.working == FLOAT64 else sizeof(float32_t)
    cdef Py_ssize_t row = stored.dim * size, bytes = row, k
    for k in range(stored.slots):
        bytes += stored.slot_bytes[k]
    rule.block = max(min(rule.block, UPDATE_ROWS, rule.block_bytes // bytes), 1)
    rule.all_into_first = rule.into_first and row >= WIDE_ROW
    if rule.all_into_first:
        rule.ahead = max(min(rule.ahead, FIRST_BYTES // (bytes + row)), 1)
    rule.row_by_row = (not rule.by_occurrence and not stored.converted
                       and bytes >= rule.alone_bytes)
    return rule


cdef inline Py_ssize_t scratch_of(const Target* target) noexcept nogil:
    """Return how many bytes an update needs as scratch: pointers, and values in lines after them."""
    cdef const Stored* stored = &target.stored
    cdef Py_ssize_t pointers = UPDATE_ROWS * (1 + stored.slots) + stored.slots
    cdef Py_ssize_t values = (2 + stored.converted) * UPDATE_ROWS * stored.dim + stored.dim
    cdef Py_ssize_t size = sizeof(float64_t) if stored.working == FLOAT64 else sizeof(float32_t)
    return pointers * <Py_ssize_t>sizeof(void*) + LINE + values * size


cdef void update_target(Target* target, Py_ssize_t first, Py_ssize_t last,
                        uint8_t* scratch) noexcept nogil:
    """Update the rows [first, last) of those that an update names."""
    cdef const Stored* stored = &target.stored
    cdef void** pointers = <void**>scratch
    # Where a cache line begins: a vector that is written across two of them is written twice.
    cdef size_t after = <size_t>(pointers + UPDATE_ROWS * (1 + stored.slots) + stored.slots)
    cdef void* values = <void*>((after + LINE - 1) & ~<size_t>(LINE - 1))
    if stored.working == FLOAT64:
        update_in_turn(<float64_t*>stored.table, first, last, target, <float64_t*>values, pointers,
                       <AnyColumns*>NULL)
    elif stored.dim == 8:
        update_floats(first, last, target, <float32_t*>values, pointers, <Columns8*>NULL)
    elif stored.dim == 16:
        update_floats(first, last, target, <float32_t*>values, pointers, <Columns16*>NULL)
    elif stored.dim == 32:
        update_floats(first, last, target, <float32_t*>values, pointers, <Columns32*>NULL)
    elif stored.dim == 64:
        update_floats(first, last, target, <float32_t*>values, pointers, <Columns64*>NULL)
    elif stored.dim == 128:
        update_floats(first, last, target, <float32_t*>values, pointers, <Columns128*>NULL)
    else:
        update_floats(first, last, target, <float32_t*>values, pointers, <AnyColumns*>NULL)


cdef inline void update_floats(Py_ssize_t first, Py_ssize_t last, Target* target, float32_t* values,
                               void** pointers, const columns_t* columns) noexcept nogil:
    """Update rows that are computed with in 32 bits."""
    if target.stored.kind == HALF:
        _update(<half_t*>target.stored.table, first, last, target, values, pointers, columns)
    elif target.stored.kind == BFLOAT:
        _update(<bfloat_t*>target.stored.table, first, last, target, values, pointers, columns)
    else:
        update_in_turn(<float32_t*>target.stored.table, first, last, target, values, pointers,
                       columns)


cdef inline void update_in_turn(value_t* table, Py_ssize_t first, Py_ssize_t last, Target* target,
                                value_t* values, void** pointers,
                                const columns_t* columns) noexcept nogil:
    """Update rows as they are stored, one by one or in blocks."""
    if target.rule.row_by_row:
        _update_row_by_row(table, first, last, target, values, pointers, columns)
    else:
        _update(table, first, last, target, values, pointers, columns)


cdef inline Py_ssize_t known(const columns_t* columns, Py_ssize_t dim) noexcept nogil:
    """Return the number of columns: a literal, but of `AnyColumns`, which are `dim`."""
    if columns_t is Columns8:
        return 8
    elif columns_t is Columns16:
        return 16
    elif columns_t is Columns32:
        return 32
    elif columns_t is Columns64:
        return 64
    elif columns_t is Columns128:
        return 128
    else:
        return dim


cdef inline void call(const Target* target, int64_t count, void** rows, void** slots,
                      const value_t* gradients, const int64_t* row_ids) noexcept nogil:
    """Call the optimizer's function, of the type that it was compiled as."""
    if value_t is float64_t:
        (<shardcore_update_float64>target.rule.function)(
            count, target.stored.dim, <double* const*>rows, <double* const* const*>slots, gradients,
            row_ids, target.rule.hyper, target.rule.step, target.rule.context)
    else:
        (<shardcore_update_float32>target.rule.function)(
            count, target.stored.dim, <float* const*>rows, <float* const* const*>slots, gradients,
            row_ids, target.rule.hyper, target.rule.step, target.rule.context)


cdef inline void load_slot(const char* stored, int64_t kind, int64_t size,
                           value_t* out) noexcept nogil:
    """Convert one row of a slot, of `size` bytes, to the working type."""
    if kind == HALF:
        widen(<const half_t*>stored, size // <int64_t>sizeof(half_t), out)
    elif kind == BFLOAT:
        widen(<const bfloat_t*>stored, size // <int64_t>sizeof(bfloat_t), out)
    elif kind == FLOAT64:
        widen(<const float64_t*>stored, size // <int64_t>sizeof(float64_t), out)
    else:
        widen(<const float32_t*>stored, size // <int64_t>sizeof(float32_t), out)


cdef inline void store_slot(char* stored, int64_t kind, int64_t size,
                            const value_t* values) noexcept nogil:
    """Round one row of a slot back to the type that it is stored in."""
    if kind == HALF:
        narrow(values, size // <int64_t>sizeof(half_t), <half_t*>stored)
    elif kind == BFLOAT:
        narrow(values, size // <int64_t>sizeof(bfloat_t), <bfloat_t*>stored)
    elif kind == FLOAT64:
        narrow(values, size // <int64_t>sizeof(float64_t), <float64_t*>stored)
    else:
        narrow(values, size // <int64_t>sizeof(float32_t), <float32_t*>stored)


cdef void convert_slots(const Target* target, const int64_t* rows__u, Py_ssize_t count,
                        value_t* scratch, void** pointers, bint back) noexcept nogil:
    """Convert slots of other types for the rows of a block, and point to what they became.

    `back`: convert what they point to back instead.
    """
    cdef Py_ssize_t k, u
    cdef value_t* block__ud = scratch
    cdef char* stored
    for k in range(target.stored.slots):
        if target.stored.slot_kinds[k] == target.stored.working:
            continue
        for u in range(count):
            stored = target.stored.slot_bases[k] + rows__u[u] * target.stored.slot_bytes[k]
            if back:
                store_slot(stored, target.stored.slot_kinds[k], target.stored.slot_bytes[k],
                           block__ud + u * target.stored.dim)
            else:
                load_slot(stored, target.stored.slot_kinds[k], target.stored.slot_bytes[k],
                          block__ud + u * target.stored.dim)
                pointers[k * UPDATE_ROWS + u] = block__ud + u * target.stored.dim
        block__ud += UPDATE_ROWS * target.stored.dim


cdef inline void point_slots(const Target* target, int64_t row, Py_ssize_t u, Py_ssize_t at,
                             value_t* scratch, void** pointers) noexcept nogil:
    """Point, at place `at`, to the slots of row number u of a block."""
    cdef Py_ssize_t k
    cdef value_t* block__ud = scratch
    for k in range(target.stored.slots):
        if target.stored.slot_kinds[k] == target.stored.working:
            pointers[k * UPDATE_ROWS + at] = target.stored.slot_bases[k] + row * target.stored.slot_bytes[k]
        else:
            pointers[k * UPDATE_ROWS + at] = block__ud + u * target.stored.dim
            block__ud += UPDATE_ROWS * target.stored.dim


cdef struct Walk:       # through the rows of a range: of several sections of it in turn
    Py_ssize_t first
    Py_ssize_t rows
    Py_ssize_t bits     # 2**bits sections
    Py_ssize_t length   # of a section
    Py_ssize_t longer   # sections, the first ones, that have a row more


cdef inline Walk walk_of(const Target* target, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Return the way through the rows [first, last).

    Neighbours come from several sections of the table: on some processors rows in ascending order,
    one or two to a page, take a fifth longer to read and write than rows of a few pages in turn.
    """
    cdef Walk walk
    walk.first, walk.rows, walk.bits = first, last - first, target.rule.section_bits
    if walk.rows < target.rule.block << walk.bits:
        walk.bits = 0
    walk.length = walk.rows >> walk.bits
    walk.longer = walk.rows - (walk.length << walk.bits)
    return walk


cdef inline Py_ssize_t place_of(const Walk* walk, Py_ssize_t turn) noexcept nogil:
    """Return which row comes after so many others."""
    cdef Py_ssize_t before, section
    if walk.bits == 0:
        return walk.first + turn
    before = turn >> walk.bits
    section = turn - (before << walk.bits)
    return walk.first + section * walk.length + min(section, walk.longer) + before


cdef inline Py_ssize_t long_at(const Target* target, Py_ssize_t place) noexcept nogil:
    """Return which of the long runs lies at a place that has one."""
    cdef Py_ssize_t first = 0, last = target.long_count, middle
    while last - first > 1:
        middle = (first + last) // 2
        if target.long_places[middle] <= place:
            first = middle
        else:
            last = middle
    return first


cdef inline void ask_to_write(const void* bytes, Py_ssize_t size, bint into_first) noexcept nogil:
    if into_first:
        ask_for_row_near(bytes, size)
    else:
        ask_for_update(bytes, size)


cdef inline void ask_to_read(const void* bytes, Py_ssize_t size, bint into_first) noexcept nogil:
    if into_first:
        ask_for_row_near(bytes, size)
    else:
        ask_for_row(bytes, size)


cdef inline void ask_for_row_of(int64_t row, const int32_t* sources, Py_ssize_t count, row_t* table,
                                const value_t* gradients__gd, const Target* target,
                                Py_ssize_t dim, bint into_first,
                                bint all_into_first) noexcept nogil:
    """Ask for a row, its slots, and so many gradients; no tests are left of the last two, literals."""
    cdef Py_ssize_t whole = dim * sizeof(value_t), k, i
    ask_to_write(table + row * dim, dim * sizeof(row_t), into_first)
    for k in range(target.stored.slots):
        if target.stored.slot_bytes[k] == whole:    # and the compiler may know how many
            ask_to_write(target.stored.slot_bases[k] + row * whole, whole, all_into_first)
        else:
            ask_to_write(target.stored.slot_bases[k] + row * target.stored.slot_bytes[k],
                         target.stored.slot_bytes[k], all_into_first)
    for i in range(count):
        ask_to_read(gradients__gd + <Py_ssize_t>sources[i] * dim, dim * sizeof(value_t),
                    all_into_first)


cdef inline void ask_for(const Walk* walk, Py_ssize_t turn, row_t* table, Py_ssize_t dim,
                         const value_t* gradients__gd, const Target* target) noexcept nogil:
    """Ask for what the update of the row needs that comes after so many others, if there is one."""
    cdef Py_ssize_t place, count
    cdef const int32_t* sources
    cdef int64_t row
    if turn >= walk.rows:
        return
    place = place_of(walk, turn)
    row, sources = target.unique[place], target.sources + target.run_splits[place]
    count = target.run_splits[place + 1] - target.run_splits[place]
    if count >= LONG_RUN:
        count = 0 if target.long_sums != NULL else FAR
    if not target.rule.into_first:
        ask_for_row_of(row, sources, count, table, gradients__gd, target, dim, False, False)
    elif target.rule.all_into_first:
        ask_for_row_of(row, sources, count, table, gradients__gd, target, dim, True, True)
    else:
        ask_for_row_of(row, sources, count, table, gradients__gd, target, dim, True, False)


cdef inline void sum_gradients(const value_t* gradients__gd, Py_ssize_t dim,
                               const int32_t* sources__n, Py_ssize_t lo, Py_ssize_t hi,
                               const value_t* gains__n, value_t* block__d, value_t* sum__d,
                               const columns_t* columns) noexcept nogil:
    """Sum one row's gradients as `sum_run` does; few of them here, if the compiler knows `dim`."""
    if columns_t is not AnyColumns and value_t is float32_t:
        if hi - lo < LONG_RUN and gains__n == NULL:
            sc_sum_few_floats(gradients__gd, dim, sources__n + lo, hi - lo, sum__d)
            return
    sum_run(gradients__gd, dim, sources__n, lo, hi, hi, gains__n, block__d, sum__d)


cdef void _update_row_by_row(value_t* table, Py_ssize_t first, Py_ssize_t last, Target* target,
                             value_t* scratch, void** pointers,
                             const columns_t* columns) noexcept nogil:
    """Update rows one by one: what is asked for for those that come arrives while the function works.

    In blocks all of it is asked for at once, and the function finds nothing on its way.
    """
    cdef Py_ssize_t dim = known(columns, target.stored.dim)
    cdef Py_ssize_t slots = target.stored.slots, ahead = target.rule.ahead
    cdef const int64_t* run_splits = target.run_splits
    cdef const int32_t* sources__n = target.sources
    cdef const value_t* gradients__gd = <const value_t*>target.gradients
    cdef const value_t* gains__n = <const value_t*>target.gains
    cdef const value_t* gradient__d
    cdef value_t* sum__d = scratch
    cdef value_t* block__d = scratch + dim
    cdef void** slot_pointers = pointers + 1
    cdef void** slot_tables = slot_pointers + slots
    cdef Py_ssize_t turn, place, lo, hi, k
    cdef int64_t row
    cdef Walk walk = walk_of(target, first, last)
    for k in range(slots):
        slot_tables[k] = slot_pointers + k
    for turn in range(ahead):
        ask_for(&walk, turn, table, dim, gradients__gd, target)
    for turn in range(walk.rows):
        ask_for(&walk, ahead + turn, table, dim, gradients__gd, target)
        place = place_of(&walk, turn)
        lo, hi = run_splits[place], run_splits[place + 1]
        if hi - lo == 1 and gains__n == NULL:
            gradient__d = gradients__gd + <Py_ssize_t>sources__n[lo] * dim
        elif hi - lo >= LONG_RUN and target.long_sums != NULL:
            gradient__d = <const value_t*>target.long_sums + long_at(target, place) * dim
        else:
            sum_gradients(gradients__gd, dim, sources__n, lo, hi, gains__n, block__d, sum__d, columns)
            gradient__d = sum__d
        row = target.unique[place]
        pointers[0] = table + row * dim
        for k in range(slots):
            slot_pointers[k] = target.stored.slot_bases[k] + row * target.stored.slot_bytes[k]
        call(target, 1, pointers, slot_tables, gradient__d, target.row_ids + place)


cdef void _update(row_t* table, Py_ssize_t first, Py_ssize_t last, Target* target,
                  value_t* scratch, void** pointers, const columns_t* columns) noexcept nogil:
    cdef Py_ssize_t dim = known(columns, target.stored.dim), slots = target.stored.slots
    cdef const int64_t* unique__u = target.unique
    cdef const int64_t* row_ids__u = target.row_ids
    cdef const int64_t* run_splits = target.run_splits
    cdef const int32_t* sources__n = target.sources
    cdef const value_t* gains__n = <const value_t*>target.gains
    cdef const value_t* gradients__gd = <const value_t*>target.gradients
    cdef Py_ssize_t count, place, u, k, lo, hi, turn, filled, at, begin = 0
    cdef Py_ssize_t ahead = target.rule.ahead
    cdef Walk walk = walk_of(target, first, last)
    # What rows to come need is asked for between the sums of a block, where all of these take as long:
    # but sums of several rows each are foretold wrongly, and hold up what is asked for.
    cdef Py_ssize_t occurrences = run_splits[last] - run_splits[first]
    cdef bint by_turns = occurrences <= last - first + (last - first) // 4
    cdef const int64_t* rows            # of a block, and their numbers: where they lie, if they are
    cdef const int64_t* row_ids         # neighbours there, else in the copies
    cdef int64_t rows_copy[UPDATE_ROWS]
    cdef int64_t ids_copy[UPDATE_ROWS]
    cdef int64_t turn_ids[UPDATE_ROWS]
    cdef value_t* gradients__ud = scratch                       # (UPDATE_ROWS, d)
    cdef value_t* widened__ud = scratch + UPDATE_ROWS * dim     # (UPDATE_ROWS, d), for short rows
    cdef value_t* block__d = scratch + 2 * UPDATE_ROWS * dim    # (d,)
    cdef value_t* converted = block__d + dim                    # (UPDATE_ROWS, d) per such slot
    cdef void** row_pointers = pointers
    cdef void** slot_pointers = pointers + UPDATE_ROWS          # slots x UPDATE_ROWS
    cdef void** slot_tables = slot_pointers + slots * UPDATE_ROWS
    cdef row_t* row
    for k in range(slots):
        slot_tables[k] = slot_pointers + k * UPDATE_ROWS
    for u in range(ahead):
        ask_for(&walk, u, table, dim, gradients__gd, target)
    while begin < walk.rows:
        count = min(target.rule.block, walk.rows - begin)
        rows, row_ids = unique__u + first + begin, row_ids__u + first + begin
        if walk.bits:
            rows, row_ids = &rows_copy[0], &ids_copy[0]
            for u in range(count):
                place = place_of(&walk, begin + u)
                rows_copy[u], ids_copy[u] = unique__u[place], row_ids__u[place]
                # What is read to ask for rows: of so many places the processor reads none ahead.
                if u < 1 << walk.bits and place + LINE < last:
                    prefetch_read(unique__u + place + LINE)
                    prefetch_read(run_splits + place + LINE)
                    prefetch_read(sources__n + run_splits[place] + LINE)
        if not by_turns:
            for u in range(count):
                ask_for(&walk, begin + ahead + u, table, dim, gradients__gd, target)
        for u in range(count):
            if by_turns:
                ask_for(&walk, begin + ahead + u, table, dim, gradients__gd, target)
            place = place_of(&walk, begin + u)
            lo, hi = run_splits[place], run_splits[place + 1]
            if hi - lo >= LONG_RUN and target.long_sums != NULL:
                memcpy(gradients__ud + u * dim,
                       <const value_t*>target.long_sums + long_at(target, place) * dim,
                       dim * sizeof(value_t))
            elif not target.rule.by_occurrence:
                sum_gradients(gradients__gd, dim, sources__n, lo, hi, gains__n, block__d,
                              gradients__ud + u * dim, columns)
            row = table + rows[u] * dim
            if row_t is half_t or row_t is bfloat_t:
                widen(row, dim, widened__ud + u * dim)
                row_pointers[u] = widened__ud + u * dim
            else:
                row_pointers[u] = row
            for k in range(slots):
                slot_pointers[k * UPDATE_ROWS + u] = (
                    target.stored.slot_bases[k] + rows[u] * target.stored.slot_bytes[k])
        if target.stored.converted:
            convert_slots(target, rows, count, converted, slot_pointers, False)
        if not target.rule.by_occurrence:
            call(target, count, row_pointers, slot_tables, gradients__ud, row_ids)
        else:
            turn, filled = 0, count
            while filled:       # the rows that have an occurrence number `turn`
                filled = 0
                for u in range(count):
                    place = place_of(&walk, begin + u)
                    at = run_splits[place] + turn
                    if at >= run_splits[place + 1]:
                        continue
                    sum_rows(gradients__gd, dim * sizeof(value_t), dim, sources__n, ANY, at, at + 1,
                             at + 1, 0, gains__n, gradients__ud + filled * dim)
                    if row_t is half_t or row_t is bfloat_t:
                        row_pointers[filled] = widened__ud + u * dim
                    else:
                        row_pointers[filled] = table + rows[u] * dim
                    point_slots(target, rows[u], u, filled, converted, slot_pointers)
                    turn_ids[filled] = row_ids[u]
                    filled += 1
                if filled:
                    call(target, filled, row_pointers, slot_tables, gradients__ud, turn_ids)
                turn += 1
        if target.stored.converted:
            convert_slots(target, rows, count, converted, slot_pointers, True)
        if row_t is half_t or row_t is bfloat_t:
            for u in range(count):
                row = table + rows[u] * dim
                if target.stochastic:
                    narrow_stochastic(widened__ud + u * dim, dim, row_start(target.key, row_ids[u]),
                                      row_step(target.key, row_ids[u]), row)
                else:
                    narrow(widened__ud + u * dim, dim, row)
        begin += count
