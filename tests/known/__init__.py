"""Known differences between backends, with the right answers."""
