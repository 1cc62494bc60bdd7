"""The ledger by pool, alone and with a reason; adjustments within bounds."""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0006_whole_budgets"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name="usageentry",
            index=models.Index(fields=["pool", "created_at"], name="usage_pool_created"),
        ),
        migrations.AddIndex(
            model_name="usageentry",
            index=models.Index(fields=["pool", "reason", "created_at"], name="usage_pool_reason"),
        ),
        migrations.AddConstraint(
            model_name="adjustment",
            constraint=models.CheckConstraint(
                condition=models.Q(("tokens__gte", -1000000000000), ("tokens__lte", 1000000000000)),
                name="adjustment_tokens_bounded",
            ),
        ),
        migrations.AddConstraint(
            model_name="adjustment",
            constraint=models.CheckConstraint(
                condition=models.Q(("cost__gte", -1000000000000000), ("cost__lte", 1000000000000000)),
                name="adjustment_cost_bounded",
            ),
        ),
    ]
