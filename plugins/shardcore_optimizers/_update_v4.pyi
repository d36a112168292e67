from typing import Final

# What the pure forms read: places in hyper, bits of hyper["configured"], lanes of a sum.
COMMON_HYPER: Final[tuple[str, ...]]
OWN_HYPER: Final[dict[str, tuple[str, ...]]]
CORRECTIONS: Final[tuple[str, ...]]
LANES: Final[int]
CLIPS: Final[int]
CLIPS_NORM: Final[int]
DECAYS: Final[int]
DECAYS_GRADIENT: Final[int]
CLAMPS: Final[int]
DECAY_TIMES_RATE: Final[int]
DECAYS_IN_FORMULA: Final[int]

# PyCapsules named "shardcore.update_rows.v1.<dtype>", by the name of the working dtype.
sgd: Final[dict[str, object]]
momentum_sgd: Final[dict[str, object]]
adagrad: Final[dict[str, object]]
rowwise_adagrad: Final[dict[str, object]]
adagrad_momentum: Final[dict[str, object]]
ftrl: Final[dict[str, object]]
adam: Final[dict[str, object]]
rowwise_adam: Final[dict[str, object]]
lamb: Final[dict[str, object]]
lars: Final[dict[str, object]]
rmsprop: Final[dict[str, object]]
