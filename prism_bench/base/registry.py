"""Plugins by name: everything, ours and a third party's, is found through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from prism_bench.base.errors import BadInput, nearest

Group = Literal["algorithms", "partitions", "datasets", "models", "samplers", "executors", "views", "trackers"]
GROUPS: tuple[Group, ...] = get_args(Group)
"""Each is a group of entry points, ``prism_bench.GROUP``."""


@cache
def find(group: Group) -> Mapping[str, EntryPoint]:
    """Every registered plugin of a group. Two of one name are an error that names both."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"prism_bench.{group}"):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise BadInput(
                f"Two {group} are called '{point.name}': {_origin(other)} and {_origin(point)}. Uninstall one of them."
            )
    return dict(sorted(found.items()))


def load(group: Group, name: str, where: str) -> Any:
    """The plugin of that name; BadInput with the nearest name where there is none, or where it can't be imported."""
    known = find(group)
    if name not in known:
        raise BadInput(f"{where}: there is no {group.removesuffix('s')} called '{name}'. {nearest(name, known)}")
    try:
        return known[name].load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # somebody else's module: it may raise anything, SystemExit included
        kind = type(error).__name__
        raise BadInput(f"{where}: '{name}' ({_origin(known[name])}) can't be loaded: {kind}: {error}") from error


def _origin(point: EntryPoint) -> str:
    package = point.dist.name if point.dist else "unknown package"
    return f"{point.value} from {package}"
