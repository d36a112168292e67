"""The first-party optimizers once more, written from their sources: one weight after the other.

Python floats, loops and ``math``: no array and no line of the plugin is used here, and parameters
are read by the names they are given by, so that an oracle can be wrong only in its own way. Each
formula names its source, with the variants that the source has or the plugin's docstring promises.

[AG]    Duchi, Hazan, Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
        Optimization", JMLR 12 (2011), figure 1.
[MO]    Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in deep
        learning", ICML 2013, equations 1 to 4; in PyTorch's form, documentation of torch.optim.SGD.
[FTRL]  McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1.
[ADAM]  Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.
[ADAMW] Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2.
[RMS]   Tieleman, Hinton, "Neural Networks for Machine Learning", lecture 6.5, 2012; documentation
        of torch.optim.RMSprop, of tf.keras.optimizers.RMSprop for names and defaults.
[LARS]  You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017, equation 6
        and algorithm 1; epsilon as in NVIDIA's apex.parallel.LARC.
[LAMB]  You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR
        2020, algorithm 2; defaults of TensorFlow Addons.
[TF]    tf.tpu.experimental.embedding: documentation of SGD, Adagrad, AdagradMomentum, FTRL, Adam.
[FB]    FBGEMM: the update rules of fbgemm_gpu's optimizers, the defaults of
        SplitTableBatchedEmbeddingBagsCodegen.
[SC]    jax-tpu-embedding: the defaults of its optimizer specs for SparseCore.
"""

from __future__ import annotations

import math

# --- defaults, number by number -------------------------------------------------------------------

COMMON = {
    "use_gradient_accumulation": True,
    "clip_weight_min": None,
    "clip_weight_max": None,
    "weight_decay_factor": None,
    "multiply_weight_decay_factor_by_learning_rate": None,
    "clipvalue": None,
    "clip_norm": None,
    "decoupled_weight_decay": True,
    "slot_initial_values": None,
}
BETAS = {"beta_1": 0.9, "beta_2": 0.999, "lazy_adam": True}
UNCORRECTED = {"sum_inside_sqrt": True, "bias_correction": "none"}
CORRECTED = {"sum_inside_sqrt": False, "bias_correction": "global"}
OF_FTRL = {
    "learning_rate_power": -0.5,
    "l1_regularization_strength": 0.0,
    "l2_regularization_strength": 0.0,
    "beta": 0.0,
    "initial_accumulator_value": 0.1,
    "multiply_linear_by_learning_rate": False,
    "allow_zero_accumulator": False,
}
OF_MOMENTUM = {"use_nesterov": False, "exponent": 2.0, "beta2": 1.0, "epsilon": 1e-10}
OF_LARS = {"momentum": 0.9, "trust_coefficient": 0.001, "epsilon": 0.0}
IN_FORMULA = {"decoupled_weight_decay": False}

