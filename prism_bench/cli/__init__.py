"""What a person types: one module per command group, one console."""

from prism_bench.cli.app import main

__all__ = ["main"]
