"""Addresses of the account pages. Names that begin with account_, mfa_ or usersessions_ are django-allauth's."""

from allauth.account import views as account
from allauth.mfa.base import views as mfa
from allauth.mfa.recovery_codes import views as recovery_codes
from allauth.mfa.totp import views as totp
from django.urls import path, re_path
from django.views.generic import RedirectView

from chatsite.accounts import pages
from chatsite.accounts.entrance import LogoutView, SignupView, counted

_login = counted(account.login)
_logout = LogoutView.as_view()

urlpatterns = [
    path("login/", _login, name="account_login"),
    path("login/", _login, name="login"),
    path("login/code/", counted(mfa.authenticate), name="mfa_authenticate"),
    path("logout/", _logout, name="account_logout"),
    path("logout/", _logout, name="logout"),
    path("signup/", SignupView.as_view(), name="account_signup"),
    path("inactive/", account.account_inactive, name="account_inactive"),
    path("password/reset/", account.password_reset, name="account_reset_password"),
    path("password/reset/sent/", account.password_reset_done, name="account_reset_password_done"),
    re_path(
        r"^password/reset/(?P<uidb36>[0-9A-Za-z]{1,64})-(?P<key>[0-9A-Za-z-]{1,100})/$",
        account.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    path("password/reset/done/", account.password_reset_from_key_done, name="account_reset_password_from_key_done"),
    path("email/sent/", account.email_verification_sent, name="account_email_verification_sent"),
    re_path(r"^email/confirm/(?P<key>[-:\w]{1,200})/$", account.confirm_email, name="account_confirm_email"),
    path("account/", pages.account, name="account"),
    path("account/profile/", pages.change_profile, name="account_profile"),
    path("account/keys/", pages.create_key, name="account_create_key"),
    path("account/keys/<uuid:key_id>/revoke/", pages.revoke_key, name="account_revoke_key"),
    path("account/sessions/", RedirectView.as_view(pattern_name="account"), name="usersessions_list"),
    path("account/sessions/end-others/", pages.end_other_sessions, name="account_end_other_sessions"),
    path("account/sessions/<int:device_id>/end/", pages.end_session, name="account_end_session"),
    path("account/export/", pages.export_data, name="account_export"),
    path("account/delete/", pages.delete_account, name="account_delete"),
    path("account/email/", pages.change_email, name="account_email"),
    path("account/email/confirm/", pages.send_confirmation, name="account_send_confirmation"),
    re_path(r"^email/change/(?P<token>[-:\w]{1,1000})/$", pages.confirm_new_email, name="account_confirm_new_email"),
    path("account/password/", account.password_change, name="account_change_password"),
    path("account/password/set/", account.password_set, name="account_set_password"),
    path("account/confirm/", counted(account.reauthenticate), name="account_reauthenticate"),
    path("account/confirm/code/", counted(mfa.reauthenticate), name="mfa_reauthenticate"),
    path("account/second-factor/", mfa.index, name="mfa_index"),
    path("account/second-factor/on/", counted(totp.activate_totp), name="mfa_activate_totp"),
    path("account/second-factor/off/", totp.deactivate_totp, name="mfa_deactivate_totp"),
    path("account/second-factor/codes/", recovery_codes.view_recovery_codes, name="mfa_view_recovery_codes"),
    path(
        "account/second-factor/codes/new/", recovery_codes.generate_recovery_codes, name="mfa_generate_recovery_codes"
    ),
]
