# The updates of all first-party optimizers, written once for both working types and compiled once
# per instruction set (_update_baseline, _update_v3, _update_v4).
#
# Signature and duties: shardcore_update.h. The order of operations is that of the pure form of
# each optimizer, without contraction to fused multiply-add, so that results agree to the last bit;
# only powers other than roots come from the C library here and from the array library there.
# `value` is the working type; hyper-parameters are combined in double and rounded to it, as the
# pure forms do.
#
# Places and bits of hyper are in _hyper.pxd, for the pure forms too.
#
# What all of them do around their formula is here once: `gradient_at`, `weight_at`, `weight_of`, in
# terms of `Steps`. `plain`, a literal wherever it is given, removes them where they have no effect.

from cpython.pycapsule cimport PyCapsule_New
from libc.math cimport pow, sqrt, sqrtf
from libc.stdint cimport int64_t

from _hyper cimport (
    LANES, CLIPS, CLIPS_NORM, DECAYS, DECAYS_GRADIENT, CLAMPS, DECAY_TIMES_RATE, DECAYS_IN_FORMULA,
    RATE, CLIP_LOW, CLIP_HIGH, NORM, DECAY, WEIGHT_LOW, WEIGHT_HIGH, STEPS, OWN, SGD_MOMENTUM,
    SGD_NESTEROV, ADAGRAD_EPSILON, ADAGRAD_TAKES_MAX, ADAGRAD_MOMENTUM, ADAGRAD_NESTEROV,
    ADAGRAD_EXPONENT, ADAGRAD_BETA2, ADAGRAD_OFFSET, FTRL_EXPONENT, FTRL_L1, FTRL_L2, FTRL_BETA,
    FTRL_MULTIPLIED, BETA_1, BETA_2, EPSILON, INSIDE, CORRECTION, UNCORRECTED, BY_STEP, BY_ROW,
    LARS_MOMENTUM, LARS_TRUST, LARS_EPSILON, RMS_RHO, RMS_MOMENTUM, RMS_EPSILON, RMS_INSIDE,
)
from shardcore_update cimport (
    SHARDCORE_UPDATE_FLOAT32, SHARDCORE_UPDATE_FLOAT64, shardcore_update_float32,
    shardcore_update_float64,
)

ctypedef fused value:
    float
    double

cdef enum:
    CHUNK = 64      # columns squared at a time, a multiple of LANES
    BLOCK = 32      # rows whose sums, roots and steps are taken in turn

cdef struct Steps:      # what is done around a formula; where nothing is, it changes no bit
    int configured
    double low          # of a gradient
    double high
    double norm         # of a row of gradients
    double keep         # what decoupled decay multiplies a weight by
    double decay        # what coupled decay, or the formula, multiplies a weight by
    double weight_low
    double weight_high


cdef inline Steps steps_of(const double *hyper) noexcept nogil:
    cdef Steps steps
    cdef int configured = <int> hyper[STEPS]
    cdef double decay = hyper[DECAY]
    if configured & DECAY_TIMES_RATE:
        decay = decay * hyper[RATE]
    steps.configured = configured
    steps.low, steps.high, steps.norm = hyper[CLIP_LOW], hyper[CLIP_HIGH], hyper[NORM]
    steps.weight_low, steps.weight_high = hyper[WEIGHT_LOW], hyper[WEIGHT_HIGH]
    steps.keep = 1 - decay if configured & DECAYS else 1
    steps.decay = decay if configured & (DECAYS_GRADIENT | DECAYS_IN_FORMULA) else 0
    return steps


# --- single numbers ---------------------------------------------------------------------------

cdef inline value root(value x) noexcept nogil:
    if value is float:
        return sqrtf(x)
    else:
        return sqrt(x)


cdef inline value power(value x, double exponent) noexcept nogil:
    """Return x ** exponent; roots exactly."""
    return root(x) if exponent == 0.5 else <value> pow(x, exponent)


cdef inline value quotient(value x, value y) noexcept nogil:
    """Return x / y, and 0 where y is 0: no step where nothing is known."""
    cdef value ratio = x / y
    return ratio if y != 0 else 0


cdef inline value bounded(value x, value low, value high) noexcept nogil:
    x = low if x < low else x
    return high if x > high else x


# --- rows -------------------------------------------------------------------------------------

