"""allauth's pages for getting in, where they need more than other words: refusals found late, and 429."""

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from allauth.account import views as allauth_views
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from chatsite import problems
from chatsite.accounts.errors import EmailTaken, InvitationInvalid, RegistrationClosed
from chatsite.accounts.throttling import RETRY_AFTER_S

# The codes of allauth's form errors that stand for a limit.
_LIMITS = {"too_many_login_attempts", "rate_limited"}
View = Callable[..., HttpResponse]


class SignupView(allauth_views.SignupView):  # type: ignore[misc]  # allauth ships no types
    def form_valid(self, form: Any) -> HttpResponse:
        """What only opening the account could find out is shown like what the form found."""
        try:
            response: HttpResponse = super().form_valid(form)
        except EmailTaken:
            form.add_error("email", "There is an account with this e-mail address already.")
        except InvitationInvalid as error:
            form.refuse(error)
        except RegistrationClosed:
            return self.closed()  # type: ignore[no-any-return]
        else:
            return response
        return self.form_invalid(form)  # type: ignore[no-any-return]

    def get_initial(self) -> dict[str, Any]:
        initial: dict[str, Any] = super().get_initial()
        return initial | {"invitation": self.request.GET.get("invitation", "")}


class LogoutView(allauth_views.LogoutView):  # type: ignore[misc]
    """Only by POST: a link or an image elsewhere must not log anybody out."""

    http_method_names = ("post", "options")


def counted(view: View) -> View:
    """A page whose form ran into a limit answers 429, not 200 like a form that was filled in wrongly."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(request, *args, **kwargs)
        form = (getattr(response, "context_data", None) or {}).get("form")
        if form is not None and form.is_bound:
            codes = {error.code for errors in form.errors.as_data().values() for error in errors}
            if codes & _LIMITS:
                response.status_code = HTTPStatus.TOO_MANY_REQUESTS
                response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    return answer


def too_many_requests(request: HttpRequest) -> HttpResponse:
    """The answer to whoever is over a limit that pages have."""
    if request.path_info.startswith("/api/"):
        response: HttpResponse = problems.too_many_requests(retry_after=RETRY_AFTER_S)
    else:
        response = render(request, "429.html", status=HTTPStatus.TOO_MANY_REQUESTS)
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response
