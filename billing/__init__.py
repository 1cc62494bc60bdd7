"""Plans, subscriptions and the usage ledger: what a user may spend and what was spent."""
