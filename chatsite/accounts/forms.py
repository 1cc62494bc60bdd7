"""The forms of the account pages: allauth's, worded like the rest of the site, and our own."""

from typing import Any, ClassVar

from allauth.account import forms as allauth_forms
from django import forms

from chatsite.accounts.errors import AccountsError
from chatsite.accounts.models import User

_LABELS = {"Email": "E-mail", "Email address": "E-mail"}


class Plain(forms.Form):
    """Labels as everywhere on the site, and nothing in an empty field that looks like its value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.label = _LABELS.get(str(field.label), field.label)
            field.widget.attrs.pop("placeholder", None)

    def refuse(self, error: AccountsError, *, field: str | None = None) -> None:
        """Show what was found only when the account was opened."""
        self.add_error(field, str(error))


class LoginForm(Plain, allauth_forms.LoginForm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].widget.attrs |= {"autocomplete": "username", "autofocus": True, "maxlength": 254}
        self.fields["password"].help_text = ""


class SignupForm(Plain, allauth_forms.SignupForm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["email"].widget.attrs["autocomplete"] = "username"
        self.fields["password1"].help_text = "At least 8 characters; not a common password, not your name."


class ResetPasswordForm(Plain, allauth_forms.ResetPasswordForm):  # type: ignore[misc]
    pass


class ResetPasswordKeyForm(Plain, allauth_forms.ResetPasswordKeyForm):  # type: ignore[misc]
    pass


class ChangePasswordForm(Plain, allauth_forms.ChangePasswordForm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["oldpassword"].help_text = ""


class SetPasswordForm(Plain, allauth_forms.SetPasswordForm):  # type: ignore[misc]
    pass


class ReauthenticateForm(Plain, allauth_forms.ReauthenticateForm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password"].help_text = ""


class ProfileForm(forms.ModelForm[User]):
    """Its fields' ids differ from those of the other form on the page."""

    class Meta:
        model = User
        fields = ("name",)
        widgets: ClassVar[dict[str, forms.Widget]] = {"name": forms.TextInput(attrs={"autocomplete": "name"})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"auto_id": "profile_%s"}))


class ChangeEmailForm(forms.Form):
    email = forms.EmailField(
        max_length=254, label="New e-mail address", widget=forms.EmailInput(attrs={"autocomplete": "email"})
    )


class NewKeyForm(forms.Form):
    name = forms.CharField(
        max_length=100, label="What is it for?", widget=forms.TextInput(attrs={"autocomplete": "off"})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"auto_id": "key_%s"}))


class DeleteAccountForm(forms.Form):
    password = forms.CharField(
        strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "autofocus": True})
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._user = user

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        if not self._user.check_password(password):
            raise forms.ValidationError("This is not your password.")
        return password