cdef inline void add_squares(value *lanes, const value *chunk, int64_t count) noexcept nogil:
    """Add the squares of a chunk, which begins at a multiple of LANES, to the partial sums."""
    cdef int64_t at = 0, lane
    while at + LANES <= count:
        for lane in range(LANES):
            lanes[lane] += chunk[at + lane] * chunk[at + lane]
        at += LANES
    for lane in range(count - at):
        lanes[lane] += chunk[at + lane] * chunk[at + lane]


cdef inline value total_of(const value *lanes) noexcept nogil:
    cdef value total = 0
    cdef int64_t lane
    for lane in range(LANES):
        total += lanes[lane]
    return total


cdef inline void clear(value *lanes) noexcept nogil:
    cdef int64_t lane
    for lane in range(LANES):
        lanes[lane] = 0


cdef inline int64_t chunk_at(int64_t start, int64_t dim) noexcept nogil:
    return CHUNK if dim - start > CHUNK else dim - start


cdef inline value norm_factor(int64_t dim, const value *g, Steps steps) noexcept nogil:
    """Return what a row's bounded gradient is multiplied by to have at most the norm allowed."""
    cdef value lanes[LANES]
    cdef value chunk[CHUNK]
    cdef value norm
    cdef int64_t start = 0, count, c
    if not steps.configured & CLIPS_NORM:
        return 1
    clear(lanes)
    while start < dim:
        count = chunk_at(start, dim)
        for c in range(count):
            chunk[c] = bounded(g[start + c], <value> steps.low, <value> steps.high)
        add_squares(lanes, chunk, count)
        start += CHUNK
    norm = root(total_of(lanes))
    return <value> steps.norm / norm if norm > <value> steps.norm else 1


cdef inline value gradient_at(value g, value w, value factor, Steps steps, bint plain) noexcept nogil:
    """Return a gradient as the formula sees it: clipped, scaled to the norm, with coupled decay.

    Zeros are positive, as those of sums are, in gradients that are the caller's too.
    """
    g = g + 0
    if plain:
        return g
    g = bounded(g, <value> steps.low, <value> steps.high) * factor
    return g + <value> steps.decay * w if steps.configured & DECAYS_GRADIENT else g


cdef inline value weight_at(value w, Steps steps, bint plain) noexcept nogil:
    """Return a weight as the formula sees it: decayed."""
    return w if plain else w * <value> steps.keep


cdef inline value weight_of(value w, Steps steps, bint plain) noexcept nogil:
    """Return a weight as it is stored: clamped."""
    return w if plain else bounded(w, <value> steps.weight_low, <value> steps.weight_high)


cdef inline value sum_of_squares(
    int64_t dim, const value *g, const value *w, value factor, Steps steps, bint plain
) noexcept nogil:
    """Return the sum of the squares of a row's gradients as the formula sees them."""
    cdef value lanes[LANES]
    cdef value chunk[CHUNK]
    cdef int64_t start = 0, count, c
    clear(lanes)
    while start < dim:
        count = chunk_at(start, dim)
        for c in range(count):
            chunk[c] = gradient_at(g[start + c], w[start + c], factor, steps, plain)
        add_squares(lanes, chunk, count)
        start += CHUNK
    return total_of(lanes)


# --- SGD --------------------------------------------------------------------------------------

