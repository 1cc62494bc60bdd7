"""Signals of the billing app."""

from django.dispatch import Signal

# Sent once a correction of somebody's charges is committed, with `user_id` and `now`.
account_adjusted = Signal()
