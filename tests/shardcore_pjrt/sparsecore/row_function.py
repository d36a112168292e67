"""The arithmetic on one row within a lowered update of jax-tpu-embedding, run without SparseCores.

The package's updates run on SparseCores only. But each lowers, without any, to a call of the device
and to a private function, which is the optimizer on one row. This function alone is run here,
operation by operation, by the reference interpreter of StableHLO.
"""

from __future__ import annotations

import numpy as np

__all__ = ["RowFunction"]


class RowFunction:
    """The private function of an update that JAX has traced; in float64 where asked."""

    def __init__(self, traced, dtype="float32"):
        from jax.extend.mlir import ir

        lowered = traced.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
        text = str(_only_row_function(ir.Module.parse(str(lowered), lowered.context)))
        if dtype == "float64":
            text = text.replace("f32", "f64")
        self._module = ir.Module.parse(text, lowered.context)

    def __call__(self, gradient, state, numbers):
        """Return the rows and slots that follow `state`; numbers are scalars, as traced."""
        from jax.extend.mlir import ir
        from jax.extend.mlir.dialects import stablehlo

        arrays = [array.reshape(1, -1) for array in (gradient, *state)]
        arrays += [np.full(arrays[0].shape, number, number.dtype) for number in numbers]
        with self._module.context, ir.Location.unknown():
            results = stablehlo.eval_module(self._module, [_attribute(one) for one in arrays])
            return [np.array(result).reshape(gradient.shape) for result in results]


def _only_row_function(module):
    """Make the private function the module's @main, with several results for its tuple."""
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import func

    with module.context, ir.Location.unknown():
        functions = {f.attributes["sym_name"].value: f for f in module.body.operations}
        functions.pop("main").operation.erase()
        (function,) = functions.values()
        (block,) = function.regions[0].blocks
        end = list(block.operations)[-1]
        together = end.operands[0].owner
        results = list(together.operands)
        with ir.InsertionPoint(end):
            func.ReturnOp(results)
        end.operation.erase()
        together.erase()
        signature = [value.type for value in block.arguments], [one.type for one in results]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*signature))
        function.attributes["sym_name"] = ir.StringAttr.get("main")
        function.attributes["sym_visibility"] = ir.StringAttr.get("public")
        module.operation.verify()
    return module


def _attribute(array):
    from jax.extend.mlir import ir

    if array.dtype != bool:
        return ir.DenseElementsAttr.get(array)
    kind = ir.RankedTensorType.get(array.shape, ir.IntegerType.get_signless(1))
    return ir.DenseElementsAttr.get_splat(kind, ir.BoolAttr.get(bool(array.flat[0])))
