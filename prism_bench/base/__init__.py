"""What knows nothing of federated learning: errors, settings, files, plugins by name. Nothing here decides a number."""
