"""What can go wrong in billing. Class = cause, attributes = data."""


class BillingError(Exception):
    """Base of billing's errors."""


class LedgerIsAppendOnly(BillingError):
    """A usage entry cannot be changed or deleted; corrections are new entries."""


class AccountRebuilt(BillingError):
    """The account's quota counters were rebuilt since the admission: `current` is the generation now."""

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(f"account generation is {current}, admission was made under {expected}")
        self.expected = expected
        self.current = current
