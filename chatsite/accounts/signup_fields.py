"""What signing up asks for besides address and password, in pages and for mobile clients alike."""

from typing import Any

from django import forms
from django.http import HttpRequest


class SignupFields(forms.Form):
    name = forms.CharField(
        max_length=150, required=False, widget=forms.TextInput(attrs={"autocomplete": "name"}), label="Name (optional)"
    )
    # Checked where the account is opened: what is valid now may be used up a moment later.
    invitation = forms.CharField(max_length=100, required=False, widget=forms.HiddenInput)
    field_order = ("name", "email", "password1")

    def signup(self, request: HttpRequest, user: Any) -> None:
        """allauth asks for it; the account is complete already."""
