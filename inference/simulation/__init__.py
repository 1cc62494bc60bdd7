"""Plays a pool's day in minutes: made-up turns and engines, the real scripts, and a clock that is an argument."""
