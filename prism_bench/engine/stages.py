"""The stages of a round, as its clock and every table name them."""

STAGES = ("create", "train", "merge", "refresh", "evaluate")
