"""Prices within what a charge can hold."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0005_plans"),
        ("inference", "0006_plans_and_prices"),
    ]

    operations = [
        migrations.AddConstraint(
            model_name="modelpool",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("cached_price__lte", 1000000000000),
                    ("output_price__lte", 1000000000000),
                    ("prompt_price__lte", 1000000000000),
                ),
                name="pool_prices_bounded",
            ),
        ),
    ]
