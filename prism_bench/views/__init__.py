"""The ways to look at results, one file each: what is recorded, its table, its picture."""
