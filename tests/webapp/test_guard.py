"""Nothing is answered to a stranger: every route, by GET and POST, without a cookie, from another host or origin."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time

import pytest

from rearview.webapp import Studio
from rearview.webapp.guard import Access
from rearview.webapp.limits import Limits
from rearview.webapp.routes import TASKS, application
from rearview.webapp.worker import Worker
from rearview.webapp.workspace import Workspace
from tests.webapp.conftest import Client


def paths() -> list[str]:
    """Every route of the application, so that a new one is tested too."""
    worker = Worker(Limits())
    app = application(Workspace(Limits()), worker, Access(frozenset(), 1), {})
    worker.stop()
    found = [route.path for route in app.routes]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(found) >= 7
    tasks = [f"/api/jobs/{task}" for task in TASKS]
    return [*tasks, *(path.replace("{task}", "read").replace("{run}", "0").replace("{page}", "0") for path in found)]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", [*paths(), "/nothing", "/../../etc/passwd", "/api/runs/..%2f..%2fetc/block"])
class TestStrangers:
    def refused(self, client: Client, method: str, path: str, headers: dict[str, str], statuses: set[int]) -> None:
        body = b"{}" if method == "POST" else None
        status, answer, content = client.send(method, path, headers, body)
        assert status in statuses, content
        assert set(json.loads(content)) == {"error"}
        assert answer["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer["content-security-policy"]

    def test_without_a_cookie(self, client: Client, method: str, path: str):
        self.refused(client, method, path, {"Origin": client.origin}, {401})

    def test_with_another_cookie(self, client: Client, method: str, path: str):
        name = client.cookie.partition("=")[0]
        self.refused(client, method, path, {"Origin": client.origin, "Cookie": f"{name}=guess"}, {401})

    @pytest.mark.parametrize(
        "host", ["evil.example", "127.0.0.1", "localhost", "127.0.0.1:1", "127.0.0.1.evil.example:{port}"]
    )
    def test_with_another_host(self, client: Client, method: str, path: str, host: str):
        named = host.replace("{port}", str(client.running.port))
        self.refused(client, method, path, {**client.trusted, "Host": named, "Origin": f"http://{named}"}, {421})

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", "https://127.0.0.1:{port}"])
    def test_with_another_origin(self, client: Client, method: str, path: str, origin: str):
        named = origin.replace("{port}", str(client.running.port))
        self.refused(client, method, path, {**client.trusted, "Origin": named}, {403})

    def test_caused_by_another_site(self, client: Client, method: str, path: str):
        if (method, path) == ("GET", "/"):
            return
        self.refused(client, method, path, {**client.trusted, "Sec-Fetch-Site": "cross-site"}, {403})


def test_a_post_needs_an_origin(client: Client):
    status, _, body = client.send("POST", "/api/jobs/mask", {"Cookie": client.cookie}, b"{}")
    assert (status, json.loads(body)["error"]) == (403, "A POST needs the Origin header of the page.")


def test_other_methods_and_paths(client: Client):
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert client.send(method, "/", client.trusted)[0] == 405
    for path in ("/static", "/../page.html", "/%2e%2e/%2e%2e/etc/passwd", "/page.js"):
        assert client.get(path)[0] == 404


def test_the_token_gives_a_cookie_that_scripts_cannot_read(running: Studio, client: Client):
    status, headers, _ = client.send("GET", "/?token=" + running.url.partition("token=")[2])
    assert (status, headers["location"]) == (303, "/")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    for path in ("/?token=", "/?token=guess", "/?token=" + "x" * 4000):
        assert client.send("GET", path)[0] == 401


def test_the_page_allows_only_its_own_script(client: Client):
    status, headers, body = client.get("/")
    policy = headers["content-security-policy"]
    assert status == 200
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert client.running._access.session.encode() not in body


def test_a_frame_of_a_notebook_has_the_session_and_no_cookie(running: Studio, client: Client):
    path = running.url.removeprefix(client.origin) + "&frame=1"
    status, headers, body = client.send("GET", path)
    assert status == 200
    assert "set-cookie" not in headers
    assert "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*" in headers["content-security-policy"]
    session = json.loads(body.partition(b'id="data">')[2].partition(b"</script>")[0])["session"]
    # A frame and a download cannot send the header: saved pages, and nothing else, take the session in the address.
    assert client.send("GET", f"/api/pages/0?session={session}")[0] == 400
    assert client.send("GET", "/api/pages/0?session=guess")[0] == 401
    assert client.send("GET", f"/api/runs/0/block?session={session}")[0] == 401
    assert client.send("POST", f"/api/pages/0?session={session}", {"Origin": client.origin}, b"{}")[0] == 401
    bearer = {"Authorization": f"Bearer {session}", "Origin": client.origin}
    assert client.send("POST", "/api/jobs/mask", bearer, b'{"mask": "causal()", "length": 4}')[0] == 200
    assert client.send("GET", "/?frame=1")[0] == 401


def test_websockets_are_refused(running: Studio, client: Client):
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", **client.trusted,
    }  # fmt: skip
    assert client.send("GET", "/ws", upgrade)[0] in (403, 404)
    assert client.send("GET", "/ws", {**upgrade, "Cookie": ""})[0] in (401, 403)


def test_large_and_slow_bodies_are_refused(running: Studio, client: Client):
    status, _, body = client.send("POST", "/api/jobs/read", client.trusted, b"x" * 200_001)
    assert (status, json.loads(body)["error"]) == (413, "The request has more than 200,000 bytes.")
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    connection.putrequest("POST", "/api/jobs/read", skip_host=True)
    for name, value in {"Host": client.host, **client.trusted, "Content-Length": "1000"}.items():
        connection.putheader(name, value)
    connection.endheaders(b"{")
    answer = connection.getresponse()
    assert answer.status == 408
    assert json.loads(answer.read())["error"] == "The request did not arrive within 0.6 seconds."
    connection.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"model": 3}'])
def test_bodies_that_are_not_requests(client: Client, body: bytes):
    status, _, answer = client.send("POST", "/api/jobs/read", client.trusted, body)
    assert status in (200, 400)
    assert b"expected" in answer


def test_a_list_is_not_a_request(client: Client):
    _, _, answer = client.send("POST", "/api/jobs/read", client.trusted, b"[1]")
    assert json.loads(answer)["error"] == "request: expected a JSON object, got list."


def test_an_origin_that_is_given_twice_is_refused(running: Studio, client: Client):
    for origins in ([client.origin, "http://evil.example"], ["http://evil.example", client.origin]):
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        connection.putrequest("POST", "/api/jobs/read", skip_host=True)
        for name, value in [("Host", client.host), ("Cookie", client.cookie), *(("Origin", each) for each in origins)]:
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 403
        connection.close()


def test_many_requests_at_once_are_answered_or_refused(client: Client):
    statuses: list[int] = []

    def ask() -> None:
        fields = {"model": "little", "text": "abc " * 40}
        statuses.append(client.send("POST", "/api/jobs/read", client.trusted, json.dumps(fields).encode())[0])

    threads = [threading.Thread(target=ask) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(statuses) == 200
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    assert client.result("mask", mask="causal()", length=4)["engine"]


def test_a_reader_that_leaves_stops_its_job(running: Studio, client: Client):
    body = json.dumps({"model": "little", "text": "abc", "tokens": 250}).encode()
    head = [
        "POST /api/jobs/write HTTP/1.1",
        f"Host: {client.host}",
        f"Cookie: {client.cookie}",
        f"Origin: {client.origin}",
        f"Content-Length: {len(body)}",
    ]
    connection = socket.create_connection(("127.0.0.1", running.port))
    connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
    assert b"200" in connection.recv(64)
    connection.close()
    began = time.monotonic()
    assert client.result("mask", mask="causal()", length=4)["engine"]
    # The next job did not wait until 250 tokens were written.
    assert running._worker.waiting == 0
    assert time.monotonic() - began < 30


def test_the_address_that_is_taken_is_named(running: Studio):
    from rearview.errors import RearviewError
    from tests.webapp.conftest import model

    with pytest.raises(
        RearviewError, match=f"The studio cannot listen on 127.0.0.1:{running.port}: .*Choose another --port."
    ):
        Studio([model()], [], port=running.port)
