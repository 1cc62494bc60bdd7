"""Where Django looks for billing's admin screens."""

from billing.screens.ledger import AccountAdmin, AdjustmentAdmin, UsageEntryAdmin
from billing.screens.plans import LimitOverrideAdmin, PlanAdmin
from billing.screens.subscriptions import SubscriptionAdmin

__all__ = [
    "AccountAdmin",
    "AdjustmentAdmin",
    "LimitOverrideAdmin",
    "PlanAdmin",
    "SubscriptionAdmin",
    "UsageEntryAdmin",
]
