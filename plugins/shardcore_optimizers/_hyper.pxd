"""What the compiled and the pure forms must agree on; `_hyper` hands it to Python."""

cdef enum:
    LANES = 8       # partial sums of a row's squares

cdef enum:         # bits of hyper[STEPS]: what is done around a formula
    CLIPS = 1
    CLIPS_NORM = 2
    DECAYS = 4
    DECAYS_GRADIENT = 8
    CLAMPS = 16
    DECAY_TIMES_RATE = 32
    DECAYS_IN_FORMULA = 64

cdef enum:          # places of hyper: those of all formulas, then each formula's own
    RATE, CLIP_LOW, CLIP_HIGH, NORM, DECAY, WEIGHT_LOW, WEIGHT_HIGH, STEPS, OWN

cdef enum:
    SGD_MOMENTUM = OWN, SGD_NESTEROV

cdef enum:
    ADAGRAD_EPSILON = OWN, ADAGRAD_TAKES_MAX

cdef enum:
    ADAGRAD_MOMENTUM = OWN, ADAGRAD_NESTEROV, ADAGRAD_EXPONENT, ADAGRAD_BETA2, ADAGRAD_OFFSET

cdef enum:
    FTRL_EXPONENT = OWN, FTRL_L1, FTRL_L2, FTRL_BETA, FTRL_MULTIPLIED

cdef enum:
    BETA_1 = OWN, BETA_2, EPSILON, INSIDE, CORRECTION

cdef enum:          # hyper[CORRECTION]
    UNCORRECTED, BY_STEP, BY_ROW

cdef enum:
    LARS_MOMENTUM = OWN, LARS_TRUST, LARS_EPSILON

cdef enum:
    RMS_RHO = OWN, RMS_MOMENTUM, RMS_EPSILON, RMS_INSIDE
