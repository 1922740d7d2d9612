"""The addresses of the studio: the page, jobs as streams of events, and numbers as bytes.

A job is a POST whose answer is a stream of server-sent events. When its reader goes away (a closed tab, a newer
request), the job is cancelled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from rearview.errors import RearviewError
from rearview.webapp import arithmetic, comparing, cuts, mask_editor, peeking, reading, writing
from rearview.webapp.guard import SAVED, Access
from rearview.webapp.index_page import NOTEBOOKS, index_page
from rearview.webapp.request import Fields
from rearview.webapp.worker import Busy, Job, Worker
from rearview.webapp.workspace import SavedPage, Workspace

# A job of the worker: its answer is sent as JSON, or as bytes for numbers.
Task = Callable[[Workspace, Fields, Job], Any]
TASKS: dict[str, Task] = {
    "read": reading.read,
    "open": reading.open_run,
    "why": arithmetic.why,
    "steps": arithmetic.steps_page,
    "example": arithmetic.example,
    "save": reading.save,
    "mask": mask_editor.look,
    "write": writing.write,
    "cut": cuts.cut,
    "rank": cuts.rank,
    "peek": peeking.peek,
    "replay": peeking.replay,
    "compare": comparing.compare,
}
# How often, in seconds, it is checked that somebody still waits for an answer.
PATIENCE = 0.1
# The policy of a page that is shown in a frame or saved: without an origin, so that it cannot reach the studio.
SEALED = "sandbox allow-scripts; frame-ancestors "


def application(workspace: Workspace, worker: Worker, access: Access, start: dict[str, Any]) -> Starlette:
    """The application inside the guard. `start` is what the page is told when it opens."""
    made: dict[bool, tuple[str, str]] = {}

    async def index(request: Request) -> Response:
        in_frame = "frame" in request.query_params
        if access.launches(request.url.query) and not in_frame:
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(access.cookie, access.session, httponly=True, samesite="strict", path="/")
            return answer
        if in_frame not in made:
            # A frame of a notebook is on another site, where cookies are not sent: its scripts are given the session.
            session = {"session": access.session} if in_frame else {}
            made[in_frame] = index_page({**start, **session, "models": workspace.entries()}, in_frame=in_frame)
        page, policy = made[in_frame]
        return HTMLResponse(page, headers={"content-security-policy": policy})

    async def job(request: Request) -> Response:
        task = TASKS.get(request.path_params["task"])
        if task is None:
            return JSONResponse({"error": "There is no such task."}, status_code=404)
        try:
            fields = Fields.of(await request.body())
            events = _Events(worker, partial(task, workspace, fields))
        except RearviewError as error:
            return JSONResponse({"error": str(error)}, status_code=503 if isinstance(error, Busy) else 400)
        return StreamingResponse(events.stream(), media_type="text/event-stream")

    async def quick(task: Task, request: Request) -> Any:
        """The result of a short job that is asked for by GET."""
        fields = Fields({name: _value(value) for name, value in request.query_params.items()} | request.path_params)
        return await _Events(worker, partial(task, workspace, fields)).result(request)

    async def block(request: Request) -> Response:
        run = await quick(lambda space, fields, job: space.run(fields.text("run")).block, request)
        return Response(run, media_type="application/octet-stream")

    async def tile(request: Request) -> Response:
        return Response(await quick(reading.tile, request), media_type="application/octet-stream")

    async def row(request: Request) -> Response:
        return Response(await quick(reading.weights_row, request), media_type="application/octet-stream")

    async def page(request: Request) -> Response:
        found: SavedPage = await quick(lambda space, fields, job: space.page(fields.text("page")), request)
        ancestors = NOTEBOOKS if access.frames(request.url.query) else "'self'"
        headers = {"content-security-policy": SEALED + ancestors}
        if "save" in request.query_params:
            headers["content-disposition"] = f'attachment; filename="{found.name}"'
        return HTMLResponse(found.content, headers=headers)

    async def icon(request: Request) -> Response:
        # Browsers ask for it by themselves.
        return Response(status_code=204)

    async def refused(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=503 if isinstance(error, Busy) else 400)

    routes = [
        Route("/", index, methods=["GET"]),
        Route("/favicon.ico", icon, methods=["GET"]),
        Route("/api/jobs/{task}", job, methods=["POST"]),
        Route("/api/runs/{run}/block", block, methods=["GET"]),
        Route("/api/runs/{run}/tile", tile, methods=["GET"]),
        Route("/api/runs/{run}/row", row, methods=["GET"]),
        Route(SAVED + "{page}", page, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={RearviewError: refused})


def _value(text: str) -> Any:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(text) < 16 else text


class _Events:
    """The events of one job, between the worker's thread and the loop of the server."""

    def __init__(self, worker: Worker, work: Callable[[Job], Any]):
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._job = worker.submit(work, self._emit)

    def _emit(self, name: str, value: Any) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, (name, value))

    async def stream(self) -> AsyncIterator[str]:
        try:
            name = ""
            while name not in ("result", "error"):
                name, value = await self._events.get()
                yield f"event: {name}\ndata: {json.dumps(value, allow_nan=False, default=_no_nan)}\n\n"
        finally:
            # The reader has gone away, or the job has ended.
            self._job.cancel()

    async def result(self, request: Request) -> Any:
        try:
            while True:
                try:
                    name, value = await asyncio.wait_for(self._events.get(), PATIENCE)
                except TimeoutError:
                    if await request.is_disconnected():
                        raise RearviewError("The reader has gone away.") from None
                    continue
                if name == "error":
                    raise RearviewError(value)
                if name == "result":
                    return value
        finally:
            self._job.cancel()


def _no_nan(value: object) -> str:
    raise TypeError(f"{type(value).__name__} is not JSON")
