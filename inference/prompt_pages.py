"""The pages of a run that show the prompt that it was sent with, to those who may read what people wrote."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from inference import sent
from inference.errors import PromptNotRebuilt
from inference.models import Run
from inference.sent import SentPrompt


class PromptPages(admin.ModelAdmin[Run]):
    """A base for the screen of runs. Every showing goes to the audit trail, before the page."""

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("<uuid:run_id>/prompt/", wrap(self.prompt_view), name="inference_run_prompt"),
            path("<uuid:run_id>/prompt/ids/", wrap(self.prompt_ids_view), name="inference_run_prompt_ids"),
            *super().get_urls(),
        ]

    def may_read_prompts(self, request: HttpRequest) -> bool:
        """A prompt holds what people wrote: the permission is that of the app which keeps it."""
        return self.has_view_permission(request) and request.user.has_perm("conversations.view_content")

    def prompt_view(self, request: HttpRequest, run_id: Any) -> HttpResponse:
        """The exact prompt that the run was accepted with, and what it was made with."""
        run, prompt, trouble = self._prompt_to_show(request, run_id)
        shown = {
            **self.admin_site.each_context(request),
            "title": "The prompt that was sent",
            "opts": self.opts,
            "original": run,
            "prompt": prompt,
            "trouble": trouble,
        }
        return TemplateResponse(request, "admin/inference/run/prompt.html", shown)

    def prompt_ids_view(self, request: HttpRequest, run_id: Any) -> HttpResponse:
        """Its token ids as a file."""
        run, prompt, trouble = self._prompt_to_show(request, run_id)
        if prompt is None:
            self.message_user(request, trouble, messages.ERROR)
            return redirect("admin:inference_run_prompt", run_id)
        said = {"run_id": str(run.pk), "sha256": prompt.sha256, "ids": prompt.ids}
        return JsonResponse(said, headers={"Content-Disposition": f'attachment; filename="prompt-{run.pk}.json"'})

    def _prompt_to_show(self, request: HttpRequest, run_id: Any) -> tuple[Run, SentPrompt | None, str]:
        """The run and its prompt, of which the showing is recorded; else, in words, why it cannot be had.

        Raises PermissionDenied, also for a method that is no reading, and Http404.
        """
        if request.method not in ("GET", "HEAD") or not self.may_read_prompts(request):
            raise PermissionDenied
        run = self.get_object(request, str(run_id))
        if run is None:
            raise Http404
        try:
            prompt = sent.of_run(run)
        except PromptNotRebuilt as error:
            return run, None, f"It cannot be rebuilt: {error.reason}."
        self.log_change(request, run, "view")
        return run, prompt, ""
