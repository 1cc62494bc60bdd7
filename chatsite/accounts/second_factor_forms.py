"""The forms that ask for a code, worded like the rest of the site."""

from typing import Any

from allauth.mfa.base import forms as base_forms
from allauth.mfa.totp import forms as totp_forms
from django import forms

from chatsite.accounts.forms import Plain


class _Code(Plain):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["code"]
        field.label = "Code"
        assert isinstance(field, forms.CharField)
        # The longest is a recovery code; far above it nothing needs to be compared.
        field.max_length = 32
        field.widget.attrs |= {
            "inputmode": "numeric",
            "autofocus": True,
            "maxlength": 32,
        }


class AuthenticateForm(_Code, base_forms.AuthenticateForm):  # type: ignore[misc]
    pass


class ReauthenticateForm(_Code, base_forms.ReauthenticateForm):  # type: ignore[misc]
    pass


class ActivateTOTPForm(_Code, totp_forms.ActivateTOTPForm):  # type: ignore[misc]
    pass
