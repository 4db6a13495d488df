"""Who gets an answer, and who does not."""

from __future__ import annotations

import http.client
import os
import re
import socket
import stat
import threading
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lastbranch.errors import UnavailableError
from lastbranch.view.server import listen, open_browser


def get(
    address: str, path: str = "", headers: dict[str, str] | None = None, *, host: str = "", method: str = "GET"
) -> http.client.HTTPResponse:
    """The response to a request as it is given: nothing is added but the Host."""
    at = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", at.port, timeout=60)
    connection.putrequest(method, at.path + path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": host or at.netloc, **(headers or {})}.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


def test_the_page_is_served_with_its_policy(address: str) -> None:
    for path, kind in (("", "text/html"), ("app.js", "text/javascript"), ("ask/overview", "application/octet-stream")):
        response = get(address, path)
        assert response.status == 200
        assert response.headers["content-type"].startswith(kind)
        policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["style-src"] == policy["connect-src"] == policy["worker-src"] == "'self'"
        assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"


def test_without_the_token_there_is_nothing(address: str) -> None:
    root = re.sub(r"/[^/]+/$", "/", address)
    token = urlsplit(address).path.strip("/")
    for path in ("", "ask/overview", "app.js", "x" * len(token) + "/", token, token[:-1] + "/", token.swapcase() + "/"):
        response = get(root, path)
        assert (response.status, response.body) == (404, b"")  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1", "evil.example", "127.0.0.1:{port}.evil.example"])
def test_another_host_is_misdirected(address: str, host: str) -> None:
    response = get(address, host=host.format(port=urlsplit(address).port))
    assert (response.status, response.body) == (421, b"")  # type: ignore[attr-defined]
    assert "default-src 'none'" in response.headers["content-security-policy"]


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://localhost:{port}", "https://127.0.0.1:{port}"]
)
def test_another_origin_is_refused(address: str, origin: str) -> None:
    assert get(address, "ask/overview", {"Origin": origin.format(port=urlsplit(address).port)}).status == 403


def test_the_own_origin_is_not_refused(address: str) -> None:
    assert get(address, "ask/overview", {"Origin": f"http://{urlsplit(address).netloc}"}).status == 200


@pytest.mark.parametrize(
    ("path", "site", "destination", "status"),
    [
        ("ask/overview", "same-origin", "empty", 200),
        ("ask/overview", "cross-site", "empty", 403),
        ("ask/overview", "same-site", "empty", 403),
        ("app.js", "cross-site", "script", 403),
        ("ask/overview", "cross-site", "document", 403),
        ("", "cross-site", "iframe", 403),
        ("", "cross-site", "document", 200),
        ("", "none", "document", 200),
    ],
)
def test_who_asks_is_looked_at(address: str, path: str, site: str, destination: str, status: int) -> None:
    assert get(address, path, {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": destination}).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(address: str, method: str) -> None:
    assert get(address, "ask/overview", method=method).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "../server.py",
        "..%2fserver.py",
        "%2e%2e/server.py",
        "assets/app.js",
        "/etc/passwd",
        "..\\server.py",
        "nothing.js",
        "ask/overview/",
        "app.js/",
    ],
)
def test_only_the_files_of_the_page_are_there(address: str, path: str) -> None:
    assert get(address, path).status == 404


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("ask/nothing", "no such question"),
        ("ask/hot?pid=x", "not a whole number"),
        ("ask/hot?event=9", "event = 9"),
        ("ask/hot?module=-1", "module = -1"),
        ("ask/function?at_module=0&start=../x", "no such place"),
        ("ask/function?name=no_such_function_here", "no function is called"),
        ("ask/hot?from=" + "9" * 400, "from = "),
        ("ask/branches?limit=%1b[31m", "not a whole number"),
    ],
)
def test_a_question_that_means_nothing_says_so(address: str, path: str, says: str) -> None:
    response = get(address, path)
    assert response.status == 422
    body: bytes = response.body  # type: ignore[attr-defined]
    assert says in body.decode()
    assert b"\x1b" not in body


def test_the_token_is_in_a_file_of_the_user_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    path = open_browser("http://127.0.0.1:1/secret/#/hot?pid=1&tid=2")
    assert path is not None
    assert opened == [path.as_uri()]
    assert "secret" not in opened[0]
    assert "url=http://127.0.0.1:1/secret/#/hot?pid=1&amp;tid=2" in path.read_text()
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_browser_no_file_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert open_browser("http://127.0.0.1:1/secret/") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lynx", "w3m", "www-browser"])
def test_a_browser_of_text_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """It would have the terminal, and not run the page."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser(f"/usr/bin/{name}"))
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    assert open_browser("http://127.0.0.1:1/secret/") is None


def test_a_browser_that_runs_until_it_is_closed_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = threading.Event()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("lastbranch.view.server._STARTING", 0.01)
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    monkeypatch.setattr(webbrowser, "open", lambda url: closed.wait(60))
    path = open_browser("http://127.0.0.1:1/secret/")
    assert not closed.is_set()
    assert path is not None
    assert path.exists()
    closed.set()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\nmore",
    ],
    ids=["nothing", "part", "second", "body"],
)
def test_who_connects_and_does_not_ask_is_cut_off(monkeypatch: pytest.MonkeyPatch, address: str, sent: bytes) -> None:
    monkeypatch.setattr("lastbranch.view.server._IDLE", 0.1)
    with socket.create_connection(("127.0.0.1", urlsplit(address).port or 0), timeout=60) as connection:
        connection.sendall(sent)
        while connection.recv(4096):
            pass
        assert connection.recv(1) == b""


def test_a_port_that_is_taken_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"port {port} of 127.0.0.1 is in use") as error:
            listen(port)
    assert error.value.hint is not None
    assert "--port" in error.value.hint