DEFAULTS = {
    # [TF] 0.01; [FB] 0.01; [SC] 0.001
    "SGD": {
        "tf": {"learning_rate": 0.01, "momentum": 0.0, "nesterov": False},
        "fbgemm": {"learning_rate": 0.01, "momentum": 0.0, "nesterov": False},
        "tpu": {"learning_rate": 0.001, "momentum": 0.0, "nesterov": False},
        "torch": {"learning_rate": 0.001, "momentum": 0.0, "nesterov": False},
    },
    # [TF] without epsilon; [FB] EXACT_ADAGRAD; [SC]
    "Adagrad": {
        "tf": {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 0.0},
        "fbgemm": {"learning_rate": 0.01, "initial_accumulator_value": 0.0, "epsilon": 1e-8},
        "tpu": {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 0.0},
        "torch": {"learning_rate": 0.01, "initial_accumulator_value": 0.0, "epsilon": 1e-10},
    },
    # [FB] EXACT_ROWWISE_ADAGRAD; no other library has it: the numbers of Adagrad
    "RowwiseAdagrad": {
        "tf": {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 0.0},
        "fbgemm": {"learning_rate": 0.01, "initial_accumulator_value": 0.0, "epsilon": 1e-8},
        "tpu": {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 0.0},
        "torch": {"learning_rate": 0.01, "initial_accumulator_value": 0.0, "epsilon": 1e-10},
    },
    # [TF]; [SC]; [FB] has none: its rate and momentum
    "AdagradMomentum": {
        preset: {**OF_MOMENTUM, **numbers}
        for preset, numbers in {
            "tf": {"learning_rate": 0.001, "momentum": 0.0, "initial_accumulator_value": 0.0},
            "fbgemm": {"learning_rate": 0.01, "momentum": 0.9, "initial_accumulator_value": 0.0},
            "tpu": {"learning_rate": 0.001, "momentum": 0.9, "initial_accumulator_value": 0.1},
            "torch": {"learning_rate": 0.001, "momentum": 0.0, "initial_accumulator_value": 0.0},
        }.items()
    },
    # [TF]; [SC] 0.01; [FB] has none: its rate
    "FTRL": {
        "tf": {**OF_FTRL, "learning_rate": 0.001},
        "fbgemm": {**OF_FTRL, "learning_rate": 0.01},
        "tpu": {**OF_FTRL, "learning_rate": 0.01},
        "torch": {**OF_FTRL, "learning_rate": 0.001},
    },
    # [TF] epsilon under the root, no correction; [FB] ADAM; [SC]
    "Adam": {
        "tf": {**BETAS, **UNCORRECTED, "learning_rate": 0.001, "epsilon": 1e-7},
        "fbgemm": {**BETAS, **CORRECTED, "learning_rate": 0.01, "epsilon": 1e-8},
        "tpu": {**BETAS, **CORRECTED, "learning_rate": 0.001, "epsilon": 1e-8},
        "torch": {**BETAS, **CORRECTED, "learning_rate": 0.001, "epsilon": 1e-8},
    },
    # [ADAMW] in the numbers of the library's Adam; decay as in torch.optim.AdamW
    "AdamW": {
        preset: {
            **BETAS,
            **CORRECTED,
            **numbers,
            "weight_decay_factor": 0.01,
            "multiply_weight_decay_factor_by_learning_rate": True,
        }
        for preset, numbers in {
            "tf": {"learning_rate": 0.001, "epsilon": 1e-7},
            "fbgemm": {"learning_rate": 0.01, "epsilon": 1e-8},
            "tpu": {"learning_rate": 0.001, "epsilon": 1e-8},
            "torch": {"learning_rate": 0.001, "epsilon": 1e-8},
        }.items()
    },
    # [FB] PARTIAL_ROWWISE_ADAM; else the numbers of Adam
    "RowwiseAdam": {
        "tf": {**BETAS, **UNCORRECTED, "learning_rate": 0.001, "epsilon": 1e-7},
        "fbgemm": {**BETAS, **CORRECTED, "learning_rate": 0.01, "epsilon": 1e-8},
        "tpu": {**BETAS, **CORRECTED, "learning_rate": 0.001, "epsilon": 1e-8},
        "torch": {**BETAS, **CORRECTED, "learning_rate": 0.001, "epsilon": 1e-8},
    },
    # [RMS] Keras's numbers; [FB] has none: its rate and epsilon
    "RMSProp": {
        preset: {"rho": 0.9, **numbers, "momentum": 0.0, "sum_inside_sqrt": False}
        for preset, numbers in {
            "tf": {"learning_rate": 0.001, "epsilon": 1e-7},
            "fbgemm": {"learning_rate": 0.01, "epsilon": 1e-8},
            "tpu": {"learning_rate": 0.001, "epsilon": 1e-7},
            "torch": {"learning_rate": 0.01, "rho": 0.99, "epsilon": 1e-8},
        }.items()
    },
    # [LAMB] the numbers of TensorFlow Addons; [FB] LAMB
    "LAMB": {
        "tf": {**BETAS, **CORRECTED, **IN_FORMULA, "learning_rate": 0.001, "epsilon": 1e-6},
        "fbgemm": {**BETAS, **CORRECTED, **IN_FORMULA, "learning_rate": 0.01, "epsilon": 1e-8},
        "tpu": {**BETAS, **CORRECTED, **IN_FORMULA, "learning_rate": 0.001, "epsilon": 1e-6},
        "torch": {**BETAS, **CORRECTED, **IN_FORMULA, "learning_rate": 0.001, "epsilon": 1e-6},
    },
    # [FB] LARS_SGD, for all
    "LARS": {
        "tf": {**OF_LARS, **IN_FORMULA, "learning_rate": 0.01},
        "fbgemm": {**OF_LARS, **IN_FORMULA, "learning_rate": 0.01},
        "tpu": {**OF_LARS, **IN_FORMULA, "learning_rate": 0.01},
        "torch": {**OF_LARS, **IN_FORMULA, "learning_rate": 0.01},
    },
}


