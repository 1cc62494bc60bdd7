"""Routes below /api/auth/app/v1/: the ones of allauth's headless API that this site offers, at allauth's addresses."""

from allauth.headless.account import views as account
from allauth.headless.base import views as base
from allauth.headless.constants import Client
from allauth.headless.mfa import views as mfa
from allauth.headless.usersessions import views as usersessions
from django.urls import URLPattern, path

from chatsite.accounts.mobile import RefreshTokenView, SignupView, answering_problems


def _route(address: str, view: type) -> URLPattern:
    served = view.as_api_view(client=Client.APP)  # type: ignore[attr-defined]  # allauth ships no types
    return path(address, answering_problems(served), name=address.replace("/", "-"))


app_name = "mobile"
urlpatterns = [
    _route("config", base.ConfigView),
    _route("auth/signup", SignupView),
    _route("auth/login", account.LoginView),
    _route("auth/session", account.SessionView),
    _route("auth/reauthenticate", account.ReauthenticateView),
    _route("auth/password/request", account.RequestPasswordResetView),
    _route("auth/password/reset", account.ResetPasswordView),
    _route("auth/email/verify", account.VerifyEmailView),
    _route("auth/2fa/authenticate", mfa.AuthenticateView),
    _route("auth/2fa/reauthenticate", mfa.ReauthenticateView),
    _route("auth/sessions", usersessions.SessionsView),
    _route("account/password/change", account.ChangePasswordView),
    _route("account/authenticators", mfa.AuthenticatorsView),
    _route("account/authenticators/totp", mfa.ManageTOTPView),
    _route("account/authenticators/recovery-codes", mfa.ManageRecoveryCodesView),
    _route("tokens/refresh", RefreshTokenView),
]
