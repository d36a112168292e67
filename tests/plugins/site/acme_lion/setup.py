from setuptools import Extension, setup

from shardcore.optimizer import get_include

native = Extension(
    "acme_lion.native",
    ["acme_lion/native.c"],
    include_dirs=[get_include()],
    # Without contraction to fused multiply-add the numbers are NumPy's to the last bit.
    extra_compile_args=["-O3", "-ffp-contract=off"],
)
setup(ext_modules=[native])
