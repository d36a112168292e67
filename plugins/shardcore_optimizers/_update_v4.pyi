from typing import Final

# PyCapsules named "shardcore.update_rows.<dtype>", by the name of the working dtype.
sgd: Final[dict[str, object]]
adagrad: Final[dict[str, object]]
