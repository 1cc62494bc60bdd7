"""Which plan is the default, and which plans have to stay."""

from uuid import UUID

from django.db import transaction

from billing.models import Plan


def make_default(*, plan_id: UUID) -> bool:
    """Make this plan that of users without a subscription, in place of the one before. False when it is already."""
    with transaction.atomic():
        # Locked together, in one order: of two at the same time the second finds the first's choice.
        plans = Plan.objects.select_for_update().order_by("pk")
        if not any(plan.pk == plan_id and not plan.is_default for plan in plans):
            return False
        Plan.objects.filter(is_default=True).update(is_default=False)
        return Plan.objects.filter(pk=plan_id).update(is_default=True) == 1


def reasons_to_keep(*, plan: Plan) -> list[str]:
    """Why the plan cannot be deleted; none means that it can."""
    reasons = []
    if plan.is_default:
        reasons.append(f"{plan.name} is the default plan: make another one the default first")
    if plan.subscriptions.exists():
        reasons.append(f"{plan.name} has subscriptions: end and delete them first")
    # A pool that is left without plans is everybody's.
    if plan.pools.exists():
        reasons.append(f"{plan.name} is what pools are open to: take it out of them first")
    return reasons
