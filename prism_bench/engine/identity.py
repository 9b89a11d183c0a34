"""Which code decides a run's numbers: the engine's, and each chosen plugin's with all that it imports of its own.

Found by reading imports, not from a list: a file that the engine or a plugin comes to use counts from then on, and one
that neither uses, such as another algorithm or a way to carry tasks out, never does. Modules that are imported by a
computed name are not seen.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ENGINE, FACADE = "prism_bench.engine.federation", "prism_bench.plugin"
_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
ROOMS = ("core", "data", "models", "engine", "baselines", "partitions", "integrations")
"""The parts of this package whose code can decide a number. The others carry runs out and show what came of them."""


def code(plugins: Iterable[type], functions: Iterable[FunctionType] = (), content: bytes = b"") -> str:
    """A hash of the engine, of these plugins and functions, and of further content: edited, it is another run."""
    files = {file for module in (ENGINE, *modules(plugins)) for file in closure(module)}
    digest = hashlib.sha256()
    for file in sorted(files, key=_place):
        digest.update(f"{_place(file)}\n".encode() + file.read_bytes())
    loose = [part for kind in plugins for part in _ours(kind) if _file(part.__module__) is None]
    for part in (*loose, *functions):
        for text in sources(part):
            digest.update(text.encode())
    digest.update(content)
    return digest.hexdigest()[:8]


def modules(plugins: Iterable[type]) -> list[str]:
    """The modules that the plugins' classes, and those that they derive from, are written in; no other library's."""
    return list(dict.fromkeys(part.__module__ for kind in plugins for part in _ours(kind)))


def _ours(kind: type) -> list[type]:
    """The class and its bases that know this package: not pydantic's, nor the language's own."""
    return [part for part in kind.__mro__ if any(base.__module__.startswith("prism_bench.") for base in part.__mro__)]


@cache
def closure(module: str) -> frozenset[Path]:
    """The module's file and those of all that it imports within its own project."""
    project = _project(module)
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if file is None or file in found or not project(name, file):
            continue
        found.add(file)
        if not name.startswith("prism_bench."):
            waiting.append(name.rpartition(".")[0])  # a package's own file runs first
        waiting += _imports(name, file.name == "__init__.py", file.read_bytes())
    return frozenset(found)


def _project(module: str) -> Callable[[str, Path], bool]:
    """Tells whether a module, by its name and file, belongs to the same project as the given one, or is ours."""
    file = _file(module)
    depth = module.count(".") + (file is not None and file.name == "__init__.py")
    home = file.parents[depth] if file is not None else Path()
    installed = "site-packages" in home.parts or "dist-packages" in home.parts
    owners = set(_distributions().get(module.partition(".")[0], ()))

    def belongs(name: str, file: Path) -> bool:
        top, _, rest = name.partition(".")
        if top == "prism_bench":
            return rest.partition(".")[0] in ROOMS
        if installed:
            return bool(owners & set(_distributions().get(top, ())))
        # Wherever it lies: what somebody writes for a plugin need not be in the plugin's own folder.
        return not file.is_relative_to(_STDLIB) and not {"site-packages", "dist-packages"} & set(file.parts)

    return belongs


@cache
def _distributions() -> Mapping[str, list[str]]:
    """The distributions that installed each top-level name."""
    return packages_distributions()


@cache
def _imports(module: str, is_package: bool, source: bytes) -> tuple[str, ...]:
    """The names of modules that a file imports, at the top or inside of functions, but for the type checker."""
    package = (module if is_package else module.rpartition(".")[0]).split(".")
    found: list[str] = []
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [base] if base != FACADE else []
            found += [f"{base}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            found += [
                one.value for one in node.args[:1] if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
    return tuple(place for name in found for place in _behind_the_facade(name))


def _behind_the_facade(name: str) -> list[str]:
    """Where what is imported from the façade has its home: it only passes names on."""
    inside = name.removeprefix(f"{FACADE}.")
    if inside == name and name != FACADE:
        return [name]
    file = _file(FACADE)
    tree = ast.parse(file.read_bytes() if file else b"")
    homes = {
        one.name: node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) for one in node.names
    }
    return [homes[inside]] if inside in homes else list(set(homes.values()))  # the whole of it


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _statements(node)


def sources(what: Any, seen: set[Any] | None = None) -> Iterator[str]:
    """The source of a function or class, and of the functions and classes beside it that it uses."""
    seen = set() if seen is None else seen
    if what in seen:
        return
    seen.add(what)
    if isinstance(what, type):
        yield what.__qualname__
        for name, value in vars(what).items():
            value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
            if isinstance(value, (FunctionType, type)) and value.__module__ == what.__module__:
                yield from sources(value, seen)
            elif name == "model_fields" or isinstance(value, (str, int, float, tuple)):
                yield f"{name}={value!r}"
        yield str(getattr(what, "__pydantic_fields__", ""))
        return
    try:
        yield inspect.getsource(what)
    except OSError:
        yield _compiled(what.__code__)  # typed into a plain shell, or written by a program
    for name in _names(what.__code__):
        used = what.__globals__.get(name)
        if isinstance(used, (FunctionType, type)) and used.__module__ == what.__module__:
            yield from sources(used, seen)
        elif isinstance(used, (str, int, float, tuple)):
            yield f"{name}={used!r}"


def _compiled(code: CodeType) -> str:
    constants = [_compiled(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _place(file: Path) -> str:
    """A file's name that is the same wherever the package is installed: its folder and its own."""
    return "/".join(file.parts[-2:])


@cache
def _file(module: str) -> Path | None:
    """The module's source file."""
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        return Path(file).resolve() if file else None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).resolve()
