"""The optimizers that come with shardcore, by name; written by ``docs/name_optimizers.py``.

Those of other plugins are found at run time, and are `Any` here.
"""

from typing import Any

from shardcore_optimizers.adagrad import Adagrad as Adagrad
from shardcore_optimizers.adagrad import AdagradMomentum as AdagradMomentum
from shardcore_optimizers.adagrad import RowwiseAdagrad as RowwiseAdagrad
from shardcore_optimizers.adam import Adam as Adam
from shardcore_optimizers.adam import AdamW as AdamW
from shardcore_optimizers.adam import RowwiseAdam as RowwiseAdam
from shardcore_optimizers.custom import Custom as Custom
from shardcore_optimizers.ftrl import FTRL as FTRL
from shardcore_optimizers.layerwise import LAMB as LAMB
from shardcore_optimizers.layerwise import LARS as LARS
from shardcore_optimizers.rmsprop import RMSProp as RMSProp
from shardcore_optimizers.sgd import SGD as SGD

from shardcore.errors import UnknownPluginError

class UnknownOptimizerError(UnknownPluginError, AttributeError): ...

def __getattr__(name: str) -> Any: ...
