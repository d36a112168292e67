"""Backends that are installed, and cannot be used for one reason or another."""

from shardcore.plugins import BackendSpec, hookimpl


@hookimpl
def shardcore_backends():
    yield BackendSpec("abacus", dict, unavailable=lambda: "no abacus is attached; attach one")
    yield BackendSpec("moody", dict, unavailable=_fail)
    yield BackendSpec("vague", dict, unavailable=lambda: True)
    yield BackendSpec("torn", _import_what_is_missing)
    yield BackendSpec("usable", dict, unavailable=lambda: None)


def _fail():
    raise OSError("the device did not answer")


def _import_what_is_missing():
    import a_module_that_does_not_exist

    return a_module_that_does_not_exist
