"""Who may open an account: open, by invitation, or nobody."""

from django.conf import settings

from chatsite.accounts.models import Registration


def mode() -> Registration.Mode:
    """What administrators chose, else the REGISTRATION setting."""
    chosen = Registration.objects.values_list("mode", flat=True).first()
    return Registration.Mode(chosen or settings.REGISTRATION)
