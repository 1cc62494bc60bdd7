"""The admin screen for users: who they are, what they use, suspending and reinstating them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from chatsite.accounts import closing, email_change, suspension, user_facts
from chatsite.accounts.errors import LastAdministrator
from chatsite.accounts.models import User

# What makes somebody staff, or more: to be given by superusers alone.
_POWERS = ("is_staff", "is_superuser", "groups", "user_permissions")


class UserCreation(AdminUserCreationForm[User]):
    class Meta:
        model = User
        fields = ("email",)


class UserChange(UserChangeForm[User]):
    class Meta:
        model = User
        fields = "__all__"

    def clean(self) -> dict[str, Any]:
        """Called within the transaction that saves."""
        values: dict[str, Any] = super().clean() or {}
        taken = [name for name in ("is_staff", "is_superuser") if name in self.fields and not values.get(name)]
        # The instance is as stored: it gets the form's values after this.
        if taken and self.instance.is_superuser:
            try:
                closing.ensure_not_last(user=self.instance)
            except LastAdministrator:
                self.add_error(taken[0], "Nobody else could administer the site.")
        return values


@admin.register(User)
class UserAdmin(DjangoUserAdmin[User]):
    """There is no logging in as somebody else: staff act under their own names, and the trail says so.

    Staff who are no superusers neither give nor take powers, nor touch accounts that have any. Nor do they set
    anybody's address or password: whoever can do that can log in as them, and read what they wrote.
    """

    form = UserChange
    add_form = UserCreation
    # Ids are made in the order of time, and have an index.
    ordering = ("-id",)
    list_display = ("email", "name", "plan", "tokens_today", "running", "is_active", "is_staff", "joined", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    sortable_by = ("joined",)
    search_fields = ("=id", "^email")
    search_help_text = "An e-mail address or its beginning, or an id."
    # Nobody is suspended or let back in by a form, which may have been open while a colleague did either.
    readonly_fields = ("id", "is_active", "date_joined", "last_login")
    fieldsets = (
        (None, {"fields": ("id", "email", "name", "password")}),
        ("Permissions", {"fields": ("is_active", *_POWERS)}),
        ("Dates", {"fields": ("date_joined", "last_login")}),
    )
    actions = ("suspend", "reinstate")
    add_fieldsets = ((None, {"classes": ("wide",), "fields": ("email", "usable_password", "password1", "password2")}),)
    change_form_template = "admin/accounts/user/change_form.html"

    @admin.display(description="joined", ordering="id")
    def joined(self, user: User) -> Any:
        return user.date_joined

    @admin.display(description="plan")
    def plan(self, user: User) -> str:
        return self._brief(user).plan

    @admin.display(description="tokens today")
    def tokens_today(self, user: User) -> str:
        return f"{self._brief(user).tokens_today:,}"

    @admin.display(description="answers under way")
    def running(self, user: User) -> int:
        return self._brief(user).active_runs

    @staticmethod
    def _brief(user: User) -> user_facts.Brief:
        brief: user_facts.Brief = user.__dict__["brief"]
        return brief

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list, its rows told what other apps know of them: of this page's users only, a query for each fact."""
        listed = super().get_changelist_instance(request)
        listed.result_list = list(listed.result_list)
        briefs = user_facts.briefs_of(user_ids=[user.pk for user in listed.result_list], now=timezone.now())
        for user in listed.result_list:
            user.__dict__["brief"] = briefs[user.pk]
        return listed

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[User], search_term: str
    ) -> tuple[QuerySet[User], bool]:
        """In the order of addresses, which is that of the index: what begins with one letter may be a million."""
        found, many = super().get_search_results(request, queryset, User.objects.normalize_email(search_term))
        return found.order_by("email") if search_term else found, many

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_change_permission(request, obj) and _may_touch(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_touch(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[str, ...]:
        if _is_superuser(request):
            return self.readonly_fields
        return (*self.readonly_fields, *_POWERS, *(() if obj is None else ("email",)))

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or _is_superuser(request):
            return fieldsets
        return [
            (name, {**options, "fields": [field for field in options["fields"] if field != "password"]})
            for name, options in fieldsets
        ]

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002
        if not _is_superuser(request):
            raise PermissionDenied
        # Django saves first and records then: together, or not at all.
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    @admin.action(description="Suspend: refuse everywhere, log out, stop answers", permissions=["change"])
    def suspend(self, request: HttpRequest, queryset: QuerySet[User]) -> HttpResponse | None:
        others = queryset.exclude(email=request.user.get_username())

        def act(user: User) -> bool:
            return suspension.suspend(user=user, now=timezone.now())

        return self._confirmed(request, others, act=act, verb="suspend", done="suspended")

    @admin.action(description="Reinstate: let selected users back in", permissions=["change"])
    def reinstate(self, request: HttpRequest, queryset: QuerySet[User]) -> HttpResponse | None:
        def act(user: User) -> bool:
            return suspension.reinstate(user=user)

        return self._confirmed(request, queryset, act=act, verb="reinstate", done="reinstated")

    def _confirmed(
        self, request: HttpRequest, chosen: QuerySet[User], *, act: Callable[[User], bool], verb: str, done: str
    ) -> HttpResponse | None:
        """Ask, and on yes act on each: recorded first, so that nothing is done unrecorded."""
        users = [user for user in chosen if _may_touch(request, user)]
        if not users:
            self.message_user(request, "There is nobody among them that you may do this to.", messages.ERROR)
            return None
        if request.POST.get("confirmed") != "yes":
            briefs = user_facts.briefs_of(user_ids=[user.pk for user in users], now=timezone.now())
            context = {
                **self.admin_site.each_context(request),
                "title": f"{verb.capitalize()} users?",
                "opts": self.opts,
                "verb": verb,
                "lines": [(user, briefs[user.pk]) for user in users],
            }
            return TemplateResponse(request, "admin/accounts/user/confirm.html", context)
        acted = 0
        for user in users:
            self.log_change(request, user, verb)
            acted += act(user)
        self.message_user(request, f"{acted} {done}.")
        return None

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: User | None = None,
    ) -> HttpResponse:
        if obj is not None:
            context["facts"] = user_facts.facts_of(user=obj, now=timezone.now())
            context["may_suspend"] = self.has_change_permission(request, obj) and obj.pk != request.user.pk
        return super().render_change_form(request, context, add, change, form_url, obj)

    def save_model(self, request: HttpRequest, obj: User, form: ModelForm[User], change: bool) -> None:
        """What the form changed and nothing else: the rest of the row may have changed since it was read. A new
        address replaces all that let the user in.
        """
        if not change:
            super().save_model(request, obj, form, change)
            return
        columns = {field.name for field in obj._meta.concrete_fields}
        obj.save(update_fields=columns.intersection(form.changed_data))
        if "email" in form.changed_data:
            email_change.keep_only(user=obj, email=obj.email, verified=False)

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        """As its owner's deleting the account would: answers are stopped, usage stays without a name.

        Once the admin's transaction is over: what stops answers waits for Redis, and for whoever settles them.
        """
        transaction.on_commit(partial(self._close, request, obj))

    def _close(self, request: HttpRequest, user: User) -> None:
        try:
            closing.close(user=user, now=timezone.now())
        except LastAdministrator:
            self.message_user(request, f"{user} is the last administrator, and stays.", messages.ERROR)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for user in queryset:
            if _may_touch(request, user):
                self.delete_model(request, user)

    def get_deleted_objects(  # type: ignore[override]  # the stubs want a model's name where a model goes
        self, objs: QuerySet[User] | list[User], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """The users alone: Django's own list would read all that they have, and ask who may delete each of it."""
        kept = [f"{user} has powers that superusers alone may take" for user in objs if not _may_touch(request, user)]
        kept += [f"{user} is the last administrator" for user in objs if closing.is_last_administrator(user)]
        return [str(user) for user in objs], {"users": len(objs)}, set(), kept


def _is_superuser(request: HttpRequest) -> bool:
    return request.user.is_active and request.user.is_superuser


def _may_touch(request: HttpRequest, user: User | None) -> bool:
    """Whether an account may be changed by this member of staff at all."""
    return user is None or _is_superuser(request) or not (user.is_staff or user.is_superuser)
