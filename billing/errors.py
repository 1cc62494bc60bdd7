"""What can go wrong in billing. Class = cause, attributes = data."""

from datetime import datetime


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


class SubscriptionInTheWay(BillingError):
    """The user has another subscription in that time. `ends_at` None = it goes on."""

    def __init__(self, *, plan: str, starts_at: datetime, ends_at: datetime | None) -> None:
        super().__init__(f"subscription to {plan} from {starts_at} to {ends_at} is in the way")
        self.plan = plan
        self.starts_at = starts_at
        self.ends_at = ends_at
