"""Serves the dashboard's files from the package, with a policy that allows no other sources. Knows HTTP."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from contextfold.serve.http.exchange import PAGE_PATH, WEB_PATH
from contextfold.serve.http.json_responses import error_response
from contextfold.serve.request_error import RequestError

PAGE = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {"content-security-policy": CONTENT_SECURITY_POLICY, "cross-origin-opener-policy": "same-origin"}


class DashboardFiles:
    def __init__(self) -> None:
        self._files = {
            file.name: (file.read_bytes(), TYPES[suffix])
            for file in files("contextfold").joinpath("web").iterdir()
            if (suffix := "." + file.name.rpartition(".")[2]) in TYPES
        }

    def routes(self) -> list[Route]:
        return [
            Route(PAGE_PATH, endpoint=self.page, methods=["GET"]),
            Route(f"{WEB_PATH}{{name}}", endpoint=self.file, methods=["GET"]),
        ]

    async def page(self, _request: Request) -> Response:
        """The dashboard."""
        return self._response(PAGE)

    async def file(self, request: Request) -> Response:
        """The dashboard's script and style."""
        return self._response(request.path_params["name"])

    def _response(self, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            return error_response(RequestError(404, "not_found", "There is no such file; the dashboard is at /."))
        content, content_type = file
        return Response(content, headers={"content-type": content_type, **_HEADERS})
