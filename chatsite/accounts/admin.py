"""Admin screens for users and API keys."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from chatsite.accounts import keys
from chatsite.accounts.models import ApiKey, User


class UserCreation(AdminUserCreationForm[User]):
    class Meta:
        model = User
        fields = ("email",)


class UserChange(UserChangeForm[User]):
    class Meta:
        model = User
        fields = "__all__"


@admin.register(User)
class UserAdmin(DjangoUserAdmin[User]):
    form = UserChange
    add_form = UserCreation
    ordering = ("-date_joined",)
    list_display = ("email", "name", "is_active", "is_staff", "date_joined", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    search_fields = ("email", "name")
    readonly_fields = ("id", "date_joined", "last_login")
    fieldsets = (
        (None, {"fields": ("id", "email", "name", "password")}),
        ("Permissions", {"fields": ("is_active", "is_staff", "is_superuser", "groups", "user_permissions")}),
        ("Dates", {"fields": ("date_joined", "last_login")}),
    )
    add_fieldsets = ((None, {"classes": ("wide",), "fields": ("email", "usable_password", "password1", "password2")}),)


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin[ApiKey]):
    """Keys can be seen and revoked here, not made: a key is shown to its owner only."""

    list_display = ("prefix", "name", "user", "created_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    search_fields = ("prefix", "name", "user__email")
    fields = readonly_fields = ("id", "user", "name", "prefix", "created_at", "last_used_at", "revoked_at")
    actions = ("revoke",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @admin.action(description="Revoke selected API keys", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        now = timezone.now()
        revoked = sum(keys.revoke(api_key=api_key, now=now) for api_key in queryset)
        self.message_user(request, f"{revoked} revoked.")