cdef inline void sgd_row(
    int64_t dim, value *w, const value *g, value rate, Steps steps, bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value gradient
    cdef int64_t c
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        w[c] = weight_of(weight_at(w[c], steps, plain) - rate * gradient, steps, plain)


cdef void _sgd(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """w = w - rate * g."""
    cdef Steps steps = steps_of(hyper)
    cdef value rate = <value> hyper[RATE]
    cdef int64_t row
    for row in range(count):
        if steps.configured:
            sgd_row(dim, rows[row], gradients + row * dim, rate, steps, False)
        else:
            sgd_row(dim, rows[row], gradients + row * dim, rate, steps, True)


cdef inline void momentum_row(
    int64_t dim, value *w, value *m, const value *g, value rate, value momentum, bint nesterov,
    Steps steps, bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value gradient, moved
    cdef int64_t c
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        m[c] = momentum * m[c] + gradient
        moved = gradient + momentum * m[c] if nesterov else m[c]
        w[c] = weight_of(weight_at(w[c], steps, plain) - rate * moved, steps, plain)


cdef void _momentum_sgd(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """m = momentum * m + g; w = w - rate * (g + momentum * m if nesterov else m)."""
    cdef Steps steps = steps_of(hyper)
    cdef value rate = <value> hyper[RATE], momentum = <value> hyper[SGD_MOMENTUM]
    cdef bint nesterov = hyper[SGD_NESTEROV] != 0
    cdef int64_t row
    for row in range(count):
        if steps.configured:
            momentum_row(dim, rows[row], slots[0][row], gradients + row * dim, rate, momentum,
                         nesterov, steps, False)
        else:
            momentum_row(dim, rows[row], slots[0][row], gradients + row * dim, rate, momentum,
                         nesterov, steps, True)


# --- Adagrad ----------------------------------------------------------------------------------

cdef inline void adagrad_row(
    int64_t dim, value *w, value *a, const value *g, value rate, value epsilon, Steps steps,
    bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value gradient, squares, moved
    cdef int64_t c
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        squares = a[c] + gradient * gradient
        moved = quotient(rate * gradient, root(squares) + epsilon)
        a[c] = squares
        w[c] = weight_of(weight_at(w[c], steps, plain) - moved, steps, plain)


cdef void _adagrad(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """a = a + g * g; w = w - (rate * g) / (sqrt(a) + epsilon)."""
    cdef Steps steps = steps_of(hyper)
    cdef value rate = <value> hyper[RATE], epsilon = <value> hyper[ADAGRAD_EPSILON]
    cdef int64_t row
    for row in range(count):
        if steps.configured:
            adagrad_row(dim, rows[row], slots[0][row], gradients + row * dim, rate, epsilon, steps,
                        False)
        else:
            adagrad_row(dim, rows[row], slots[0][row], gradients + row * dim, rate, epsilon, steps,
                        True)


cdef inline void add_squares_of(value *lanes, const value *g, int64_t dim) noexcept nogil:
    """Add the squares of a row as it stands, CHUNK columns at a time, the rest one LANES at a time."""
    cdef value sums[LANES]
    cdef int64_t start = 0, at, lane
    for lane in range(LANES):
        sums[lane] = 0
    while start + CHUNK <= dim:
        for at in range(CHUNK // LANES):
            for lane in range(LANES):
                sums[lane] += g[start + at * LANES + lane] * g[start + at * LANES + lane]
        start += CHUNK
    for lane in range(LANES):
        lanes[lane] = sums[lane]
    add_squares(lanes, g + start, dim - start)


cdef inline value largest_square(
    int64_t dim, const value *g, const value *w, value factor, Steps steps, bint plain
) noexcept nogil:
    """Return the largest of the squares of a row's gradients; NaN if one of them is."""
    cdef value largest = 0, gradient, square
    cdef int64_t c
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        square = gradient * gradient
        if square > largest or square != square:
            largest = square
    return largest


cdef inline void rowwise_adagrad_rows(
    int64_t count, int64_t dim, value *const *rows, value *const *sums, const value *gradients,
    value rate, value epsilon, bint takes_max, const Steps *steps, bint plain
) noexcept nogil:
    """Update up to BLOCK rows in three passes: a row waits for no other row's root or quotient.

    Nothing that was just written is read in wider pieces, which would wait for the writes before it,
    those of other rows too: `steps` are not copied, and steps and sums are taken number by number.
    """
    cdef value lanes[BLOCK * LANES]
    cdef value factors[BLOCK]
    cdef value seen[BLOCK]
    cdef value scales[BLOCK]
    cdef value factor, gradient, square
    cdef const value *g
    cdef value *w
    cdef int64_t row, c
    for row in range(count):
        g = gradients + row * dim
        factors[row] = 1 if plain else norm_factor(dim, g, steps[0])
        if plain:
            add_squares_of(lanes + row * LANES, g, dim)
        elif takes_max:
            seen[row] = largest_square(dim, g, rows[row], factors[row], steps[0], plain)
        else:
            seen[row] = sum_of_squares(dim, g, rows[row], factors[row], steps[0], plain)
    for row in range(count):
        square = total_of(lanes + row * LANES) if plain else seen[row]
        square = sums[row][0] + (square if takes_max else square / <value> dim)
        sums[row][0] = square
        scales[row] = quotient(rate, root(square) + epsilon)
    for row in range(count):
        g, w, factor = gradients + row * dim, rows[row], factors[row]
        for c in range(dim):
            gradient = gradient_at(g[c], w[c], factor, steps[0], plain)
            gradient = scales[row] * gradient
            w[c] = weight_of(weight_at(w[c], steps[0], plain) - gradient, steps[0], plain)


cdef void _rowwise_adagrad(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """a = a + mean or max of g * g; w = w - rate / (sqrt(a) + epsilon) * g; one a per row."""
    cdef Steps steps = steps_of(hyper)
    cdef value rate = <value> hyper[RATE], epsilon = <value> hyper[ADAGRAD_EPSILON]
    cdef bint takes_max = hyper[ADAGRAD_TAKES_MAX] != 0
    cdef int64_t first = 0, size
    while first < count:
        size = BLOCK if count - first > BLOCK else count - first
        if steps.configured or takes_max:
            rowwise_adagrad_rows(size, dim, rows + first, slots[0] + first, gradients + first * dim,
                                 rate, epsilon, takes_max, &steps, False)
        else:
            rowwise_adagrad_rows(size, dim, rows + first, slots[0] + first, gradients + first * dim,
                                 rate, epsilon, False, &steps, True)
        first += BLOCK


cdef enum:          # what the accumulator is raised to
    ANY_POWER, INVERSE, INVERSE_ROOT

cdef struct AdagradMomentum:        # the numbers of one batch
    double rate
    double momentum
    double exponent
    double beta2
    double share        # of the new square
    double epsilon


cdef inline void adagrad_momentum_row(
    int64_t dim, value *w, value *a, value *m, const value *g, AdagradMomentum batch, bint nesterov,
    int power_kind, Steps steps, bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value rate = <value> batch.rate, momentum = <value> batch.momentum
    cdef value beta2 = <value> batch.beta2, share = <value> batch.share
    cdef value epsilon = <value> batch.epsilon
    cdef value gradient, squares, base, scaled, moved
    cdef int64_t c
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        squares = beta2 * a[c] + share * (gradient * gradient)
        base = squares + epsilon
        if power_kind == INVERSE_ROOT:
            scaled = quotient(gradient, root(base))
        elif power_kind == INVERSE:
            scaled = quotient(gradient, base)
        else:
            scaled = gradient * <value> pow(base, -1 / batch.exponent) if base != 0 else 0
        a[c] = squares
        moved = momentum * m[c] + scaled
        m[c] = moved
        moved = momentum * moved + scaled if nesterov else moved
        w[c] = weight_of(weight_at(w[c], steps, plain) - rate * moved, steps, plain)


cdef void _adagrad_momentum(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """a = beta2 * a + (1 - beta2) * g * g, or a + g * g where beta2 is 1;
    s = g * (a + epsilon) ** (-1 / exponent); m = momentum * m + s;
    w = w - rate * (momentum * m + s if nesterov else m)."""
    cdef Steps steps = steps_of(hyper)
    cdef AdagradMomentum batch
    cdef bint nesterov = hyper[ADAGRAD_NESTEROV] != 0
    cdef value *w
    cdef value *a
    cdef value *m
    cdef const value *g
    cdef int64_t row
    batch.rate, batch.momentum = hyper[RATE], hyper[ADAGRAD_MOMENTUM]
    batch.exponent, batch.beta2 = hyper[ADAGRAD_EXPONENT], hyper[ADAGRAD_BETA2]
    batch.epsilon = hyper[ADAGRAD_OFFSET]
    batch.share = 1 - batch.beta2 if batch.beta2 != 1 else 1
    for row in range(count):
        w, a, m, g = rows[row], slots[0][row], slots[1][row], gradients + row * dim
        if batch.exponent == 1:
            adagrad_momentum_row(dim, w, a, m, g, batch, nesterov, INVERSE, steps, False)
        elif batch.exponent != 2:
            adagrad_momentum_row(dim, w, a, m, g, batch, nesterov, ANY_POWER, steps, False)
        elif steps.configured:
            adagrad_momentum_row(dim, w, a, m, g, batch, nesterov, INVERSE_ROOT, steps, False)
        else:
            adagrad_momentum_row(dim, w, a, m, g, batch, nesterov, INVERSE_ROOT, steps, True)


# --- FTRL -------------------------------------------------------------------------------------

cdef struct Ftrl:       # the numbers of one batch
    double exponent
    double rate
    double l1           # times the rate where the linear terms are
    double l2           # twice, and times the rate where the linear terms are
    double beta


cdef inline void ftrl_row(
    int64_t dim, value *w, value *a, value *l, const value *g, Ftrl batch, bint multiplied,
    bint rooted, Steps steps, bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value rate = <value> batch.rate, l1 = <value> batch.l1, l2 = <value> batch.l2
    cdef value beta = <value> batch.beta
    cdef value gradient, weight, squares, after, shift, linear, above, below, fresh
    cdef int64_t c
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        weight = weight_at(w[c], steps, plain)
        squares = a[c] + gradient * gradient
        if rooted:
            after = root(squares)
            shift = after - root(a[c])
        else:
            after = power(squares, batch.exponent)
            shift = after - power(a[c], batch.exponent)
        if multiplied:
            linear = l[c] + (rate * gradient - shift * weight)
            below = (after + l2) + beta
        else:
            linear = l[c] + (gradient - (shift * weight) / rate)
            below = (after + beta) / rate + l2
        above = bounded(linear, -l1, l1) - linear
        fresh = above / below
        weight = fresh if below != 0 else weight
        a[c] = squares
        l[c] = linear
        w[c] = weight_of(weight, steps, plain)


cdef inline void still_row(int64_t dim, value *w, Steps steps) noexcept nogil:
    """Do what is done around a formula that moves nothing."""
    cdef int64_t c
    for c in range(dim):
        w[c] = weight_of(weight_at(w[c], steps, False), steps, False)


cdef void _ftrl(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """b = a + g * g; s = b ** p - a ** p; a = b; then, not multiplied by the rate:
    l = l + (g - s * w / rate); w = (clamp(l, -l1, l1) - l) / ((b ** p + beta) / rate + 2 * l2);
    multiplied by it: l = l + (rate * g - s * w);
    w = (clamp(l, -rate * l1, rate * l1) - l) / ((b ** p + 2 * rate * l2) + beta).
    Where the divisor is 0, or would be divided by a rate of 0, w stays."""
    cdef Steps steps = steps_of(hyper)
    cdef Ftrl batch
    cdef bint multiplied = hyper[FTRL_MULTIPLIED] != 0
    cdef bint rooted = hyper[FTRL_EXPONENT] == 0.5
    cdef value *w
    cdef value *a
    cdef value *l
    cdef const value *g
    cdef int64_t row
    batch.rate = hyper[RATE]
    batch.exponent, batch.beta = hyper[FTRL_EXPONENT], hyper[FTRL_BETA]
    batch.l1 = batch.rate * hyper[FTRL_L1] if multiplied else hyper[FTRL_L1]
    batch.l2 = 2 * batch.rate * hyper[FTRL_L2] if multiplied else 2 * hyper[FTRL_L2]
    for row in range(count):
        w, a, l, g = rows[row], slots[0][row], slots[1][row], gradients + row * dim
        if batch.rate == 0 and not multiplied:
            still_row(dim, w, steps)
        elif not rooted:
            ftrl_row(dim, w, a, l, g, batch, multiplied, False, steps, False)
        elif multiplied:
            ftrl_row(dim, w, a, l, g, batch, True, True, steps, False)
        elif steps.configured:
            ftrl_row(dim, w, a, l, g, batch, False, True, steps, False)
        else:
            ftrl_row(dim, w, a, l, g, batch, False, True, steps, True)


# --- Adam and its kin -------------------------------------------------------------------------

cdef struct Moments:    # what those numbers become for one batch
    double share_1      # 1 - beta_1
    double share_2
    double inner        # added under the root
    double outer        # added to the root
    double first        # what the rate is divided by
    double second       # what the second moment is multiplied by


cdef inline Moments moments_of(const double *hyper, int64_t step) noexcept nogil:
    cdef Moments moments
    moments.share_1, moments.share_2 = 1 - hyper[BETA_1], 1 - hyper[BETA_2]
    moments.inner = hyper[EPSILON] * hyper[EPSILON] if hyper[INSIDE] != 0 else 0
    moments.outer = 0 if hyper[INSIDE] != 0 else hyper[EPSILON]
    moments.first, moments.second = 1, 1
    if hyper[CORRECTION] == BY_STEP:
        moments.first = 1 - pow(hyper[BETA_1], <double> step)
        moments.second = 1 / (1 - pow(hyper[BETA_2], <double> step))
    return moments


cdef inline value first_of(
    value *const *powers, int64_t row, value beta, double corrected
) noexcept nogil:
    """Return the divisor of the first moment: by the step, or by the row's own power of beta."""
    if powers == NULL:
        return <value> corrected
    powers[row][0] = beta * powers[row][0]
    return 1 - powers[row][0]


cdef inline value second_of(
    value *const *powers, int64_t row, value beta, double corrected
) noexcept nogil:
    """Return the factor of the second moment."""
    cdef value one = 1, rest
    if powers == NULL:
        return <value> corrected
    powers[row][0] = beta * powers[row][0]
    rest = one - powers[row][0]     # rounded: to Cython a 1 is of 64 bits, and so is what it is in
    return one / rest


cdef inline void adam_row(
    int64_t dim, value *w, value *m, value *v, const value *g, value rate, value beta_1,
    value beta_2, value second, Moments moments, Steps steps, bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value share_1 = <value> moments.share_1, share_2 = <value> moments.share_2
    cdef value inner = <value> moments.inner, outer = <value> moments.outer
    cdef value gradient, below
    cdef int64_t c
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        m[c] = beta_1 * m[c] + share_1 * gradient
        v[c] = beta_2 * v[c] + share_2 * (gradient * gradient)
        below = root(v[c] * second + inner) + outer
        w[c] = weight_of(weight_at(w[c], steps, plain) - quotient(rate * m[c], below), steps, plain)


cdef void _adam(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """m = beta_1 * m + (1 - beta_1) * g; v = beta_2 * v + (1 - beta_2) * g * g;
    w = w - rate / c1 * m / (sqrt(v / c2 + epsilon ** 2), or sqrt(v / c2) + epsilon)."""
    cdef Steps steps = steps_of(hyper)
    cdef Moments moments = moments_of(hyper, step)
    cdef value beta_1 = <value> hyper[BETA_1], beta_2 = <value> hyper[BETA_2]
    cdef value *const *powers_1 = slots[2] if hyper[CORRECTION] == BY_ROW else NULL
    cdef value *const *powers_2 = slots[3] if hyper[CORRECTION] == BY_ROW else NULL
    cdef value rate, second
    cdef int64_t row
    for row in range(count):
        rate = <value> hyper[RATE] / first_of(powers_1, row, beta_1, moments.first)
        second = second_of(powers_2, row, beta_2, moments.second)
        if steps.configured:
            adam_row(dim, rows[row], slots[0][row], slots[1][row], gradients + row * dim, rate,
                     beta_1, beta_2, second, moments, steps, False)
        else:
            adam_row(dim, rows[row], slots[0][row], slots[1][row], gradients + row * dim, rate,
                     beta_1, beta_2, second, moments, steps, True)


cdef inline void rowwise_adam_row(
    int64_t dim, value *w, value *m, value *v, const value *g, value rate, value beta_1,
    value beta_2, value second, Moments moments, Steps steps, bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value share_1 = <value> moments.share_1, share_2 = <value> moments.share_2
    cdef value gradient, below, seen
    cdef int64_t c
    seen = sum_of_squares(dim, g, w, factor, steps, plain) / <value> dim
    v[0] = beta_2 * v[0] + share_2 * seen
    below = root(v[0] * second + <value> moments.inner) + <value> moments.outer
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        m[c] = beta_1 * m[c] + share_1 * gradient
        w[c] = weight_of(weight_at(w[c], steps, plain) - quotient(rate * m[c], below), steps, plain)


cdef void _rowwise_adam(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """Adam with one v per row, of the mean of g * g."""
    cdef Steps steps = steps_of(hyper)
    cdef Moments moments = moments_of(hyper, step)
    cdef value beta_1 = <value> hyper[BETA_1], beta_2 = <value> hyper[BETA_2]
    cdef value *const *powers_1 = slots[2] if hyper[CORRECTION] == BY_ROW else NULL
    cdef value *const *powers_2 = slots[3] if hyper[CORRECTION] == BY_ROW else NULL
    cdef value rate, second
    cdef int64_t row
    for row in range(count):
        rate = <value> hyper[RATE] / first_of(powers_1, row, beta_1, moments.first)
        second = second_of(powers_2, row, beta_2, moments.second)
        if steps.configured:
            rowwise_adam_row(dim, rows[row], slots[0][row], slots[1][row], gradients + row * dim,
                             rate, beta_1, beta_2, second, moments, steps, False)
        else:
            rowwise_adam_row(dim, rows[row], slots[0][row], slots[1][row], gradients + row * dim,
                             rate, beta_1, beta_2, second, moments, steps, True)


cdef inline value trust_ratio(value weights, value steps) noexcept nogil:
    """Return the ratio of two norms, and 1 where one of them is 0."""
    return weights / steps if weights > 0 and steps > 0 else 1


cdef inline value lamb_step(
    value m, value v, value w, value first, value second, value decay, value inner, value outer
) noexcept nogil:
    """Return the direction of LAMB: Adam's, and the decay of the weight."""
    return quotient(m / first, root(v * second + inner) + outer) + decay * w


cdef inline void lamb_row(
    int64_t dim, value *w, value *m, value *v, const value *g, value rate, value beta_1,
    value beta_2, value first, value second, Moments moments, Steps steps, bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value share_1 = <value> moments.share_1, share_2 = <value> moments.share_2
    cdef value inner = <value> moments.inner, outer = <value> moments.outer
    cdef value decay = <value> (steps.decay if steps.configured & DECAYS_IN_FORMULA else 0)
    cdef value of_weights[LANES]
    cdef value of_steps[LANES]
    cdef value weights[CHUNK]
    cdef value moved[CHUNK]
    cdef value gradient, mean, square, weight
    cdef int64_t start = 0, size, c
    clear(of_weights)
    clear(of_steps)
    while start < dim:
        size = chunk_at(start, dim)
        for c in range(size):
            gradient = gradient_at(g[start + c], w[start + c], factor, steps, plain)
            mean = beta_1 * m[start + c] + share_1 * gradient
            square = beta_2 * v[start + c] + share_2 * (gradient * gradient)
            weight = weight_at(w[start + c], steps, plain)
            m[start + c] = mean
            v[start + c] = square
            weights[c] = weight
            moved[c] = lamb_step(mean, square, weight, first, second, decay, inner, outer)
        add_squares(of_weights, weights, size)
        add_squares(of_steps, moved, size)
        start += CHUNK
    rate = rate * trust_ratio(root(total_of(of_weights)), root(total_of(of_steps)))
    for c in range(dim):
        weight = weight_at(w[c], steps, plain)
        gradient = lamb_step(m[c], v[c], weight, first, second, decay, inner, outer)
        w[c] = weight_of(weight - rate * gradient, steps, plain)


cdef void _lamb(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """m and v as Adam's; r = (m / c1) / (sqrt(v / c2) + epsilon) + decay * w;
    w = w - rate * |w| / |r| * r, norms of a row."""
    cdef Steps steps = steps_of(hyper)
    cdef Moments moments = moments_of(hyper, step)
    cdef value rate = <value> hyper[RATE]
    cdef value beta_1 = <value> hyper[BETA_1], beta_2 = <value> hyper[BETA_2]
    cdef value *const *powers_1 = slots[2] if hyper[CORRECTION] == BY_ROW else NULL
    cdef value *const *powers_2 = slots[3] if hyper[CORRECTION] == BY_ROW else NULL
    cdef value first, second
    cdef int64_t row
    for row in range(count):
        first = first_of(powers_1, row, beta_1, moments.first)
        second = second_of(powers_2, row, beta_2, moments.second)
        if steps.configured:
            lamb_row(dim, rows[row], slots[0][row], slots[1][row], gradients + row * dim, rate,
                     beta_1, beta_2, first, second, moments, steps, False)
        else:
            lamb_row(dim, rows[row], slots[0][row], slots[1][row], gradients + row * dim, rate,
                     beta_1, beta_2, first, second, moments, steps, True)


# --- LARS, RMSProp ----------------------------------------------------------------------------

cdef void _lars(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """local = rate * (trust * |w|) / ((|g| + decay * |w|) + epsilon), norms of a row;
    m = momentum * m + local * (g + decay * w); w = w - m."""
    cdef Steps steps = steps_of(hyper)
    cdef value momentum = <value> hyper[LARS_MOMENTUM], trust = <value> hyper[LARS_TRUST]
    cdef value epsilon = <value> hyper[LARS_EPSILON]
    cdef value decay = <value> (steps.decay if steps.configured & DECAYS_IN_FORMULA else 0)
    cdef bint plain = steps.configured == 0
    cdef value of_weights[LANES]
    cdef value weights[CHUNK]
    cdef value factor, gradient, of_gradients, local, weight, norm
    cdef const value *g
    cdef value *w
    cdef value *m
    cdef int64_t row, start, size, c
    for row in range(count):
        w, m, g = rows[row], slots[0][row], gradients + row * dim
        factor = norm_factor(dim, g, steps)
        clear(of_weights)
        start = 0
        while start < dim:
            size = chunk_at(start, dim)
            for c in range(size):
                weights[c] = weight_at(w[start + c], steps, plain)
            add_squares(of_weights, weights, size)
            start += CHUNK
        norm = root(total_of(of_weights))
        of_gradients = root(sum_of_squares(dim, g, w, factor, steps, plain))
        local = <value> hyper[RATE] * trust_ratio(trust * norm,
                                                  (of_gradients + decay * norm) + epsilon)
        for c in range(dim):
            gradient = gradient_at(g[c], w[c], factor, steps, plain)
            weight = weight_at(w[c], steps, plain)
            m[c] = momentum * m[c] + local * (gradient + decay * weight)
            w[c] = weight_of(weight - m[c], steps, plain)


cdef inline void rmsprop_row(
    int64_t dim, value *w, value *v, value *m, const value *g, value rate, value rho, value share,
    value momentum, value inner, value outer, bint remembers, Steps steps, bint plain
) noexcept nogil:
    cdef value factor = 1 if plain else norm_factor(dim, g, steps)
    cdef value gradient, squares, moved
    cdef int64_t c
    for c in range(dim):
        gradient = gradient_at(g[c], w[c], factor, steps, plain)
        squares = rho * v[c] + share * (gradient * gradient)
        moved = quotient(gradient, root(squares + inner) + outer)
        v[c] = squares
        if remembers:
            moved = momentum * m[c] + moved
            m[c] = moved
        w[c] = weight_of(weight_at(w[c], steps, plain) - rate * moved, steps, plain)


cdef void _rmsprop(
    int64_t count, int64_t dim, value *const *rows, value *const *const *slots,
    const value *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    """v = rho * v + (1 - rho) * g * g; s = g / (sqrt(v) + epsilon), or epsilon ** 2 under the root;
    without momentum w = w - rate * s, else m = momentum * m + s; w = w - rate * m."""
    cdef Steps steps = steps_of(hyper)
    cdef value rate = <value> hyper[RATE], rho = <value> hyper[RMS_RHO]
    cdef value share = <value> (1 - hyper[RMS_RHO]), momentum = <value> hyper[RMS_MOMENTUM]
    cdef double epsilon = hyper[RMS_EPSILON]
    cdef value inner = <value> (epsilon * epsilon if hyper[RMS_INSIDE] != 0 else 0)
    cdef value outer = <value> (0 if hyper[RMS_INSIDE] != 0 else epsilon)
    cdef const value *g
    cdef int64_t row
    for row in range(count):
        g = gradients + row * dim
        if hyper[RMS_MOMENTUM] != 0:
            rmsprop_row(dim, rows[row], slots[0][row], slots[1][row], g, rate, rho, share, momentum,
                        inner, outer, True, steps, False)
        elif steps.configured:
            rmsprop_row(dim, rows[row], slots[0][row], NULL, g, rate, rho, share, momentum, inner,
                        outer, False, steps, False)
        else:
            rmsprop_row(dim, rows[row], slots[0][row], NULL, g, rate, rho, share, momentum, inner,
                        outer, False, steps, True)


cdef dict _capsules(shardcore_update_float32 of_float32, shardcore_update_float64 of_float64):
    """Return the capsules of one formula by the name of the working dtype."""
    return {
        "float32": PyCapsule_New(<void *> of_float32, SHARDCORE_UPDATE_FLOAT32, NULL),
        "float64": PyCapsule_New(<void *> of_float64, SHARDCORE_UPDATE_FLOAT64, NULL),
    }


sgd = _capsules(_sgd[float], _sgd[double])
momentum_sgd = _capsules(_momentum_sgd[float], _momentum_sgd[double])
adagrad = _capsules(_adagrad[float], _adagrad[double])
rowwise_adagrad = _capsules(_rowwise_adagrad[float], _rowwise_adagrad[double])
adagrad_momentum = _capsules(_adagrad_momentum[float], _adagrad_momentum[double])
ftrl = _capsules(_ftrl[float], _ftrl[double])
adam = _capsules(_adam[float], _adam[double])
rowwise_adam = _capsules(_rowwise_adam[float], _rowwise_adam[double])
lamb = _capsules(_lamb[float], _lamb[double])
lars = _capsules(_lars[float], _lars[double])
rmsprop = _capsules(_rmsprop[float], _rmsprop[double])
