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
    Py_ssize_t sections         # ranges of rows gone through side by side, see `places_of`

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
    """How an optimizer updates rows in one step: what the tables that it trains have in common.

    `function` is the address of its C function (see shardcore_update.h), which is called with
    `context`, `hyper` and `step`. `by_occurrence`: once for each gradient of a row, not once for
    their sum. At most UPDATE_ROWS rows make a `block`, of which as many come from each of `sections`
    ranges of the rows. `held` keeps the function.
    """

    cdef Rule rule
    cdef const double[::1] hyper
    cdef object held

    def __init__(self, uint64_t function, uint64_t context, const double[::1] hyper, int64_t step,
                 bint by_occurrence, Py_ssize_t block, Py_ssize_t sections, held):
        self.hyper, self.held = hyper, held
        self.rule.function, self.rule.context = <void*>function, <void*>context
        self.rule.hyper = &hyper[0] if hyper.shape[0] else NULL
        self.rule.step, self.rule.by_occurrence = step, by_occurrence
        self.rule.block, self.rule.sections = block, sections


cdef class Updates(Shares):
    """Updates of tables: added one by one, cut into shares, made by any number of threads.

    Attributes
    ----------
    scratch : int
        Bytes that `make` needs.
    """

    cdef Target* targets
    cdef readonly Py_ssize_t scratch

    def __dealloc__(self):
        PyMem_Free(self.targets)

    def add(self, StoredRows stored, UpdateRule rule, unique__u, row_ids__u, run_splits, sources__n,
            gains__n, gradients__gd, bint stochastic, uint64_t seed, long__h, sums__hd):
        """Add the update of a table by a rule.

        Rows `unique__u` (u,) are distinct and ascending, and called `row_ids__u` in the whole table;
        run u of `sources__n` and `gains__n` (or None) is [run_splits[u], run_splits[u + 1]), summed
        as `accumulate` does, an empty one to zeros. Where nothing is summed, of a block first those
        that have one get the gradient of their first occurrence, then of their second, and so on.
        Rows and slots of other types than the working one are converted for it and back, once per
        block: to the nearest, or, rows `stochastic`, with the upper 32 bits of (seed, row id,
        column) of `_core.random`. `sums__hd` (h, d) are the summed gradients of the runs `long__h`
        (h,), all those of LONG_RUN occurrences and more; or both are None.
        """
        cdef Target target
        cdef Py_ssize_t dim = stored.memory.dim, size = 4, rows, occurrences
        cdef const char* floats = b"f"
        if dim == 0:
            return
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
            return
        target.stored, target.rule = stored.memory, rule.rule
        target.stochastic, target.key = stochastic, mix(seed + INCREMENT)
        self.targets = <Target*>with_room(self.targets, self.count, sizeof(Target))
        self.targets[self.count] = target
        self.append(target.run_splits, rows, dim, False,
                    (stored, rule, unique__u, row_ids__u, run_splits, sources__n, gains__n,
                     gradients__gd, long__h, sums__hd))
        self.scratch = max(self.scratch, scratch_of(&target))

    def make(self, uint8_t[::1] scratch, Py_ssize_t most=ALL):
        """Make shares that no thread has begun, at most so many. O(n·d)."""
        cdef Py_ssize_t share, at
        if scratch.shape[0] < self.scratch:
            raise ValueError(f"scratch must have {self.scratch} bytes, got {scratch.shape[0]}")
        if self.count == 0:
            return
        with nogil:
            while most > 0:
                share = self.next_share()
                if share == self.shares:
                    break
                for at in range(self.borders[share].part, self.part_after(share)):
                    if self.first_of(share, at) < self.last_of(share, at):
                        update_target(&self.targets[at], self.first_of(share, at),
                                      self.last_of(share, at), &scratch[0])
                most -= 1


