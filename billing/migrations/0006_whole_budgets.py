"""A budget without a refill, or a refill without a budget, is refused: a comparison with null let both pass."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("billing", "0005_plans")]
    operations = [
        migrations.RemoveConstraint(model_name="plan", name="plan_budget_refills"),
        migrations.AddConstraint(
            model_name="plan",
            constraint=models.CheckConstraint(
                condition=Q(budget_tokens__isnull=True, refill_per_hour__isnull=True)
                | Q(
                    budget_tokens__isnull=False,
                    budget_tokens__gte=1,
                    refill_per_hour__isnull=False,
                    refill_per_hour__gte=1,
                ),
                name="plan_budget_refills",
            ),
        ),
    ]
