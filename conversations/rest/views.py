"""The routes: parse, call one function, render."""

from typing import Any, ClassVar
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from conversations import banner, chats, pools, retries, selectors, turns
from conversations.contracts import Begun, Retried
from conversations.errors import Blocked, InvalidRequest, Maintenance, NotLastTurn, NotRetryable, TooLong, TurnConflict
from conversations.models import Chat
from conversations.rest import serializers
from conversations.rest.pagination import DEFAULT_LIMIT, MAX_LIMIT, ChatPagination, MessagePagination
from inference import api as inference
from inference.contracts import START, TERMINAL_SEQ, Cursor
from inference.errors import AdmissionRefused, ChatBusy, ChatTemplateRefused, PoolFull, PoolNotFound

# What each method of a view may refuse beyond what any may, for the schema.
Refusals = dict[str, tuple[type[Exception], ...]]
# What any beginning of an answer may be refused with.
_BEGINNING = (PoolNotFound, TooLong, ChatBusy, ChatTemplateRefused, AdmissionRefused, PoolFull, Maintenance)
_PAGING = [
    OpenApiParameter(
        "cursor", {"type": "string", "format": "cursor"}, description="From `next` or `previous` of a list."
    ),
    OpenApiParameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
]


def _owner(request: Request) -> UUID:
    owner_id: UUID | None = request.user.pk
    assert owner_id is not None, "the permissions let nobody else through"
    return owner_id