def parameters_of(name, preset, arguments):
    """Return all parameters of an optimizer that is given these arguments."""
    return {**COMMON, "reduce": "mean", **DEFAULTS[name][preset], **arguments}


# --- formulas ------------------------------------------------------------------------------------
# Of one row: p parameters, rate the learning rate, t the batch's number, decay what the formula
# itself decays the weights by, w weights and s slots, both changed in place, g the gradients.


def sgd(p, rate, t, decay, w, g, s):
    """[MO] v = mu v + g; w -= rate v, or with Nesterov's look ahead w -= rate (g + mu v)."""
    for c in range(len(w)):
        if p["momentum"] == 0:
            w[c] -= rate * g[c]
            continue
        velocity = p["momentum"] * s["momenta"][c] + g[c]
        s["momenta"][c] = velocity
        if p["nesterov"]:
            w[c] -= rate * (g[c] + p["momentum"] * velocity)
        else:
            w[c] -= rate * velocity


def adagrad(p, rate, t, decay, w, g, s):
    """[AG], diagonal, delta beside the root: G += g^2; w -= rate g / (sqrt(G) + epsilon)."""
    for c in range(len(w)):
        s["accumulators"][c] += g[c] ** 2
        w[c] -= rate * g[c] / (math.sqrt(s["accumulators"][c]) + p["epsilon"])


def rowwise_adagrad(p, rate, t, decay, w, g, s):
    """[FB] EXACT_ROWWISE_ADAGRAD: G of the row += mean of g^2; the largest as in Monolith."""
    squares = [x**2 for x in g]
    seen = max(squares) if p["reduce"] == "max" else math.fsum(squares) / len(squares)
    s["accumulators"][0] += seen
    multiplier = rate / (math.sqrt(s["accumulators"][0]) + p["epsilon"])
    for c in range(len(w)):
        w[c] -= multiplier * g[c]


def adagrad_momentum(p, rate, t, decay, w, g, s):
    """[TF] AdagradMomentum: a gradient over any root of the accumulator, through a momentum."""
    for c in range(len(w)):
        if p["beta2"] == 1:
            accumulator = s["accumulators"][c] + g[c] ** 2
        else:
            accumulator = p["beta2"] * s["accumulators"][c] + (1 - p["beta2"]) * g[c] ** 2
        scaled = g[c] / math.pow(accumulator + p["epsilon"], 1 / p["exponent"])
        momentum = p["momentum"] * s["momenta"][c] + scaled
        s["accumulators"][c], s["momenta"][c] = accumulator, momentum
        if p["use_nesterov"]:
            w[c] -= rate * (p["momentum"] * momentum + scaled)
        else:
            w[c] -= rate * momentum


def ftrl(p, rate, t, decay, w, g, s):
    """[FTRL] per coordinate; [TF] any power for the root, 2 l2 for lambda_2, z times the rate.

    sigma = ((n + g^2)^p - n^p) / rate; z += g - sigma w; n += g^2; w = 0 where |z| <= lambda_1,
    else -(z - sign(z) lambda_1) / ((beta + n^p) / rate + lambda_2).
    """
    power, l1 = -p["learning_rate_power"], p["l1_regularization_strength"]
    for c in range(len(w)):
        before, z = s["accumulators"][c], s["linears"][c]
        n = before + g[c] ** 2
        difference = math.pow(n, power) - math.pow(before, power)
        if p["multiply_linear_by_learning_rate"]:  # rate z in the place of z
            z += rate * g[c] - difference * w[c]
            threshold = rate * l1
            below = p["beta"] + math.pow(n, power) + rate * 2 * p["l2_regularization_strength"]
        else:
            z += g[c] - difference / rate * w[c]
            threshold = l1
            below = (p["beta"] + math.pow(n, power)) / rate + 2 * p["l2_regularization_strength"]
        s["accumulators"][c], s["linears"][c] = n, z
        w[c] = 0.0 if abs(z) <= threshold else -(z - math.copysign(threshold, z)) / below


