"""YAML as people type it, in a file or behind ``--set``."""

from __future__ import annotations

from typing import Any

import yaml

VALUES, DEPTH, LARGEST = 100_000, 30, 2**63 - 1
"""Values of a text with those that aliases repeat, lists within lists, and the largest whole number."""


def parse(text: str) -> Any:
    """What the text holds. A key that is given twice is an error, and the key ``on`` is a word, not a yes.

    Whatever can't be read, or would grow beyond all measure, is a YAMLError.

    >>> parse("execution: {on: threads}")
    {'execution': {'on': 'threads'}}
    """
    loader = _UniqueKeys(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {}, 0)
        return loader.construct_document(node)
    except yaml.YAMLError:
        raise
    except RecursionError:
        raise yaml.YAMLError("lists within lists have no end") from None
    except Exception as error:  # a tag on a text that it doesn't fit may raise anything
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None
    finally:
        loader.dispose()


def _measure(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """How many values a node holds; YAMLError where they are too many, or too deep. An alias costs what it repeats."""
    if depth > DEPTH:
        raise yaml.MarkedYAMLError(problem=f"more than {DEPTH} lists within lists", problem_mark=node.start_mark)
    if id(node) not in sizes:
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        below = [child for pair in children for child in (pair if isinstance(pair, tuple) else (pair,))]
        sizes[id(node)] = 1 + sum(_measure(child, sizes, depth + 1) for child in below)
    if sizes[id(node)] > VALUES:
        raise yaml.MarkedYAMLError(problem=f"aliases make more than {VALUES:,} values", problem_mark=node.start_mark)
    return sizes[id(node)]


class _UniqueKeys(yaml.SafeLoader):
    """A key that is given twice is a typo, not a choice; and nothing is a date."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # While it is read: reading a list takes longer the deeper it lies.
        self.depth += 1
        if self.depth > DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {DEPTH} lists within lists")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key_node.start_mark)
            if key_node.tag == "tag:yaml.org,2002:bool":
                key_node.tag = "tag:yaml.org,2002:str"  # `on` is the name of a setting, not a yes
            key = str(key_node.value)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"'{key}' is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise yaml.MarkedYAMLError(problem="a character is no Unicode", problem_mark=node.start_mark) from None
        return value

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = super().construct_yaml_int(node)
        if not -LARGEST <= value <= LARGEST:
            raise yaml.MarkedYAMLError(problem="a whole number is beyond 2^63", problem_mark=node.start_mark)
        return value


_UniqueKeys.add_constructor("tag:yaml.org,2002:int", _UniqueKeys.construct_yaml_int)
# A word that looks like a date stays a word.
_UniqueKeys.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
