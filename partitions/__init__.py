"""The partitioners, one file each: pure functions of labels or writers and a generator."""
