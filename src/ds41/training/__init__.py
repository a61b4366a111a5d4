"""Training: real files and retrieval tasks, the published recipe scaled down, and what it was worth."""