def corrections(p, t, s):
    """[ADAM] 1 - beta^t of both moments; of the row's own t, or none [TF]."""
    if p["bias_correction"] == "none":
        return 1.0, 1.0
    if p["bias_correction"] == "row":
        s["beta_1_powers"][0] *= p["beta_1"]
        s["beta_2_powers"][0] *= p["beta_2"]
        return 1 - s["beta_1_powers"][0], 1 - s["beta_2_powers"][0]
    return 1 - p["beta_1"] ** t, 1 - p["beta_2"] ** t


def divisor(p, v):
    """[ADAM] sqrt(v) + epsilon; [TF] sqrt(v + epsilon^2)."""
    if p["sum_inside_sqrt"]:
        return math.sqrt(v + p["epsilon"] ** 2)
    return math.sqrt(v) + p["epsilon"]


def moments(p, g, c, s):
    """[ADAM] m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2."""
    s["momenta"][c] = p["beta_1"] * s["momenta"][c] + (1 - p["beta_1"]) * g[c]
    s["velocities"][c] = p["beta_2"] * s["velocities"][c] + (1 - p["beta_2"]) * g[c] ** 2
    return s["momenta"][c], s["velocities"][c]


def adam(p, rate, t, decay, w, g, s):
    """[ADAM] w -= rate m^ / (sqrt(v^) + epsilon)."""
    first, second = corrections(p, t, s)
    for c in range(len(w)):
        m, v = moments(p, g, c, s)
        w[c] -= rate * (m / first) / divisor(p, v / second)


def rowwise_adam(p, rate, t, decay, w, g, s):
    """[FB] PARTIAL_ROWWISE_ADAM: v of the row, of the mean of g^2."""
    first, second = corrections(p, t, s)
    mean = math.fsum(x**2 for x in g) / len(g)
    v = s["velocities"][0] = p["beta_2"] * s["velocities"][0] + (1 - p["beta_2"]) * mean
    for c in range(len(w)):
        m = s["momenta"][c] = p["beta_1"] * s["momenta"][c] + (1 - p["beta_1"]) * g[c]
        w[c] -= rate * (m / first) / divisor(p, v / second)


def norm(x):
    return math.sqrt(math.fsum(one**2 for one in x))


def ratio(x, y):
    """Return x / y; 1 where one of them is 0, as LAMB's and LARS's implementations have it."""
    return x / y if x > 0 and y > 0 else 1.0


def lamb(p, rate, t, decay, w, g, s):
    """[LAMB] r = m^ / (sqrt(v^) + epsilon); w -= rate |w| / |r + decay w| (r + decay w)."""
    first, second = corrections(p, t, s)
    r = []
    for c in range(len(w)):
        m, v = moments(p, g, c, s)
        r.append(m / first / divisor(p, v / second) + decay * w[c])
    trust = ratio(norm(w), norm(r))
    for c in range(len(w)):
        w[c] -= rate * trust * r[c]


def lars(p, rate, t, decay, w, g, s):
    """[LARS] local = eta |w| / (|g| + decay |w| + epsilon); v = mu v + rate local (g + decay w)."""
    above = p["trust_coefficient"] * norm(w)
    local = ratio(above, norm(g) + decay * norm(w) + p["epsilon"])
    for c in range(len(w)):
        s["momenta"][c] = p["momentum"] * s["momenta"][c] + rate * local * (g[c] + decay * w[c])
        w[c] -= s["momenta"][c]


def rmsprop(p, rate, t, decay, w, g, s):
    """[RMS] v = rho v + (1 - rho) g^2; b = mu b + g / (sqrt(v) + epsilon); w -= rate b."""
    for c in range(len(w)):
        v = s["velocities"][c] = p["rho"] * s["velocities"][c] + (1 - p["rho"]) * g[c] ** 2
        moved = g[c] / divisor(p, v)
        if p["momentum"] > 0:
            moved = s["momenta"][c] = p["momentum"] * s["momenta"][c] + moved
        w[c] -= rate * moved


FORMULAS = {
    "SGD": sgd,
    "Adagrad": adagrad,
    "RowwiseAdagrad": rowwise_adagrad,
    "AdagradMomentum": adagrad_momentum,
    "FTRL": ftrl,
    "Adam": adam,
    "AdamW": adam,
    "RowwiseAdam": rowwise_adam,
    "LAMB": lamb,
    "LARS": lars,
    "RMSProp": rmsprop,
}


# --- what is around a formula --------------------------------------------------------------------


