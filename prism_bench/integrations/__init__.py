"""The suite's algorithms inside other frameworks."""
