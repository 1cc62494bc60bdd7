"""Settings of accounts: logging in, mail, second factors, tokens, throttles."""

from chatsite import env, mail

_environment = env.read()

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
# Seconds; the mail's link works once.
PASSWORD_RESET_TIMEOUT = 3600

# Who may open an account: open, invitation or closed. Administrators can override it.
REGISTRATION = _environment.registration or "open"
# The first account of an empty instance, opened from this very machine; see chatsite/accounts/first_account.py.
FIRST_ACCOUNT_IS_ADMINISTRATOR = env.is_loopback(_environment.host) and not _environment.behind_tls_proxy

ACCOUNT_ADAPTER = "chatsite.accounts.adapter.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_SIGNUP_FORM_CLASS = "chatsite.accounts.signup_fields.SignupFields"
ACCOUNT_FORMS = {
    "login": "chatsite.accounts.forms.LoginForm",
    "signup": "chatsite.accounts.forms.SignupForm",
    "reset_password": "chatsite.accounts.forms.ResetPasswordForm",
    "reset_password_from_key": "chatsite.accounts.forms.ResetPasswordKeyForm",
    "change_password": "chatsite.accounts.forms.ChangePasswordForm",
    "set_password": "chatsite.accounts.forms.SetPasswordForm",
    "reauthenticate": "chatsite.accounts.forms.ReauthenticateForm",
}
ACCOUNT_EMAIL_VERIFICATION = "optional"
ACCOUNT_EMAIL_NOTIFICATIONS = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_REAUTHENTICATION_METHODS = ["password", "mfa"]
# Amount per time per ip, per key (the account that is asked for) or per user (logged in). `login_failed` gives an
# attempt back when it succeeds.
ACCOUNT_RATE_LIMITS = {
    "login": "30/m/ip",
    "login_failed": "20/m/ip,5/5m/key",
    "signup": "10/m/ip,100/d/ip",
    "reset_password": "10/m/ip,5/h/key",
    "reset_password_from_key": "20/m/ip",
    "change_password": "5/m/user",
    "reauthenticate": "10/m/user",
    "manage_email": "10/m/user",
    "confirm_email": "1/3m/key",
}
# Requests to /api/v1 per minute, of one account and of one address; 0 = unlimited.
API_REQUESTS_PER_MINUTE = _environment.api_requests_per_minute
API_REQUESTS_PER_MINUTE_PER_ADDRESS = _environment.api_requests_per_minute_per_address
# A client can send X-Forwarded-For itself: only what a proxy of ours has appended to it counts.
ALLAUTH_TRUSTED_PROXY_COUNT = 1 if _environment.behind_tls_proxy else 0

MFA_ADAPTER = "chatsite.accounts.second_factor.MfaAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Chatsite"
# One step of 30 s: phones' clocks drift.
MFA_TOTP_TOLERANCE = 1
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_FORMS = {
    "authenticate": "chatsite.accounts.second_factor_forms.AuthenticateForm",
    "reauthenticate": "chatsite.accounts.second_factor_forms.ReauthenticateForm",
    "activate_totp": "chatsite.accounts.second_factor_forms.ActivateTOTPForm",
}

HEADLESS_CLIENTS = ["app"]
HEADLESS_ADAPTER = "chatsite.accounts.adapter.MobileAdapter"
HEADLESS_TOKEN_STRATEGY = "allauth.headless.tokens.strategies.jwt.JWTTokenStrategy"  # noqa: S105
HEADLESS_JWT_ALGORITHM = "HS256"
# Every use looks the session up: logging out, suspending and a new password end a token at once.
HEADLESS_JWT_STATEFUL_VALIDATION_ENABLED = True
HEADLESS_JWT_ACCESS_TOKEN_EXPIRES_IN = 15 * 60
# As long as a session lives, which each refresh begins anew.
SESSION_COOKIE_AGE = HEADLESS_JWT_REFRESH_TOKEN_EXPIRES_IN = 14 * 24 * 3600

globals().update(mail.configure(url=_environment.email_url))
DEFAULT_FROM_EMAIL = SERVER_EMAIL = _environment.email_from
EMAIL_SUBJECT_PREFIX = "[Chatsite] "
