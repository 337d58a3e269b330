"""The dashboard's files, as they lie in the package: read once, sent with rules that let no other in. Knows HTTP."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from contextfold.serve.http.guard import PAGE_PATH, WEB_PATH
from contextfold.serve.http.json_responses import told_error

PAGE = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {"content-security-policy": CONTENT_SECURITY_POLICY, "cross-origin-opener-policy": "same-origin"}


class Web:
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
        return self._sent(PAGE)

    async def file(self, request: Request) -> Response:
        """The dashboard's script and style."""
        return self._sent(request.path_params["name"])

    def _sent(self, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            return told_error(404, "not_found", "There is no such file; the dashboard is at /.")
        content, content_type = found
        return Response(content, headers={"content-type": content_type, **_HEADERS})
