from typing import Final

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
