"""Plugins by name: everything, ours and a third party's, is found through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from prism_bench.errors import BadInput, nearest

Kind = Literal["algorithms", "partitions", "datasets", "models", "trackers"]
KINDS: tuple[Kind, ...] = ("algorithms", "partitions", "datasets", "models", "trackers")


@cache
def find(kind: Kind) -> Mapping[str, EntryPoint]:
    """Every registered plugin of a kind. Two of one name are an error that names both."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"prism_bench.{kind}"):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise BadInput(
                f"Two {kind} are called '{point.name}': {_origin(other)} and {_origin(point)}. Uninstall one of them."
            )
    return dict(sorted(found.items()))


def load(kind: Kind, name: str, where: str) -> Any:
    """The plugin of that name; BadInput with the nearest name where there is none."""
    known = find(kind)
    if name not in known:
        raise BadInput(f"{where}: there is no {kind.removesuffix('s')} called '{name}'. {nearest(name, known)}")
    try:
        return known[name].load()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"{where}: '{name}' ({_origin(known[name])}) can't be loaded: {error}") from error


def _origin(point: EntryPoint) -> str:
    package = point.dist.name if point.dist else "unknown package"
    return f"{point.value} from {package}"
