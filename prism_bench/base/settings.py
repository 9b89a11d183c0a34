"""Validated settings, and errors that say which key of which file is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from prism_bench.base.errors import BadInput, nearest
from prism_bench.base.text import short


class Settings(BaseModel):
    """Base of all settings: frozen, and a key that does not exist is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    later: ClassVar[frozenset[str]] = frozenset()
    """Settings that came when there were results already: at its default, one is no part of a run's identity."""

    def recorded(self) -> dict[str, Any]:
        """As a run's record and its identity have them."""
        fields = type(self).model_fields
        old = {name for name in self.later if getattr(self, name) == fields[name].default}
        return {name: value for name, value in self.model_dump(mode="json").items() if name not in old}


def identity(settings: Mapping[str, Any]) -> str:
    """A hash that is equal for equal settings, and for those only."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted keys, as ``--set`` takes them.

    >>> dict(flat({"seed": 0, "training": {"lr": 0.1}}))
    {'seed': 0, 'training.lr': 0.1}
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


S = TypeVar("S", bound=BaseModel)


def validate(kind: type[S], values: Any, where: str = "") -> S:
    """Settings of the given kind, or a BadInput that names each wrong key and what would be right."""
    if not isinstance(values, Mapping):
        raise BadInput(f"{where}: needs settings below it (got {short(values)}).")
    try:
        return kind.model_validate({str(key): value for key, value in values.items()})
    except ValidationError as error:
        raise BadInput("\n".join(_explain(problem, kind, where) for problem in error.errors())) from None


def _explain(problem: Any, kind: type[BaseModel], where: str) -> str:
    keys = [str(part) for part in problem["loc"]]
    key = ".".join([part for part in (where, *keys) if part]) or "settings"
    if problem["type"] == "extra_forbidden":
        owner: type[BaseModel] = kind
        for part in keys[:-1]:
            field = owner.model_fields.get(part)
            nested = field.annotation if field else None
            owner = nested if isinstance(nested, type) and issubclass(nested, BaseModel) else owner
        return f"{key}: there is no such setting. {nearest(keys[-1], owner.model_fields)}"
    if problem["type"] == "missing":
        return f"{key}: is missing."
    message = problem["msg"].removeprefix("Value error, ")
    return f"{key}: {message} (got {short(problem['input'])})."
