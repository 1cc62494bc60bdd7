"""Plans and who has them, quota accounts, the append-only ledger, and what is metered from it."""

from billing.models.accounts import Account
from billing.models.ledger import Adjustment, UsageEntry
from billing.models.metering import DailyUsage, UsageEvent
from billing.models.plans import LimitOverride, Plan, Subscription

__all__ = ["Account", "Adjustment", "DailyUsage", "LimitOverride", "Plan", "Subscription", "UsageEntry", "UsageEvent"]
