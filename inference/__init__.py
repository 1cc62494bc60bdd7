"""Runs of served models: pools, admission, scheduling, event streams and the GPU worker."""