cdef inline Py_ssize_t scratch_of(const Target* target) noexcept nogil:
    """Return how many bytes an update needs as scratch: pointers, and values after them."""
    cdef const Stored* stored = &target.stored
    cdef Py_ssize_t pointers = UPDATE_ROWS * (1 + stored.slots) + stored.slots
    cdef Py_ssize_t values = (2 + stored.converted) * UPDATE_ROWS * stored.dim + stored.dim
    cdef Py_ssize_t size = sizeof(float64_t) if stored.working == FLOAT64 else sizeof(float32_t)
    return pointers * <Py_ssize_t>sizeof(void*) + values * size


cdef void update_target(Target* target, Py_ssize_t first, Py_ssize_t last,
                        uint8_t* scratch) noexcept nogil:
    """Update the rows [first, last) of those that an update names."""
    cdef const Stored* stored = &target.stored
    cdef void** pointers = <void**>scratch
    cdef void* values = pointers + UPDATE_ROWS * (1 + stored.slots) + stored.slots
    if stored.working == FLOAT64:
        _update(<float64_t*>stored.table, first, last, target, <float64_t*>values, pointers)
    elif stored.kind == HALF:
        _update(<half_t*>stored.table, first, last, target, <float32_t*>values, pointers)
    elif stored.kind == BFLOAT:
        _update(<bfloat_t*>stored.table, first, last, target, <float32_t*>values, pointers)
    else:
        _update(<float32_t*>stored.table, first, last, target, <float32_t*>values, pointers)


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


cdef inline Py_ssize_t places_of(Py_ssize_t number, Py_ssize_t first, Py_ssize_t last,
                                 const Target* target, Py_ssize_t* places) noexcept nogil:
    """Write which of the rows [first, last) make block `number`, return how many; 0 after the last.

    Neighbours in a block come from several sections of the table: on some processors rows in
    ascending order, one or two to a page, take a fifth longer to read and write than rows of a few
    pages in turn.
    """
    cdef Py_ssize_t rows = last - first
    cdef Py_ssize_t sections = target.rule.sections if rows >= target.rule.sections * target.rule.block else 1
    cdef Py_ssize_t length = (rows + sections - 1) // sections, turns = target.rule.block // sections
    cdef Py_ssize_t turn, section, place, count = 0
    for turn in range(number * turns, (number + 1) * turns):
        if turn >= length:
            break
        for section in range(sections):
            place = section * length + turn
            if place < rows:
                places[count] = first + place
                count += 1
    return count


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


cdef inline void ask_for_place(row_t* table, const value_t* gradients__gd, const Target* target,
                               Py_ssize_t place) noexcept nogil:
    """Ask for what the update of a row needs: itself, its slots, and its gradients."""
    cdef Py_ssize_t dim = target.stored.dim, k, i
    cdef Py_ssize_t lo = target.run_splits[place], hi = target.run_splits[place + 1]
    cdef int64_t row = target.unique[place]
    ask_for_update(table + row * dim, dim * sizeof(row_t))
    for k in range(target.stored.slots):
        ask_for_update(target.stored.slot_bases[k] + row * target.stored.slot_bytes[k], target.stored.slot_bytes[k])
    if hi - lo >= LONG_RUN:
        hi = lo if target.long_sums != NULL else lo + FAR
    for i in range(lo, hi):
        ask_for_row(gradients__gd + <Py_ssize_t>target.sources[i] * dim, dim * sizeof(value_t))
    forget_sources()    # a function that only asks has no effect to the compiler, which drops it