def slots_of(name, p):
    """Return {slot: (per weight, first value)}."""
    accumulators = p.get("initial_accumulator_value")
    slots = {
        "SGD": {"momenta": (True, 0.0)} if p.get("momentum") else {},
        "Adagrad": {"accumulators": (True, accumulators)},
        "RowwiseAdagrad": {"accumulators": (False, accumulators)},
        "AdagradMomentum": {"accumulators": (True, accumulators), "momenta": (True, 0.0)},
        "FTRL": {"accumulators": (True, accumulators), "linears": (True, 0.0)},
        "LARS": {"momenta": (True, 0.0)},
        "RMSProp": {"velocities": (True, 0.0)}
        | ({"momenta": (True, 0.0)} if p.get("momentum") else {}),
    }.get(name, {"momenta": (True, 0.0), "velocities": (name != "RowwiseAdam", 0.0)})
    if p.get("bias_correction") == "row":
        slots |= {"beta_1_powers": (False, 1.0), "beta_2_powers": (False, 1.0)}
    for slot, value in (p["slot_initial_values"] or {}).items():
        slots[slot] = (slots[slot][0], value)
    return slots


def stepped(p, formula, formula_decays, rate, t, w, g, s):
    """Return a row after one update; its slots are changed in place.

    [TF]: the summed gradient is clipped, the weights decay (decoupled, [ADAMW]), the formula moves
    them, they are clamped. Beside it: the clipped gradient is scaled down to a norm; coupled decay
    is added to the gradient, as by torch.optim's ``weight_decay``, or is the formula's own.
    """
    bounds = p["clipvalue"]
    low, high = bounds if isinstance(bounds, tuple) else (bounds and -bounds, bounds)
    g = [x if low is None else max(x, low) for x in g]
    g = [x if high is None else min(x, high) for x in g]
    if p["clip_norm"] is not None and norm(g) > p["clip_norm"]:
        g = [x * (p["clip_norm"] / norm(g)) for x in g]
    decay = p["weight_decay_factor"] or 0.0
    if p["multiply_weight_decay_factor_by_learning_rate"]:
        decay *= rate
    in_formula = 0.0
    if p["decoupled_weight_decay"]:
        w = [x - decay * x for x in w]
    elif formula_decays:
        w, in_formula = list(w), decay
    else:
        g = [x + decay * y for x, y in zip(g, w, strict=True)]
        w = list(w)
    formula(p, rate, t, in_formula, w, g, s)
    low, high = p["clip_weight_min"], p["clip_weight_max"]
    w = [x if low is None else max(x, low) for x in w]
    return [x if high is None else min(x, high) for x in w]


class Oracle:
    """A table of Python floats, trained row by row.

    `rows` is a list of lists, `slots` holds a list of lists by the slot's name. `largest` tells of
    every row and slot the largest number that has been in it: what rounding is measured by.
    """

    def __init__(self, p, formula, slots, rows, formula_decays=False):
        self.p, self.formula, self.formula_decays = p, formula, formula_decays
        self.rows = [[float(x) for x in row] for row in rows]
        self.slots = {
            name: [[value] * (len(row) if per_weight else 1) for row in self.rows]
            for name, (per_weight, value) in slots.items()
        }
        self.largest = {
            name: [max(map(abs, row)) for row in values] for name, values in self._arrays()
        }

    def _arrays(self):
        return [("rows", self.rows), *self.slots.items()]

    @classmethod
    def of(cls, name, preset, arguments, rows):
        """Return the oracle of a first-party optimizer."""
        p = parameters_of(name, preset, arguments)
        return cls(p, FORMULAS[name], slots_of(name, p), rows, name in ("LAMB", "LARS"))

    def apply(self, received, t, rate=None):
        """Update the rows of {row: list of its gradients, in order} in batch number t."""
        rate = self.p["learning_rate"] if rate is None else rate
        for row, gradients in received.items():
            gradients = [[float(x) for x in gradient] for gradient in gradients]
            if self.p["use_gradient_accumulation"]:
                width = range(len(self.rows[row]))
                gradients = [[math.fsum(one[c] for one in gradients) for c in width]]
            slots = {name: values[row] for name, values in self.slots.items()}
            for gradient in gradients:
                rest = (rate, t, self.rows[row], gradient, slots)
                self.rows[row] = stepped(self.p, self.formula, self.formula_decays, *rest)
                for name, values in self._arrays():
                    self.largest[name][row] = max(self.largest[name][row], *map(abs, values[row]))
