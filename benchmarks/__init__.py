"""Measurements. Each compares with a baseline in the same run, prints a table and writes JSON."""
