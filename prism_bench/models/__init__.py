"""Networks with their axes."""
