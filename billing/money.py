"""Amounts as people read them. They are stored as whole millionths of the currency."""

from decimal import Decimal

from django.conf import settings


def decimal(millionths: int) -> str:
    """The amount in the currency, to the last digit: `0.000150`, `-1250.000000`."""
    return f"{Decimal(millionths).scaleb(-6):f}"


def amount(millionths: int) -> str:
    """For people: `-1,250.00 USD`, `0.00015 USD`."""
    whole, _, part = f"{Decimal(millionths).scaleb(-6):,f}".partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')} {settings.CURRENCY}"
