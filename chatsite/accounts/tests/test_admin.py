"""The admin screens for users and keys."""

import re
from datetime import datetime

import pytest
from allauth.account.models import EmailAddress
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from chatsite.accounts import accounts, invitations, keys, registration, suspension
from chatsite.accounts.errors import InvalidApiKey, InvitationInvalid
from chatsite.accounts.models import ApiKey, Invitation, User
from chatsite.accounts.tests.conftest import PASSWORD
from chatsite.audit.models import AuditEntry


@pytest.fixture
def admin_site(client: Client, db: None) -> Client:
    client.force_login(accounts.open_account(email="root@example.org", password=PASSWORD, administrator=True))
    return client


def test_a_user_is_added_with_a_normalised_address(admin_site: Client) -> None:
    form = {
        "email": "New@Example.org",
        "usable_password": "true",
        "password1": PASSWORD,
        "password2": PASSWORD,
    }
    assert admin_site.post("/admin/accounts/user/add/", form).status_code == 302
    user = User.objects.get(email="new@example.org")
    assert user.check_password(PASSWORD)
    assert not user.is_staff


def test_an_address_that_differs_in_case_only_is_refused_in_the_form(admin_site: Client, ada: User) -> None:
    form = {
        "email": "ADA@example.org",
        "usable_password": "true",
        "password1": PASSWORD,
        "password2": PASSWORD,
    }
    response = admin_site.post("/admin/accounts/user/add/", form)
    assert response.status_code == 200
    assert b"already exists" in response.content
    assert User.objects.filter(email__iexact="ada@example.org").count() == 1


def test_keys_are_listed_without_secrets_and_searched_by_owner(admin_site: Client, ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    page = admin_site.get("/admin/accounts/apikey/", {"q": "ada@example.org"}).content.decode()
    assert new.api_key.prefix in page
    assert new.secret not in page
    assert new.api_key.sha256 not in page
    detail = admin_site.get(f"/admin/accounts/apikey/{new.api_key.pk}/change/").content.decode()
    assert new.api_key.sha256 not in detail


def test_keys_can_be_revoked_there_and_not_made(admin_site: Client, ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    assert admin_site.get("/admin/accounts/apikey/add/").status_code == 403
    form = {"action": "revoke", "_selected_action": [str(new.api_key.pk)]}
    assert admin_site.post("/admin/accounts/apikey/", form).status_code == 302
    assert ApiKey.objects.get().revoked_at is not None
    with pytest.raises(InvalidApiKey):
        keys.authenticate(secret=new.secret, now=now)


def test_a_user_who_is_no_staff_sees_no_admin_page(client: Client, ada: User) -> None:
    client.force_login(ada)
    assert client.get("/admin/accounts/user/").status_code == 302


def test_an_invitation_is_made_there_and_its_link_shown_once(admin_site: Client) -> None:
    form = {"email": "Eve@example.org", "note": "from the fair", "expires_at_0": "2999-01-01", "expires_at_1": "12:00"}
    page = admin_site.post("/admin/accounts/invitation/add/", form, follow=True).content.decode()
    found = re.search(r"/signup/\?invitation=([A-Za-z0-9_-]{43})", page)
    assert found is not None
    invitation = Invitation.objects.get()
    assert (invitation.email, invitation.created_by) == ("eve@example.org", User.objects.get(email="root@example.org"))
    invitations.check(token=found[1], email="eve@example.org", now=timezone.now())
    assert found[1] not in admin_site.get("/admin/accounts/invitation/").content.decode()
    detail = admin_site.get(f"/admin/accounts/invitation/{invitation.pk}/change/").content.decode()
    assert invitation.sha256 not in detail


def test_an_invitation_can_be_withdrawn(admin_site: Client) -> None:
    new = invitations.create(created_by=None, now=timezone.now())
    admin_site.post(f"/admin/accounts/invitation/{new.invitation.pk}/delete/", {"post": "yes"})
    with pytest.raises(InvitationInvalid):
        invitations.check(token=new.token, email="eve@example.org", now=timezone.now())


def test_the_registration_mode_is_chosen_there(admin_site: Client, settings: Settings) -> None:
    settings.REGISTRATION = "open"
    page = admin_site.get("/admin/accounts/registration/", follow=True)
    assert page.status_code == 200
    admin_site.post("/admin/accounts/registration/1/change/", {"mode": "closed"})
    assert registration.mode() == "closed"
    assert admin_site.get("/admin/accounts/registration/add/").status_code == 403


def test_deleting_a_session_there_logs_it_out(admin_site: Client, ada: User) -> None:
    for form in ({"post": "yes"}, None):
        browser = Client()
        assert browser.post("/login/", {"login": ada.email, "password": PASSWORD}).status_code == 302
        assert browser.get("/account/").status_code == 200
        row = UserSession.objects.get(user=ada)
        sessions = "/admin/usersessions/usersession/"
        if form:
            admin_site.post(f"{sessions}{row.pk}/delete/", form)
        else:
            chosen = {"action": "delete_selected", "_selected_action": str(row.pk), "post": "yes"}
            admin_site.post(sessions, chosen)
        assert not UserSession.objects.filter(user=ada).exists()
        assert browser.get("/account/").status_code == 302
        assert AuditEntry.objects.filter(action="delete", object_id=str(row.pk)).exists()


def test_suspending_ends_sessions_that_are_not_listed(ada: User, now: datetime) -> None:
    browser = Client()
    assert browser.post("/login/", {"login": ada.email, "password": PASSWORD}).status_code == 302
    UserSession.objects.filter(user=ada).delete()
    assert browser.get("/account/").status_code == 200
    suspension.suspend(user=ada, now=now)
    suspension.reinstate(user=ada)
    assert browser.get("/account/").status_code == 302
    assert browser.post("/login/", {"login": ada.email, "password": PASSWORD}).status_code == 302
    assert browser.get("/account/").status_code == 200


def test_an_address_is_marked_as_verified_by_who_may_change_it_and_that_is_recorded(
    admin_site: Client, ada: User
) -> None:
    address = EmailAddress.objects.create(user=ada, email="new@example.org")
    addresses, form = "/admin/account/emailaddress/", {"action": "make_verified", "_selected_action": str(address.pk)}
    looker = accounts.open_account(email="looker@example.org", password=PASSWORD)
    User.objects.filter(pk=looker.pk).update(is_staff=True)
    looker.user_permissions.add(Permission.objects.get(codename="view_emailaddress"))
    browser = Client()
    browser.force_login(looker)
    browser.post(addresses, form)
    assert not EmailAddress.objects.get(pk=address.pk).verified
    admin_site.post(addresses, form)
    assert EmailAddress.objects.get(pk=address.pk).verified
    entry = AuditEntry.objects.get(object_id=str(address.pk))
    assert (entry.action, entry.actor_email, entry.detail) == ("change", "root@example.org", "verified")


def test_staff_change_their_password_on_the_sites_page(admin_site: Client) -> None:
    form = {"old_password": PASSWORD, "new_password1": "another long 4711", "new_password2": "another long 4711"}
    for response in (admin_site.get("/admin/password_change/"), admin_site.post("/admin/password_change/", form)):
        assert (response.status_code, response["Location"]) == (302, "/account/password/")
    assert User.objects.get(email="root@example.org").check_password(PASSWORD)
