"""YAML as people type it, in a file or behind ``--set``."""

from __future__ import annotations

from typing import Any

import yaml


def parse(text: str) -> Any:
    """What the text holds. A key that is given twice is an error, and the key ``on`` is a word, not a yes.

    >>> parse("execution: {on: threads}")
    {'execution': {'on': 'threads'}}
    """
    return yaml.load(text, Loader=_UniqueKeys)


class _UniqueKeys(yaml.SafeLoader):
    """A key that is given twice is a typo, not a choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:bool":
                key_node.tag = "tag:yaml.org,2002:str"  # `on` is the name of a setting, not a yes
            key = str(key_node.value)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"'{key}' is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
