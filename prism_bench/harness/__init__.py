"""A YAML file becomes a grid of runs; runs get done, survive and report."""
