"""The audit trail: what staff did in the admin, and what they looked at."""
