"""The stub of the extension module says what the module has, and sources are of Python 3.10."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import vcr
from vcr import _vcr

PACKAGE = Path(vcr.__file__).parent
STUB = ast.parse((PACKAGE / "_vcr.pyi").read_text())


def parameters(function: ast.FunctionDef) -> list[tuple[str, bool, bool]]:
    """Name of each parameter, whether it is by keyword alone, and whether it may be left out."""
    of = function.args
    first_optional = len(of.args) - len(of.defaults)
    found = [(each.arg, False, index >= first_optional) for index, each in enumerate(of.args)]
    return found + [(each.arg, True, default is not None) for each, default in zip(of.kwonlyargs, of.kw_defaults)]


def actual(thing: object) -> list[tuple[str, bool, bool]]:
    found = inspect.signature(thing).parameters.values()
    return [(each.name, each.kind is each.KEYWORD_ONLY, each.default is not each.empty) for each in found]


def public(names) -> set[str]:
    return {name for name in names if not name.startswith("__")}


def test_the_stub_has_the_functions_and_classes_of_the_module():
    stubbed = {of.name for of in STUB.body if isinstance(of, (ast.FunctionDef, ast.ClassDef))}
    assert stubbed == public(dir(_vcr))


@pytest.mark.parametrize("function", [of for of in STUB.body if isinstance(of, ast.FunctionDef)], ids=lambda of: of.name)
def test_functions_take_what_the_stub_says(function):
    assert actual(getattr(_vcr, function.name)) == parameters(function)


@pytest.mark.parametrize("kind", [of for of in STUB.body if isinstance(of, ast.ClassDef)], ids=lambda of: of.name)
def test_classes_have_what_the_stub_says(kind):
    made = getattr(_vcr, kind.name)
    methods = [of for of in kind.body if isinstance(of, ast.FunctionDef)]
    assert {of.name for of in methods if not of.name.startswith("__")} == public(dir(made))
    for of in methods:
        is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in of.decorator_list)
        if is_property:
            assert not callable(getattr(made, of.name))
        elif of.name == "__init__":
            assert actual(made) == parameters(of)[1:]
        else:
            assert actual(getattr(made, of.name)) == parameters(of), of.name


def test_all_names_of_the_package_are_described_and_typed():
    for name in vcr.__all__:
        made = getattr(vcr, name)
        if inspect.isfunction(made):
            assert made.__doc__ and "return" in made.__annotations__, name
        elif inspect.isclass(made):
            assert made.__doc__, name
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py*")), ids=lambda path: path.name)
def test_sources_are_of_the_oldest_python(path):
    if path.suffix in {".py", ".pyi"}:
        ast.parse(path.read_text(), feature_version=(3, 10))