def _checked(serializer_class: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    serializer = serializer_class(data=request.data)
    serializer.is_valid(raise_exception=True)
    data: dict[str, Any] = serializer.validated_data
    return data


def _chat_json(rows: list[Chat]) -> list[dict[str, Any]]:
    context = {"active_runs": selectors.active_runs(chats=rows)}
    return [dict(serializers.ChatSerializer(chat, context=context).data) for chat in rows]


class ChatsView(APIView):
    refusals: ClassVar[Refusals] = {"post": (PoolNotFound,)}

    @extend_schema(operation_id="chats_list", parameters=_PAGING, responses=serializers.ChatPageSerializer)
    def get(self, request: Request) -> Response:
        """List your chats, last active first."""
        paging = ChatPagination()
        page = paging.paginate_queryset(selectors.chats_of(owner_id=_owner(request)), request, view=self) or []
        return paging.get_paginated_response(_chat_json(list(page)))

    @extend_schema(request=serializers.NewChatSerializer, responses={201: serializers.ChatSerializer})
    def post(self, request: Request) -> Response:
        """Open a chat."""
        asked = _checked(serializers.NewChatSerializer, request)
        chat = chats.create(owner_id=_owner(request), title=asked["title"], pool=asked["pool"], now=timezone.now())
        return Response(_chat_json([chat])[0], status=201)


class ChatView(APIView):
    refusals: ClassVar[Refusals] = {"patch": (PoolNotFound,)}

    @extend_schema(responses=serializers.ChatSerializer)
    def get(self, request: Request, chat_id: UUID) -> Response:
        """One chat."""
        return Response(_chat_json([selectors.chat_for(owner_id=_owner(request), chat_id=chat_id)])[0])

    @extend_schema(request=serializers.ChatChangeSerializer, responses=serializers.ChatSerializer)
    def patch(self, request: Request, chat_id: UUID) -> Response:
        """Rename a chat, or let another pool answer in it."""
        asked = _checked(serializers.ChatChangeSerializer, request)
        chat = chats.change(
            owner_id=_owner(request),
            chat_id=chat_id,
            title=asked.get("title"),
            pool=asked.get("pool"),
            now=timezone.now(),
        )
        return Response(_chat_json([chat])[0])

    @extend_schema(responses={204: None})
    def delete(self, request: Request, chat_id: UUID) -> Response:
        """Delete a chat and all that is in it; an answer in progress is stopped first."""
        chats.delete(owner_id=_owner(request), chat_id=chat_id, now=timezone.now())
        return Response(status=204)


class MessagesView(APIView):
    refusals: ClassVar[Refusals] = {"post": (TurnConflict, Blocked, *_BEGINNING)}

    @extend_schema(operation_id="messages_list", parameters=_PAGING, responses=serializers.MessagePageSerializer)
    def get(self, request: Request, chat_id: UUID) -> Response:
        """List a chat's messages, newest first."""
        chat = selectors.chat_for(owner_id=_owner(request), chat_id=chat_id)
        paging = MessagePagination()
        page = paging.paginate_queryset(selectors.messages_of(chat=chat), request, view=self) or []
        return paging.get_paginated_response(serializers.MessageSerializer(page, many=True).data)

    @extend_schema(
        request=serializers.NewMessageSerializer,
        responses={
            202: serializers.BegunSerializer,
            (200, "application/json"): serializers.BegunSerializer,
            (200, "text/event-stream"): serializers.EventSerializer,
        },
    )
    def post(self, request: Request, chat_id: UUID) -> Response:
        """Send a message. A repeat with the same client_turn_id answers 200 with the same run.

        With `Accept: text/event-stream` the response streams the run's events; its first frame, `event: run`, holds
        this response's body.
        """
        asked = _checked(serializers.NewMessageSerializer, request)
        begun = turns.begin(owner_id=_owner(request), chat_id=chat_id, now=timezone.now(), **asked)
        return Response(_begun_json(begun), status=202 if begun.created else 200)


class RunView(APIView):
    @extend_schema(responses=serializers.RunSerializer)
    def get(self, request: Request, run_id: UUID) -> Response:
        """One run."""
        return Response(serializers.RunSerializer(inference.run_for(owner_id=_owner(request), run_id=run_id)).data)


class CancelView(APIView):
    @extend_schema(request=None, responses={202: serializers.RunSerializer, 200: serializers.RunSerializer})
    def post(self, request: Request, run_id: UUID, chat_id: UUID | None = None) -> Response:
        """Stop a run: 202 while it is stopping, 200 once it is over. Doing it again changes nothing."""
        if chat_id is not None:
            selectors.chat_with_run(owner_id=_owner(request), chat_id=chat_id, run_id=run_id)
        run = inference.cancel(owner_id=_owner(request), run_id=run_id, now=timezone.now())
        return Response(serializers.RunSerializer(run).data, status=202 if run.is_active else 200)


class RetryView(APIView):
    refusals: ClassVar[Refusals] = {"post": (NotRetryable, NotLastTurn, *_BEGINNING)}

    @extend_schema(request=None, responses={202: serializers.RetriedSerializer, 200: serializers.RetriedSerializer})
    def post(self, request: Request, run_id: UUID) -> Response:
        """Answer the chat's last message anew, where its answer was stopped, broke off or failed.

        202 with the run, which goes on at its next epoch; 200 where it is being answered already. The answer there is
        disappears, and the new one takes its place.
        """
        retried = retries.retry(owner_id=_owner(request), run_id=run_id, now=timezone.now())
        return Response(_retried_json(retried), status=202 if retried.created else 200)


class EventsView(APIView):
    """May this run be followed from here? The event-stream layer asks, then streams."""

    @extend_schema(
        parameters=[
            OpenApiParameter(
                "after",
                {"type": "string", "format": "event-id", "pattern": r"^[0-9]{1,10}-[0-9]{1,10}$"},
                description="Id of the last event you have; wins over Last-Event-ID.",
            )
        ],
        responses={(200, "text/event-stream"): serializers.EventSerializer, 204: None},
    )
    def get(self, request: Request, run_id: UUID) -> Response:
        """Follow a run's events from a cursor on. 204 when the cursor is at or past the end."""
        run = inference.run_for(owner_id=_owner(request), run_id=run_id)
        after = _cursor(request)
        if not run.is_active and after >= Cursor(run.epoch, TERMINAL_SEQ):
            return Response(status=204)
        if after.epoch > run.epoch:
            raise InvalidRequest(field="after", reason=f"is ahead of the run, which is at epoch {run.epoch}")
        return Response(
            serializers.FollowSerializer(
                {
                    "run_id": run.id,
                    "after": str(after),
                    "status": run.status,
                    "epoch": run.epoch,
                    "is_terminal": not run.is_active,
                    "message_id": run.message_id,
                }
            ).data
        )


class PoolsView(APIView):
    @extend_schema(operation_id="pools_list", responses=serializers.PoolPageSerializer)
    def get(self, request: Request) -> Response:
        """The model pools that you may send to, the default one first."""
        ready = set(inference.ready_pools())
        results = [
            {
                "slug": pool.slug,
                "name": pool.name,
                "model": pool.label,
                "engine": pool.engine,
                "is_default": pool.is_default,
                "context_window": pool.context_window,
                "max_output_tokens": pool.max_output_tokens,
                "available": pool.slug in ready,
            }
            for pool in pools.offered(owner_id=_owner(request), now=timezone.now())
        ]
        # There are few pools: one page holds them all.
        return Response({"results": results, "next": None, "previous": None})


class StatusView(APIView):
    @extend_schema(operation_id="status_retrieve", responses=serializers.StatusSerializer)
    def get(self, request: Request) -> Response:
        """What the site says to everybody, and whether it is being maintained: then sends are refused."""
        shown = banner.current()
        maintenance = shown is not None and shown.maintenance
        return Response(serializers.StatusSerializer({"maintenance": maintenance, "banner": shown}).data)


def _cursor(request: Request) -> Cursor:
    """The cursor that a follower names: `after`, else what EventSource sends when it reconnects."""
    asked = request.query_params.get("after")
    field = "after"
    if asked is None:
        asked, field = request.headers.get("Last-Event-ID"), "Last-Event-ID"
    if not asked:
        if field == "after" and asked == "":
            raise InvalidRequest(field=field, reason="must be <epoch>-<seq>")
        return START
    try:
        return Cursor.parse(asked)
    except ValueError as error:
        raise InvalidRequest(field=field, reason=f"is not a cursor: {error}") from error


def _retried_json(retried: Retried) -> dict[str, Any]:
    run = dict(serializers.RunSerializer(retried.run).data)
    return run | {"events_url": selectors.events_url(retried.run.id)}


def _begun_json(begun: Begun) -> dict[str, Any]:
    return dict(
        serializers.BegunSerializer(
            {
                "run": begun.run,
                "message": begun.message,
                "events_url": selectors.events_url(begun.run.id),
            }
        ).data
    )
