"""Requests to one server: its key, its certificate, how long to wait, when to try again, and what goes
wrong as a sentence.

A request is made again only as long as no byte of its answer has come, after a short pause of random
length, so that all who lost a server do not come back at once. What a server says of an error may
quote the text that it was sent, so it is left out, except of requests that hold nothing of the user's.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2

from completion_ls import __version__
from completion_ls.engines.remote.errors import Refused, ServerError
from completion_ls.engines.remote.keys import is_this_machine

TRIES = 3
PAUSE_S = 0.1
"""Before the second try, give or take a half; twice as long before the next one."""
LONGEST_PAUSE_S = 2.0
"""A server that wants to be left alone for longer is."""
CONNECT_S = 5.0
MOST_LINE = 16 * 1024 * 1024
"""Bytes of one event, or of a whole answer: the probabilities of a large vocabulary are several MB."""
MOST_ERROR = 64 * 1024
QUOTED = 300
"""Characters of what a server says of an error."""

Json = dict[str, Any]


class Client:
    """Speaks HTTP with one server. To be used on one event loop."""

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        """`url` has no `/v1`; `timeout_s` is the longest silence."""
        address = urlsplit(url)
        self.url = url.rstrip("/").removesuffix("/v1")
        self.name = address.netloc or url
        self.retries = 0
        # Who speaks HTTP alone says nothing to who begins with TLS.
        self._or_http = ", with its https" if self.url.lower().startswith("https:") else ""
        # A few bytes of what is packed may be gigabytes.
        headers = {"User-Agent": f"completion-ls/{__version__}", "Accept-Encoding": "identity"}
        if key:
            headers |= {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s
        self.patience_s = 2 * timeout_s + CONNECT_S
        """So long is waited for something new, whatever else comes meanwhile."""
        limits = httpx2.Limits(max_connections=64, keepalive_expiry=60)
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S)),
            limits=limits,
            # Nothing that was meant for one server goes to another.
            follow_redirects=False,
            # A proxy, which the environment may name, is for other machines.
            transport=httpx2.AsyncHTTPTransport(limits=limits) if is_this_machine(url) else None,
        )

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """The JSON value at a path; None where there is no such path. Raises ServerError."""
        return await self._at("GET", path, None)

    async def post(self, path: str, body: Json) -> Any:
        """The whole answer to a request that holds nothing of the user's; None where the server has no
        such path. Raises ServerError: with what the server says where it refuses the request."""
        return await self._at("POST", path, body)

    async def ask(self, path: str, body: Json) -> Json:
        """The whole answer, an object, to a request that holds the user's text. Raises ServerError."""
        found = await self._whole("POST", path, body, quote=False)
        if not isinstance(found, dict):
            raise ServerError(f"The server {self.name} sent an answer that is no JSON object.")
        return found

    async def events(
        self, path: str, body: Json, headers: Mapping[str, str]
    ) -> AsyncGenerator[Json, None]:
        """The events of a streamed answer, up to its end or to `[DONE]`. Closing it closes the
        connection at once, by which the server learns that nobody waits. Raises ServerError."""
        for number in range(1, TRIES + 1):
            try:
                async with (
                    self._response("POST", path, body, headers, quote=False) as response,
                    aclosing(self._lines(response)) as lines,
                ):
                    async for line in lines:
                        if not line.startswith(b"data:"):
                            self._check_line(line)
                            continue
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            return
                        yield self._object(data)
                return
            except ServerError as error:
                if not await self._may_retry(error, number):
                    raise

    def _check_line(self, line: bytes) -> None:
        """Of an event stream there are comments and other fields, which say nothing; a page of HTML, or an
        object that is no event, is none."""
        if line[:1] in (b"<", b"{", b"["):
            raise ServerError(f"The server {self.name} answered with something else than events.")

    def _object(self, data: bytes) -> Json:
        found = self._value(data)
        if not isinstance(found, dict):
            raise ServerError(f"The server {self.name} sent an event that is no JSON object.")
        if found.get("error"):
            raise ServerError(f"The server {self.name} failed in the middle of an answer.")
        return found

    def _value(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise ServerError(f"The server {self.name} sent something that is no JSON.") from None

    async def _at(self, method: str, path: str, body: Json | None) -> Any:
        try:
            return await self._whole(method, path, body, quote=True)
        except _NoSuchPath:
            return None

    async def _whole(self, method: str, path: str, body: Json | None, *, quote: bool) -> Any:
        for number in range(1, TRIES + 1):
            try:
                # A byte now and then is no answer either.
                async with asyncio.timeout(CONNECT_S + self._timeout_s):
                    async with self._response(method, path, body, {}, quote=quote) as response:
                        return self._value(await self._read(response))
            except TimeoutError:
                raise self._silent() from None
            except ServerError as error:
                if not await self._may_retry(error, number):
                    raise
        raise AssertionError("unreachable")

    async def _may_retry(self, error: ServerError, number: int) -> bool:
        if not error.may_retry or number == TRIES or error.after_s > LONGEST_PAUSE_S:
            return False
        self.retries += 1
        pause = PAUSE_S * 2 ** (number - 1) * random.uniform(0.5, 1.5)
        await asyncio.sleep(max(error.after_s, pause))
        return True

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, body: Json | None, headers: Mapping[str, str], *, quote: bool
    ) -> AsyncGenerator[httpx2.Response, None]:
        response = None
        try:
            async with self._http.stream(
                method, self.url + path, json=body, headers=dict(headers)
            ) as response:
                if response.status_code != 200:
                    raise await self._refusal(response, path, quote=quote)
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise ServerError(
                        f"The server {self.name} packs its answers though it was asked not to; a proxy in "
                        "front of it may do so.",
                        lasts=True,
                    )
                yield response
        except httpx2.TransportError as error:
            trouble = self._trouble(error)
            trouble.may_retry &= response is None or not response.num_bytes_downloaded
            raise trouble from error
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            raise ServerError(
                f"The server {self.name} cannot be asked ({type(error).__name__}); check remote.url.",
                lasts=True,
            ) from error

    async def _lines(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        rest = bytearray()
        async for part in response.aiter_raw():
            rest += part
            if b"\n" in part:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    yield bytes(line).rstrip(b"\r")
            if len(rest) > MOST_LINE:
                raise ServerError(f"The server {self.name} sends a line without an end.")
        if rest:
            yield bytes(rest)

    async def _read(self, response: httpx2.Response) -> bytes:
        found = bytearray()
        async for part in response.aiter_raw():
            found += part
            if len(found) > MOST_LINE:
                raise ServerError(f"The server {self.name} sends an answer without an end.")
        return bytes(found)

    async def _refusal(self, response: httpx2.Response, path: str, *, quote: bool) -> ServerError:
        status, who = response.status_code, f"The server {self.name}"
        if status in (401, 403):
            return ServerError(
                f"{who} refuses the key, or wants one ({status}). Put it into COMPLETION_LS_API_KEY, or "
                f"into the keyring (`keyring set completion-ls {self.name}`), and stop the daemon "
                "(`completion-ls daemon stop`).",
                lasts=True,
            )
        if status in (404, 405, 501):
            said = await self._said(response) if quote else ""
            return _NoSuchPath(
                f"{who} has no {path}, or not this model ({status}{said}); check remote.url and "
                "remote.model.",
                lasts=True,
            )
        if 300 <= status < 400:
            return ServerError(
                f"{who} sends us elsewhere ({status}), which is not followed: name the right address "
                "in remote.url.",
                lasts=True,
            )
        if status == 429:
            return ServerError(
                f"{who} is busy (429).", may_retry=True, after_s=_wait_s(response.headers)
            )
        if status >= 500:
            return ServerError(
                f"{who} failed ({status}); its log says why.",
                may_retry=True,
                after_s=_wait_s(response.headers),
            )
        said = await self._said(response) if quote else ""
        return Refused(f"{who} refuses a request ({status}{said}).")

    async def _said(self, response: httpx2.Response) -> str:
        found = b""
        try:
            async for part in response.aiter_raw():
                found += part
                if len(found) > MOST_ERROR:
                    break
        except httpx2.TransportError:
            pass
        text = found.decode(errors="replace")
        try:
            value = json.loads(text)
            inner = value.get("error", value)
            text = str(inner.get("message") or inner.get("detail") or text)
        except (ValueError, AttributeError, RecursionError):
            pass
        text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
        return f": {text[:QUOTED]}" if text else ""

    def _silent(self) -> ServerError:
        return ServerError(
            f"The server {self.name} has said nothing for {self._timeout_s:g} s (remote.timeout_s)."
        )

    def _trouble(self, error: httpx2.TransportError) -> ServerError:
        who = f"The server {self.name}"
        if isinstance(error, httpx2.ConnectTimeout):
            return ServerError(
                f"{who} cannot be reached: nobody answers. Is it on, and remote.url right{self._or_http}?",
                lasts=True,
            )
        if isinstance(error, httpx2.ConnectError):
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                return ServerError(
                    f"{who} has a certificate that is not trusted here. Name the authority's file in "
                    "SSL_CERT_FILE, or let the server have another certificate.",
                    lasts=True,
                )
            return ServerError(
                f"{who} cannot be reached ({_reason(error)}). Is it on, and remote.url "
                f"right{self._or_http}?",
                may_retry=True,
                lasts=True,
            )
        if isinstance(error, httpx2.TimeoutException):
            return self._silent()
        # It may have closed a connection that was kept open, at the moment when it was used again.
        return ServerError(f"{who} broke off the connection.", may_retry=True)


class _NoSuchPath(ServerError):
    """The server does not have what was asked for."""


def _wait_s(headers: httpx2.Headers) -> float:
    """What `Retry-After` says: seconds, or a date; 0 where it says nothing."""
    said = headers.get("Retry-After", "")
    if said.isdecimal():
        return float(said[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _reason(error: BaseException) -> str:
    """What the system said of a connection, without what libraries put around it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno and cause.errno > 0:
            return os.strerror(cause.errno).lower()
        if isinstance(cause, socket.gaierror):
            return "nobody knows a machine of that name"
        cause = cause.__cause__ or cause.__context__
    return "no connection"
