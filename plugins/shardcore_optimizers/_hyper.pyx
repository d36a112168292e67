"""What the compiled and the pure forms must agree on, out of _hyper.pxd, for Python.

::

    COMMON_HYPER   the names of the first places of hyper, which all formulas read
    OWN_HYPER      formula -> the names of the places after those
    BITS           what is done around a formula -> its bit in hyper["configured"]
    CORRECTIONS    the names of the numbers in hyper["correction"]
    PARTIAL_SUMS   lanes that a row's squares are added in
"""

cdef tuple _in_order(dict numbers, int first):
    """Return the names of numbers that follow each other, beginning with `first`."""
    names = sorted(numbers, key=numbers.get)
    assert [numbers[name] for name in names] == list(range(first, first + len(names)))
    return tuple(names)


CORRECTIONS = _in_order({"none": UNCORRECTED, "global": BY_STEP, "row": BY_ROW}, 0)

COMMON_HYPER = _in_order({
    "learning_rate": RATE, "clip_gradient_min": CLIP_LOW, "clip_gradient_max": CLIP_HIGH,
    "largest_norm": NORM, "decay": DECAY, "weight_min": WEIGHT_LOW, "weight_max": WEIGHT_HIGH,
    "configured": STEPS,
}, 0)

OWN_HYPER = {
    "sgd": _in_order({"momentum": SGD_MOMENTUM, "nesterov": SGD_NESTEROV}, OWN),
    "adagrad": _in_order({"epsilon": ADAGRAD_EPSILON}, OWN),
    "rowwise_adagrad": _in_order(
        {"epsilon": ADAGRAD_EPSILON, "takes_max": ADAGRAD_TAKES_MAX}, OWN),
    "adagrad_momentum": _in_order({
        "momentum": ADAGRAD_MOMENTUM, "use_nesterov": ADAGRAD_NESTEROV,
        "exponent": ADAGRAD_EXPONENT, "beta2": ADAGRAD_BETA2, "epsilon": ADAGRAD_OFFSET,
    }, OWN),
    "ftrl": _in_order({
        "exponent": FTRL_EXPONENT, "l1_regularization_strength": FTRL_L1,
        "l2_regularization_strength": FTRL_L2, "beta": FTRL_BETA,
        "multiply_linear_by_learning_rate": FTRL_MULTIPLIED,
    }, OWN),
    "moments": _in_order({
        "beta_1": BETA_1, "beta_2": BETA_2, "epsilon": EPSILON, "sum_inside_sqrt": INSIDE,
        "correction": CORRECTION,
    }, OWN),
    "lars": _in_order({
        "momentum": LARS_MOMENTUM, "trust_coefficient": LARS_TRUST, "epsilon": LARS_EPSILON,
    }, OWN),
    "rmsprop": _in_order({
        "rho": RMS_RHO, "momentum": RMS_MOMENTUM, "epsilon": RMS_EPSILON,
        "sum_inside_sqrt": RMS_INSIDE,
    }, OWN),
}

BITS = {
    "clips": CLIPS,
    "clips_norm": CLIPS_NORM,
    "decays": DECAYS,
    "decays_gradient": DECAYS_GRADIENT,
    "clamps": CLAMPS,
    "decay_times_rate": DECAY_TIMES_RATE,
    "decays_in_formula": DECAYS_IN_FORMULA,
}

PARTIAL_SUMS = LANES
