"""The account page and what can be done on it."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from allauth.account.adapter import get_adapter
from allauth.account.internal.flows.email_verification import send_verification_email_for_user
from allauth.account.models import EmailAddress
from allauth.decorators import rate_limit
from allauth.mfa.utils import is_mfa_enabled
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing import api as billing
from chatsite.accounts import closing, devices, email_change, export, keys, usage_panel
from chatsite.accounts.errors import EmailTaken, LastAdministrator, LinkInvalid
from chatsite.accounts.forms import ChangeEmailForm, DeleteAccountForm, NewKeyForm, ProfileForm
from chatsite.accounts.models import ApiKey, User

_View = Callable[..., HttpResponse]
_limited: Callable[[_View], _View] = rate_limit(action="manage_email")


@never_cache
@require_safe
@login_required
def account(request: HttpRequest) -> HttpResponse:
    """Usage, profile, API keys, sessions, security, data."""
    return _page(request)


@never_cache
@require_POST
@login_required
def change_profile(request: HttpRequest) -> HttpResponse:
    form = ProfileForm(request.POST, instance=_user(request))
    if not form.is_valid():
        return _page(request, profile_form=form)
    form.save()
    messages.success(request, "Your profile is saved.")
    return redirect("account")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@_limited
def change_email(request: HttpRequest) -> HttpResponse:
    """Ask for a new address; the link that is sent there makes it count."""
    user = _user(request)
    form = ChangeEmailForm(request.POST or None)
    if form.is_valid():
        address = form.cleaned_data["email"]
        token = email_change.token_for(user=user, email=address)
        link = request.build_absolute_uri(reverse("account_confirm_new_email", args=[token]))
        get_adapter().send_mail("accounts/email/change", address, {"user": user, "link": link})
        messages.success(request, f"A mail with a link is on its way to {address}. Open it to change over.")
        return redirect("account_email")
    return render(request, "accounts/email.html", {"form": form, "email_is_verified": _is_verified(user)})


@never_cache
@require_POST
@login_required
@_limited
def send_confirmation(request: HttpRequest) -> HttpResponse:
    """Send the link that confirms the present address once more."""
    if not send_verification_email_for_user(request, _user(request)):
        messages.error(request, "One was sent a moment ago. Wait a few minutes before you ask for another.")
    return redirect("account_email")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def confirm_new_email(request: HttpRequest, token: str) -> HttpResponse:
    """What the link to a new address opens; who opens it need not be logged in on that device."""
    try:
        change = email_change.read(token=token)
        if request.method == "POST":
            email_change.apply(change=change)
            messages.success(request, f"You log in with {change.email} from now on.")
            return redirect("account")
    except LinkInvalid:
        return render(request, "accounts/email_confirm.html", {"change": None})
    except EmailTaken:
        return render(request, "accounts/email_confirm.html", {"change": None, "is_taken": True})
    return render(request, "accounts/email_confirm.html", {"change": change})


@never_cache
@require_POST
@login_required
def create_key(request: HttpRequest) -> HttpResponse:
    """Make a key and show it: no redirect, for nothing keeps the secret until the next request."""
    form = NewKeyForm(request.POST)
    if not form.is_valid():
        return _page(request, key_form=form)
    new = keys.create(user=_user(request), name=form.cleaned_data["name"], now=timezone.now())
    return _page(request, new_key=new)


@never_cache
@require_POST
@login_required
def revoke_key(request: HttpRequest, key_id: UUID) -> HttpResponse:
    api_key = get_object_or_404(ApiKey, pk=key_id, user=_user(request))
    if keys.revoke(api_key=api_key, now=timezone.now()):
        messages.success(request, f"The key {api_key} is revoked.")
    return redirect("account")


@never_cache
@require_POST
@login_required
def end_session(request: HttpRequest, device_id: int) -> HttpResponse:
    if not devices.end(user=_user(request), device_id=device_id):
        raise Http404
    messages.success(request, "That session is logged out.")
    return redirect("account")


@never_cache
@require_POST
@login_required
def end_other_sessions(request: HttpRequest) -> HttpResponse:
    ended = devices.end_all(user=_user(request), but_key=request.session.session_key)
    messages.success(request, f"{ended} logged out.")
    return redirect("account")


@never_cache
@require_safe
@login_required
def export_data(request: HttpRequest) -> StreamingHttpResponse:
    """Everything as one file."""
    now = timezone.now()
    # A lone surrogate cannot have come in, and must not keep the rest from going out.
    pieces = (part.encode("utf-8", "replace") for part in export.parts(user=_user(request), now=now))
    response = StreamingHttpResponse(pieces, content_type="application/json")
    response.headers["Content-Disposition"] = f'attachment; filename="chatsite-{now:%Y-%m-%d}.json"'
    return response


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def delete_account(request: HttpRequest) -> HttpResponse:
    user = _user(request)
    form = DeleteAccountForm(request.POST or None, user=user)
    if form.is_valid():
        try:
            closing.close(user=user, now=timezone.now())
        except LastAdministrator as error:
            form.add_error(None, str(error))
        else:
            logout(request)
            messages.success(request, "Your account and your chats are deleted.")
            return redirect("login")
    return render(request, "accounts/delete.html", {"form": form})


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "login_required lets nobody else through"
    return request.user


def _is_verified(user: User) -> bool:
    return bool(EmailAddress.objects.filter(user=user, email=user.email, verified=True).exists())


def _page(request: HttpRequest, **shown: Any) -> HttpResponse:
    user = _user(request)
    context = {
        "profile_form": ProfileForm(instance=user),
        "key_form": NewKeyForm(),
        "new_key": None,
        "email_is_verified": _is_verified(user),
        "has_password": user.has_usable_password(),
        "has_second_factor": is_mfa_enabled(user),
        "api_keys": ApiKey.objects.filter(user=user, revoked_at=None).order_by("-created_at"),
        "history_days": billing.plan_for(user_id=user.pk, now=timezone.now()).history_days,
        "devices": devices.of_user(user=user, current_key=request.session.session_key),
        "usage": usage_panel.of_user(user_id=user.pk, now=timezone.now()),
    }
    return render(request, "accounts/account.html", context | shown)
