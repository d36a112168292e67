"""The folders are the layers: they import in one direction only, and plugins what is declared.

No list is kept here. What stands above what follows from the imports, as ``docs/draw_layers.py``
reads them; the picture it draws is what a reader looks at.
"""

import ast
import importlib.util
import re
from graphlib import CycleError
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "docs" / "draw_layers.py"
if not SCRIPT.exists():
    pytest.skip("the sources are not beside these tests", allow_module_level=True)

spec = importlib.util.spec_from_file_location("draw_layers", SCRIPT)
layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(layers)

PACKAGES = {path.name: path for path in layers.packages()}
CORE = PACKAGES["shardcore"]
PLUGINS = sorted(PACKAGES.keys() - {"shardcore"})
EVERYTHING = {name: path for one in PACKAGES.values() for name, path in layers.modules(one).items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_import_in_one_direction(package):
    try:
        layers.levels(layers.room_graph(PACKAGES[package]))
    except CycleError as error:
        pytest.fail(f"folders import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_import_in_one_direction(package):
    try:
        layers.levels(layers.module_graph(PACKAGES[package]))
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", layers.modules(CORE))
def test_the_core_imports_no_plugin(module):
    imported = layers.imports(EVERYTHING[module], EVERYTHING)
    assert not [name for name in imported if name.split(".")[0] != "shardcore"]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugins_import_what_is_declared(plugin):
    """That is `shardcore`, its folders, and the modules at its root; no module in a folder."""
    for module, path in layers.modules(PACKAGES[plugin]).items():
        imported = layers.imports(path, EVERYTHING)
        other = {name.split(".")[0] for name in imported} - {"shardcore", plugin}
        assert not other, f"{module} imports another plugin"
        inner = [name for name in imported if name.startswith("shardcore.") and name.count(".") > 1]
        assert not inner, f"{module} imports {inner}, which is not declared"
        assert not [name for name in imported if name.startswith("shardcore._core")]


def test_the_kernels_stand_on_nothing():
    assert layers.room_graph(CORE)["_core"] == set()


def test_what_stands_on_the_engine_is_a_door():
    graph = layers.room_graph(CORE)
    above = {name for name, found in graph.items() if "engine" in found}
    assert above == {"__init__", "jax", "testing", "tf", "torch"}


def test_few_modules_lie_at_the_root():
    assert len(list(CORE.glob("*.py"))) <= 14


def test_the_picture_shows_the_code():
    told = "run: python docs/draw_layers.py"
    assert layers.PICTURE.read_text(encoding="utf-8") == layers.picture(), told


def test_a_circle_is_found(tmp_path):
    for name, text in {
        "__init__": "",
        "low/__init__": "",
        "low/ground": "from p.high import roof\n",
        "high/__init__": "",
        "high/roof": "def late():\n    import p.low\n",
    }.items():
        path = tmp_path / "p" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.raises(CycleError):
        layers.levels(layers.room_graph(tmp_path / "p"))
    assert layers.levels(layers.module_graph(tmp_path / "p"))  # no circle of modules


DOORS = [
    name for name in layers.modules(CORE) if name.split(".")[1:2] in (["torch"], ["jax"], ["tf"])
]


@pytest.mark.parametrize("module", DOORS)
def test_a_door_reads_no_private_part_of_an_engine(module):
    """What a door needs, a door of another framework, outside of this package, can have too."""
    text = EVERYTHING[module].read_text(encoding="utf-8")
    if EVERYTHING[module].suffix == ".pyx":
        assert re.findall(r"\bengine\._(?!_).*", text) == []
        return
    tree = ast.parse(text)
    private = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and ast.unparse(node.value).endswith("engine")
    ]
    assert private == []


def test_there_are_doors():
    assert {"shardcore.torch", "shardcore.jax", "shardcore.tf"} <= {
        name.rpartition(".")[0] for name in DOORS
    }
