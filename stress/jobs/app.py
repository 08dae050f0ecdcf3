"""The application: the same things over an API and on a web page. No front-end build; one script of ours polls."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from fuzz.campaign.folder import Folder
from fuzz.pages.campaign import campaign_fields, read_state
from fuzz.pages.render import render
from stress.jobs.asking import asked, asked_by_form, check
from stress.jobs.guard import COOKIE, Guard
from stress.jobs.runner import Runner
from stress.jobs.store import Job, State
from targets.protocol import BadInput

BODY_BYTES_MAX = 100_000
OUTPUT_SHOWN_BYTES = 20_000
FOLLOW_S = 0.3
TEMPLATES = Path(__file__).parent / "templates"
_REPRO = re.compile(r"^[0-9a-f]{12}$")
OUTCOMES = {0: ("good", "nothing wrong"), 1: ("bad", "something found"), 2: ("odd", "bad use"), 3: ("odd", "undecided")}


class Service:
    """The routes of one folder's jobs.

    Attributes:
        allowed: Targets of somebody's own that may be asked for.
    """

    def __init__(self, runner: Runner, allowed: frozenset[str]) -> None:
        self.runner = runner
        self.store = runner.store
        self.allowed = allowed

    def application(self, hosts: frozenset[str], api_key: str | None = None) -> Starlette:
        """The ASGI application."""
        app = Starlette(
            routes=[
                Route("/", self.index, methods=["GET"]),
                Route("/login", self.login, methods=["GET", "POST"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/live.js", self.script, methods=["GET"]),
                Route("/jobs", self.submit_form, methods=["POST"]),
                Route("/jobs/{id:int}", self.page, methods=["GET"]),
                Route("/jobs/{id:int}/live", self.live, methods=["GET"]),
                Route("/jobs/{id:int}/cancel", self.cancel_form, methods=["POST"]),
                Route("/jobs/{id:int}/repros/{repro}/{what}", self.repro_form, methods=["POST"]),
                Route("/jobs/{id:int}/repros/{repro}", self.repro_page, methods=["GET"]),
                Route("/api/jobs", self.submit, methods=["POST"]),
                Route("/api/jobs", self.list, methods=["GET"]),
                Route("/api/jobs/{id:int}", self.show, methods=["GET"]),
                Route("/api/jobs/{id:int}/cancel", self.cancel, methods=["POST"]),
                Route("/api/jobs/{id:int}/output", self.follow, methods=["GET"]),
                Route("/api/jobs/{id:int}/repros", self.repros, methods=["GET"]),
                Route("/api/jobs/{id:int}/repros/{repro}", self.repro, methods=["GET"]),
                Route("/api/jobs/{id:int}/report", self.report, methods=["GET"]),
            ],
            middleware=[Middleware(Guard, hosts=hosts, api_key=api_key)],
            exception_handlers={BadInput: _bad, HTTPException: _refused},
        )
        app.router.redirect_slashes = False
        return app

    # The API

    async def submit(self, request: Request) -> Response:
        """Takes a job in."""
        return _json(self.add(await _body(request)), 201)

    async def list(self, request: Request) -> Response:
        """The last jobs."""
        return _json({"jobs": self.store.jobs()})

    async def show(self, request: Request) -> Response:
        """One job."""
        return _json(self.job(request))

    async def cancel(self, request: Request) -> Response:
        """Ends one early."""
        self.runner.cancel(self.job(request).id)
        return _json(self.job(request), 202)

    async def follow(self, request: Request) -> Response:
        """What a job prints, as it prints it, until it is over."""
        job = self.job(request)

        async def pieces() -> object:
            told, path = 0, self.runner.output_of(job.id)
            while True:
                over = self.store.job(job.id).over
                data = path.read_bytes()[told:] if path.is_file() else b""
                told += len(data)
                if data:
                    yield data
                if over or self.runner.closing:
                    return
                await trio.sleep(FOLLOW_S)

        return StreamingResponse(pieces(), media_type="text/plain; charset=utf-8")  # type: ignore[arg-type]

    async def repros(self, request: Request) -> Response:
        """The ids of what a job found."""
        folder = Folder(self.runner.folder_of(self.job(request).id))
        return _json({"repros": sorted(path.stem for path in folder.repros.glob("*.json"))})

    async def repro(self, request: Request) -> Response:
        """One of them, as `slotfuzz replay` takes it."""
        return FileResponse(self.repro_path(request), media_type="application/json")

    async def report(self, request: Request) -> Response:
        """The page of a campaign, as one file."""
        path = self.runner.folder_of(self.job(request).id) / "report.html"
        if not path.is_file():
            raise HTTPException(404, "the job has no report yet")
        return FileResponse(path, media_type="text/html")

    async def health(self, request: Request) -> Response:
        """Whether more is taken."""
        return _json({"status": "ok"})

    # Pages

    async def index(self, request: Request) -> Response:
        """Every job, and a form for the next one."""
        return _page("index.html", jobs=self.store.jobs(), outcomes=OUTCOMES, allowed=sorted(self.allowed))

    async def page(self, request: Request) -> Response:
        """One job."""
        return _page("job.html", **self.fields(self.job(request)))

    async def live(self, request: Request) -> Response:
        """As much of it as changes."""
        return _page("live.html", **self.fields(self.job(request)))

    async def script(self, request: Request) -> Response:
        """What polls."""
        return FileResponse(TEMPLATES / "live.js", media_type="text/javascript")

    async def submit_form(self, request: Request) -> Response:
        """Takes a job in from the form."""
        fields = dict(parse_qsl((await _body(request)).decode(), keep_blank_values=True))
        job = asked_by_form(fields)
        check(job, self.allowed)
        return RedirectResponse(f"/jobs/{self.store.add(fields['kind'], job.words()).id}", 303)

    async def cancel_form(self, request: Request) -> Response:
        """Ends a job early."""
        job = self.job(request)
        self.runner.cancel(job.id)
        return RedirectResponse(f"/jobs/{job.id}", 303)

    async def repro_form(self, request: Request) -> Response:
        """Replays a repro, or draws its page: as a job."""
        path, what = self.repro_path(request), request.path_params["what"]
        job = self.job(request)
        target = job.words[job.words.index("--target") + 1] if "--target" in job.words else ""
        own = ["--target", target] if ":" in target else []
        if what == "replay":
            return RedirectResponse(f"/jobs/{self.store.add('replay', ['replay', *own, str(path)]).id}", 303)
        if what != "explain":
            raise HTTPException(404, f"there is no {request.url.path}")
        page = self.page_path(job, path.stem)
        page.parent.mkdir(exist_ok=True)
        words = ["explain", *own, str(path), "--html", str(page)]
        return RedirectResponse(f"/jobs/{self.store.add('explain', words).id}", 303)

    async def repro_page(self, request: Request) -> Response:
        """The page of a repro, once it is drawn."""
        page = self.page_path(self.job(request), self.repro_path(request).stem)
        if not page.is_file():
            raise HTTPException(404, "its page is not drawn yet")
        return FileResponse(page, media_type="text/html")

    async def login(self, request: Request) -> Response:
        """Takes the key into a cookie."""
        if request.method == "GET":
            return _page("login.html")
        fields = dict(parse_qsl((await _body(request)).decode()))
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, fields.get("key", ""), httponly=True, samesite="strict")
        return response

    # What they share

    def add(self, body: bytes) -> Job:
        """Takes a job in."""
        job = asked(body)
        check(job, self.allowed)
        return self.store.add(type(job).__name__.lower(), job.words())

    def job(self, request: Request) -> Job:
        """The job that a path names."""
        try:
            return self.store.job(request.path_params["id"])
        except (KeyError, OverflowError) as error:
            raise HTTPException(404, "there is no such job") from error

    def repro_path(self, request: Request) -> Path:
        """The repro that a path names."""
        name = request.path_params["repro"]
        path = Folder(self.runner.folder_of(self.job(request).id)).repros / f"{name}.json"
        if not _REPRO.match(name) or not path.is_file():
            raise HTTPException(404, "there is no such repro")
        return path

    def page_path(self, job: Job, repro: str) -> Path:
        """Where the page of a repro lies."""
        return self.runner.folder_of(job.id) / "pages" / f"{repro}.html"

    def fields(self, job: Job) -> dict[str, object]:
        """What a job's page shows."""
        folder, output = Folder(self.runner.folder_of(job.id)), self.runner.output_of(job.id)
        said = output.read_bytes()[-OUTPUT_SHOWN_BYTES:].decode(errors="replace") if output.is_file() else ""
        campaign: dict[str, object] = {}
        if job.kind == "fuzz" and folder.campaign.is_file():
            campaign = campaign_fields(read_state(folder))
        drawn = {path.stem for path in (folder.out / "pages").glob("*.html")}
        stopping = job.id in self.runner.running and self.runner.running[job.id].cancelled
        shown = {"job": job, "output": said, "campaign_known": bool(campaign), "outcomes": OUTCOMES, "drawn": drawn}
        return {**campaign, **shown, "stopping": stopping, "live": not job.over, "cancelled": State.CANCELLED}


async def _body(request: Request) -> bytes:
    """A whole body, if it is no longer than it may be."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > BODY_BYTES_MAX:
            raise HTTPException(413, f"a body must be at most {BODY_BYTES_MAX} bytes")
    return bytes(data)


def _json(data: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def _page(template: str, **fields: object) -> Response:
    return HTMLResponse(render(template, TEMPLATES, **fields))


async def _bad(request: Request, error: Exception) -> Response:
    return await _refused(request, HTTPException(400, " ".join(str(error).split())))


async def _refused(request: Request, error: Exception) -> Response:
    """What is refused: a page for who reads pages, JSON for others."""
    assert isinstance(error, HTTPException), "as it was registered"
    if request.url.path.startswith("/api/"):
        return _json({"error": error.detail}, error.status_code)
    if "text/html" in request.headers.get("accept", ""):
        page = render("refused.html", TEMPLATES, status=error.status_code, detail=error.detail)
        return HTMLResponse(page, error.status_code)
    return PlainTextResponse(error.detail, error.status_code)
