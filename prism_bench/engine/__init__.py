"""A run: what it is, the loop of its rounds, where and how clients train, what they pay."""
