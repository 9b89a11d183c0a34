"""Code that a file names: imported only where the user said so.

A YAML file may come from anybody, and whatever it names by ``module:function`` would run. So each such name needs the
user's word: ``--trust NAME`` on the command line, or the environment variable PRISM_BENCH_TRUST with names separated by
commas. A name is ``module:function``, or a module or package, which stands for all in it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any

from prism_bench.base.errors import BadInput
from prism_bench.base.text import short

VARIABLE = "PRISM_BENCH_TRUST"


def allow(names: Iterable[str]) -> None:
    """Trust these names from now on, in this process and in those that it starts."""
    os.environ[VARIABLE] = ",".join([*_trusted(), *names])


def imported(name: str, where: str) -> Any:
    """What ``module:function`` names, where the user trusts it; ``where`` is the setting that errors name."""
    module, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise BadInput(f"{where}: needs 'module:function' (got {short(name)}).")
    if not any(one == name or f"{module}.".startswith(f"{one}.") for one in _trusted()):
        raise BadInput(
            f"{where}: would import {module} and run its {attribute}, and you did not say that you trust it. "
            f"If you do: --trust {name}, or {VARIABLE}={name} in the environment."
        )
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"{where}: '{name}' can't be found ({error}); needs 'module:function'.") from None
    return found


def _trusted() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
