"""Signals of the inference app."""

from django.dispatch import Signal

# Sent inside the transaction that ends a run, with `settled`: inference.contracts.SettledRun. A receiver's error
# undoes the settlement.
run_settled = Signal()
