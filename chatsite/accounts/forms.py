"""The login form."""

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm


class EmailLoginForm(AuthenticationForm):
    """Django's form, asking for an e-mail address as browsers and password managers know the field."""

    error_messages = AuthenticationForm.error_messages | {
        "invalid_login": "E-mail and password do not match an account. The password is case-sensitive.",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["username"]
        field.label = "E-mail"
        field.widget = forms.EmailInput(attrs={"autocomplete": "username", "autofocus": True, "maxlength": 254})
