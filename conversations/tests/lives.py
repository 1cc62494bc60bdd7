"""Somebody who has used all that there is to be used, on a site whose every table has rows of its own."""

from datetime import datetime, timedelta
from uuid import UUID

from allauth.mfa.models import Authenticator
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.utils import timezone
from pytest_django import Settings
from uuid_utils.compat import uuid7

from billing.models import Adjustment, DailyUsage, LimitOverride, Plan, Subscription, UsageEvent
from chatsite.accounts import accounts, invitations, keys
from chatsite.accounts.models import FirstAdministrator, Registration, User
from chatsite.audit import trail
from chatsite.settings import accounts as account_settings
from conversations import background, jobs
from conversations.models import Chat, Job, SiteBanner, Summary, TurnVectors
from conversations.tests.support import Person, claim_by_hand, settle_by_hand
from inference import runs, store
from inference.cell import stream
from inference.models import Attempt, ModelPool, PoolWeight, Run
from inference.testing import tiny_tokenizer

MARKER = "kumquat-marmalade-secret"
MARKER_IDS = tiny_tokenizer().encode(MARKER)
EMAIL = "ada.the.first@example.org"
NAME = "Countess Lovelace"
PASSWORD = "correct horse battery staple"


def furnish(settings: Settings, *, redis_url: str) -> User:
    """A site whose every table has rows of its own, counts in Redis, and one member of staff."""
    settings.CACHES = {"default": settings.CACHES["default"] | {"LOCATION": lambda: redis_url}}
    settings.ACCOUNT_RATE_LIMITS = account_settings.ACCOUNT_RATE_LIMITS
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS = 1000
    root = accounts.open_account(email="root@example.org", password=None, administrator=True)
    Registration.objects.create(mode="invitation")
    SiteBanner.objects.create(text="Welcome")
    staff = Group.objects.create(name="readers")
    staff.permissions.add(Permission.objects.order_by("id")[0])
    plan = Plan.objects.create(slug="of-its-own", name="Of its own")
    pool = ModelPool.objects.get()
    pool.plans.set(Plan.objects.all())
    PoolWeight.objects.create(pool=pool, plan=plan, weight=2)
    return root


def publish(run: Run) -> None:
    """Put the marker into a run's stream, as its worker does."""
    cell = store.connector().cell()
    opening = stream.open_epoch(
        cell.keys,
        run_id=run.id,
        epoch=run.epoch,
        base_epoch=run.base_epoch,
        seq=1,
        started={"epoch": run.epoch},
        ids_so_far=MARKER_IDS,
        text_so_far=MARKER,
    )
    assert cell.call(opening)[0] == "ok"


def say_the_marker(person: Person) -> tuple[str, str, str]:
    """Three chats that hold the marker wherever a chat can hold it: as title, question, answer, answer that a retry is
    replacing, carry of a lost worker, prompt of a waiting and of a running answer, and in the streams of each.

    The last of the runs is being answered.
    """
    finished, retried, carried = (person.new_chat(title=f"About {MARKER}") for _ in range(3))

    settle_by_hand(_claimed(person, finished).id, text=MARKER)
    _summarise(finished)
    broken = settle_by_hand(_claimed(person, retried).id, status="failed", text=f"A bad {MARKER}")
    assert person.retry(str(broken.id)).status_code == 202
    assert MARKER in Attempt.objects.get(run_id=broken.id).text

    lost = _claimed(person, carried)
    runs.take_over(
        run_id=lost.id,
        epoch=1,
        incarnation=lost.stream_incarnation,
        published=runs.Published(ids=MARKER_IDS, text=MARKER),
        cause=Attempt.Outcome.LOST,
        now=timezone.now(),
    )
    publish(claim_by_hand(lost.id))
    return finished, retried, carried


def _summarise(chat: str) -> None:
    """A summary that holds the marker, a turn's vectors, a job that waits, and one that a worker is at."""
    now = timezone.now()
    Summary.objects.create(
        chat_id=chat, version=1, first_seq=1, last_seq=2, content=MARKER, model="m", run_id=uuid7(), created_at=now
    )
    TurnVectors.objects.create(chat_id=chat, seq=1, model="m", vectors=bytes(768))
    Job.objects.all().delete()
    jobs.want(chat_id=UUID(chat), kind=Job.Kind.SUMMARY, pool="default", now=now + timedelta(hours=1))
    Chat.objects.filter(id=chat).update(title_by=Chat.TitleBy.WORDS)
    jobs.want(chat_id=UUID(chat), kind=Job.Kind.TITLE, pool="default", now=now)
    assert background.dispatch(now=now) == 1
    claim_by_hand(Run.objects.get(kind=Run.Kind.TITLE).id)


def _claimed(person: Person, chat: str) -> Run:
    run = claim_by_hand(person.sent(chat, f"What is {MARKER}?")["run"]["id"])
    publish(run)
    return run


def live(root: User, *, now: datetime) -> Person:
    """Somebody who has used all that there is to be used."""
    invitation = invitations.create(email=EMAIL, note=f"For {NAME}", created_by=root, now=now)
    form = {"email": EMAIL, "name": NAME, "password1": PASSWORD, "invitation": invitation.token}
    assert Client().post("/signup/", form).status_code == 302
    user = User.objects.get(email=EMAIL)
    assert Client().post("/login/", {"login": EMAIL, "password": "wrong"}).status_code == 200
    assert Client().post("/password/reset/", {"email": EMAIL}).status_code in (200, 302)
    assert Client().post("/login/", {"login": EMAIL, "password": PASSWORD}).status_code == 302
    user.groups.add(Group.objects.get())
    user.user_permissions.add(Permission.objects.order_by("id")[0])
    FirstAdministrator.objects.create(user=user, claimed_at=now)
    keys.create(user=user, name="a phone", now=now)
    Authenticator.objects.create(user=user, type="totp", data={"secret": "x"})
    plan = Plan.objects.get(slug="of-its-own")
    Subscription.objects.create(user=user, plan=plan, starts_at=now - timedelta(days=1))
    LimitOverride.objects.create(user=user, concurrent_runs=30)
    Adjustment.objects.create(
        user=user, tokens=-5, reason="A gift", author_id=root.pk, author_email=root.email, created_at=now
    )
    DailyUsage.objects.create(user=user, day=now.date() - timedelta(days=1), pool="default", runs=1)
    UsageEvent.objects.create(user_id=user.pk, day=now.date(), pool="default")
    trail.record(actor=root, action="view", objects=[user], now=now)
    return Person(EMAIL, user=user)