cdef void _update(row_t* table, Py_ssize_t first, Py_ssize_t last, Target* target,
                  value_t* scratch, void** pointers) noexcept nogil:
    cdef Py_ssize_t dim = target.stored.dim, slots = target.stored.slots
    cdef const int64_t* unique__u = target.unique
    cdef const int64_t* row_ids__u = target.row_ids
    cdef const int64_t* run_splits = target.run_splits
    cdef const int32_t* sources__n = target.sources
    cdef const value_t* gains__n = <const value_t*>target.gains
    cdef const value_t* gradients__gd = <const value_t*>target.gradients
    cdef Py_ssize_t number = 0, count, coming, place, u, k, c, lo, hi, turn, filled, at
    cdef Py_ssize_t two_blocks[2 * UPDATE_ROWS]
    cdef Py_ssize_t* places = two_blocks
    cdef Py_ssize_t* next_places = two_blocks + UPDATE_ROWS
    # What the next block needs is asked for between the sums of this one, where all of these take as
    # long: but sums of several rows each are foretold wrongly, and hold up what is asked for.
    cdef Py_ssize_t occurrences = run_splits[last] - run_splits[first]
    cdef bint by_turns = occurrences <= last - first + (last - first) // 4
    cdef int64_t block_rows[UPDATE_ROWS]
    cdef int64_t block_ids[UPDATE_ROWS]
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
    count = places_of(number, first, last, target, places)
    while count:
        number += 1
        coming = places_of(number, first, last, target, next_places)
        for u in range(target.rule.sections):   # what blocks after the next one read first
            if u < coming and next_places[u] + LINE < last:
                prefetch_read(unique__u + next_places[u] + LINE)
                prefetch_read(run_splits + next_places[u] + LINE)
                prefetch_read(sources__n + run_splits[next_places[u]] + LINE)
        if not by_turns:
            for u in range(coming):
                ask_for_place(table, gradients__gd, target, next_places[u])
        for u in range(count):
            if by_turns and u < coming:
                ask_for_place(table, gradients__gd, target, next_places[u])
            place = places[u]
            block_rows[u] = unique__u[place]
            block_ids[u] = row_ids__u[place]
            lo, hi = run_splits[place], run_splits[place + 1]
            if hi - lo >= LONG_RUN and target.long_sums != NULL:
                memcpy(gradients__ud + u * dim,
                       <const value_t*>target.long_sums + long_at(target, place) * dim,
                       dim * sizeof(value_t))
            elif not target.rule.by_occurrence:
                sum_run(gradients__gd, dim, sources__n, lo, hi, hi, gains__n, block__d,
                        gradients__ud + u * dim)
            row = table + block_rows[u] * dim
            if row_t is half_t or row_t is bfloat_t:
                widen(row, dim, widened__ud + u * dim)
                row_pointers[u] = widened__ud + u * dim
            else:
                row_pointers[u] = row
            for k in range(slots):
                slot_pointers[k * UPDATE_ROWS + u] = (
                    target.stored.slot_bases[k] + block_rows[u] * target.stored.slot_bytes[k])
        if target.stored.converted:
            convert_slots(target, block_rows, count, converted, slot_pointers, False)
        if not target.rule.by_occurrence:
            call(target, count, row_pointers, slot_tables, gradients__ud, block_ids)
        else:
            turn, filled = 0, count
            while filled:       # the rows that have an occurrence number `turn`
                filled = 0
                for u in range(count):
                    at = run_splits[places[u]] + turn
                    if at >= run_splits[places[u] + 1]:
                        continue
                    sum_rows(gradients__gd, dim * sizeof(value_t), dim, sources__n, ANY, at, at + 1,
                             at + 1, 0, gains__n, gradients__ud + filled * dim)
                    if row_t is half_t or row_t is bfloat_t:
                        row_pointers[filled] = widened__ud + u * dim
                    else:
                        row_pointers[filled] = table + block_rows[u] * dim
                    point_slots(target, block_rows[u], u, filled, converted, slot_pointers)
                    turn_ids[filled] = block_ids[u]
                    filled += 1
                if filled:
                    call(target, filled, row_pointers, slot_tables, gradients__ud, turn_ids)
                turn += 1
        if target.stored.converted:
            convert_slots(target, block_rows, count, converted, slot_pointers, True)
        if row_t is half_t or row_t is bfloat_t:
            for u in range(count):
                row = table + block_rows[u] * dim
                if target.stochastic:
                    narrow_stochastic(widened__ud + u * dim, dim, row_start(target.key, block_ids[u]),
                                      row_step(target.key, block_ids[u]), row)
                else:
                    narrow(widened__ud + u * dim, dim, row)
        places, next_places = next_places, places
        count = coming
