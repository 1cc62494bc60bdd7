"""The chaos suite: a real site under load, its processes killed, frozen and restarted, and what must hold all the same.

Everything that is done to the site follows from a seed (`plan`); everything that is checked was seen from outside:
through the API, in the database, in Redis, in the engines' counters. See docs/chaos.md.
"""
