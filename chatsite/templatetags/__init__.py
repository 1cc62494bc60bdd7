"""Template filters of the composition root."""
