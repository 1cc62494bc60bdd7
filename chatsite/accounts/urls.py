"""Routes of the account pages."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from chatsite.accounts.forms import EmailLoginForm

urlpatterns = [
    path(
        "login/",
        LoginView.as_view(
            template_name="accounts/login.html",
            authentication_form=EmailLoginForm,
            redirect_authenticated_user=True,
        ),
        name="login",
    ),
    path("logout/", LogoutView.as_view(), name="logout"),
]
