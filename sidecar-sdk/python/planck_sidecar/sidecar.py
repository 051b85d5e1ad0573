"""A sidecar: its tools and compactors, and how it serves them over NATS."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import ssl
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Coroutine, Mapping, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from .request_handler import Compactor, RequestHandler, Tool
from .replies import ReplyGuard
from .trace import HEADER

log = logging.getLogger("planck_sidecar")

T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
# How long the server may take for a confirmation, in seconds.
CONFIRM = 5.0
# The maximum number of different connection errors that are logged before the next success.
CAUSES = 32


class Sidecar:
    """The tools and compactors that a program offers. All instances of one sidecar have the same name, and share its calls."""

    def __init__(self, name: str, version: str, *, description: str = "", at_once: int = 64, drain_timeout: float = 25.0) -> None:
        if not _ID.match(name):
            raise ValueError(f"malformed sidecar name {name!r}: expected 1 to 64 of A-Z a-z 0-9 _ -")
        if not re.match(r"\d+\.\d+\.\d+\Z", version):
            raise ValueError(f"malformed version {version!r}: expected three numbers as in 1.0.0")
        self.name, self.version, self.description = name, version, description
        self.at_once, self.drain_timeout = max(1, at_once), drain_timeout
        self.tools: dict[str, Tool] = {}
        self.compactors: dict[str, Compactor] = {}

    def tool(
        self, *, name: str | None = None, effect: str = "mutating", timeout: float = 300.0, description: str | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Makes a function a tool. Its annotations give the schema, and its doc string the description for the model. Its result
        is the answer, and an exception becomes an error. `effect` is `pure`, `idempotent` or `mutating`; `timeout` is how long
        it may be silent, in seconds."""
        if effect not in ("pure", "idempotent", "mutating"):
            raise ValueError(f"malformed effect {effect!r}: expected pure, idempotent or mutating")

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            told = description or " ".join((function.__doc__ or "").split())
            made = Tool(function, self._fresh(name or function.__name__, self.tools), told, effect, timeout)
            self.tools[made.name] = made
            return function

        return add

    def compactor(self, *, name: str | None = None) -> Callable[[Compactor], Compactor]:
        """Makes a function a compactor. It takes a `Conversation` and returns a `Summary` or a `Skip`. Agents refer to it as
        `<sidecar>.<name>`."""

        def add(function: Compactor) -> Compactor:
            self.compactors[self._fresh(name or function.__name__, self.compactors)] = function
            return function

        return add

    def _fresh(self, name: str, taken: dict[str, Any]) -> str:
        if not _ID.match(name) or name in taken:
            raise ValueError(f"the name {name!r} is taken, or not 1 to 64 of A-Z a-z 0-9 _ -")
        return name

    def handler(self) -> RequestHandler:
        return RequestHandler(self.tools, self.compactors, self.at_once)

    def run(self) -> None:
        """Connects with the settings from the environment (`NATS_URL`, `NATS_CREDS`, `NATS_NKEY`, and with the prefix
        `PLANCK_NATS_` the variables `TLS_CA`, `TLS_CERT`, `TLS_KEY`, `SUBJECT_PREFIX`, `INBOX_PREFIX`, `REPLY_PREFIXES`) and
        serves until SIGTERM or ctrl-c. A second signal ends it at once. Log lines go to standard error, unless the program has
        set up logging."""
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        asyncio.run(self._run())

    async def _run(self) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def told() -> None:
            if stop.is_set():
                os._exit(1)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)
        await self.serve(stop)

    async def serve(self, stop: asyncio.Event, url: str | None = None) -> None:
        """Serves until the event is set, then takes no more calls and finishes those that run."""
        if not self.tools and not self.compactors:
            raise ValueError("nothing to offer: add a tool or a compactor")
        serving: list[_Serving] = []

        async def reconnected() -> None:
            for each in serving:
                await each.tell("hello")

        client = await _unless(stop, _connect(self.name, url, reconnected))
        if client is None:
            return
        try:
            serving.append(_Serving(self, client, os.environ.get("PLANCK_NATS_SUBJECT_PREFIX", "")))
            await serving[0].until(stop)
        finally:
            await client.close()


async def _unless(stop: asyncio.Event, wanted: Coroutine[Any, Any, T]) -> T | None:
    """Returns the result of `wanted`, or `None` if the event is set first."""
    work, stopped = asyncio.ensure_future(wanted), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        stopped.cancel()
        # The client library mistakes a cancellation while it closes a broken connection for its own, and continues.
        while not work.done():
            work.cancel()
            await asyncio.wait((work,), timeout=0.1)


async def _connect(name: str, url: str | None, reconnected: Callable[[], Any]) -> Client:
    servers = url or os.environ.get("NATS_URL") or "nats://127.0.0.1:4222"
    said: set[str] = set()

    async def troubled(error: Exception) -> None:
        """Logs each cause only once until the client is connected, because two causes can alternate for hours."""
        text = f"NATS at {_shown(servers)}: {error or type(error).__name__}; trying again"
        if text not in said and len(said) < CAUSES:
            said.add(text)
            log.warning("%s", text)

    async def connected() -> None:
        said.clear()
        await reconnected()

    options: dict[str, Any] = {
        "servers": servers.split(","),
        "error_cb": troubled,
        "name": f"sidecar {name}",
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.25,
        "ping_interval": 2,
        "reconnected_cb": connected,
    }
    if os.environ.get("PLANCK_NATS_INBOX_PREFIX"):
        options["inbox_prefix"] = os.environ["PLANCK_NATS_INBOX_PREFIX"]
    options |= _tls(os.environ)
    if os.environ.get("NATS_CREDS"):
        options["user_credentials"] = os.environ["NATS_CREDS"]
    if nkey := os.environ.get("NATS_NKEY"):
        # A seed consists of letters and digits; any other text is the path of a file with the seed.
        options["nkeys_seed_str"] = Path(nkey).read_text().strip() if "/" in nkey or "." in nkey else nkey
    client = await nats.connect(**options)
    said.clear()
    return client


def _shown(servers: str) -> str:
    """Returns the addresses without users and passwords."""
    return re.sub(r"//[^@/]*@", "//", servers)


def _tls(environment: Mapping[str, str]) -> dict[str, Any]:
    ca, certificate, key = (environment.get(f"PLANCK_NATS_TLS_{name}") for name in ("CA", "CERT", "KEY"))
    if not ca and not certificate:
        return {}
    context = ssl.create_default_context(cafile=ca or None)
    if certificate:
        context.load_cert_chain(certificate, key or None)
    return {"tls": context}


class _Serving:
    """Serves one instance. It answers discovery itself, because the client library's service loses messages when it stops."""

    def __init__(self, sidecar: Sidecar, client: Client, prefix: str) -> None:
        self.sidecar, self.client, self.handler = sidecar, client, sidecar.handler()
        self.id, self.prefix, self.started = uuid.uuid4().hex, prefix, datetime.now(timezone.utc)
        self.tasks: set[asyncio.Task[None]] = set()
        self.endpoints: list[dict[str, Any]] = []
        more = os.environ.get("PLANCK_NATS_REPLY_PREFIXES", "").split(",") + [os.environ.get("PLANCK_NATS_INBOX_PREFIX", "")]
        self.replies = ReplyGuard(prefix, [inbox.strip() for inbox in more if inbox.strip()])

    async def until(self, stop: asyncio.Event) -> None:
        name = self.sidecar.name
        await self.client.subscribe(self._on(f"cancel.{name}"), cb=self._cancel)
        offered = [self._endpoint("tool", made.name, made.metadata) for made in self.sidecar.tools.values()]
        compactor = {"kind": "compactor", "timeout_ms": "120000"}
        offered += [self._endpoint("compact", made, compactor) for made in self.sidecar.compactors]
        requests = [await self._serve(endpoint) for endpoint in offered]
        verbs = ("PING", "INFO", "STATS")
        subjects = [f"$SRV.{verb}{rest}" for verb in verbs for rest in ("", f".{name}", f".{name}.{self.id}")]
        discovery = [await self.client.subscribe(subject, cb=self._discover) for subject in subjects]
        await self.client.flush()
        await self.tell("hello")
        server = self.client.connected_url
        log.info("serving %s %s at %s", name, self.sidecar.version, _shown(server.geturl()) if server else "NATS")
        await stop.wait()
        await self._leave(requests, discovery)

    async def _leave(self, requests: list[Subscription], discovery: list[Subscription]) -> None:
        log.info("%s takes no more calls and finishes those that run", self.sidecar.name)
        for subscription in discovery:
            await subscription.unsubscribe()
        await self.tell("bye")
        for subscription in requests:
            # `drain` sends its PING before its UNSUB, which waits in a buffer. So the answer to that PING would not say that all
            # calls have come, and the library drops those that come later. With a flush in between, the UNSUB is sent first.
            await self.client._send_unsubscribe(subscription._id)
        await _in_time(CONFIRM, self.client.flush())
        await _in_time(CONFIRM, *(subscription.drain() for subscription in requests))
        if self.tasks and (await asyncio.wait(self.tasks, timeout=self.sidecar.drain_timeout))[1]:
            self.handler.cancel_all()
            await asyncio.wait(self.tasks, timeout=3.0)
        await _in_time(CONFIRM, self.client.flush())

    def _on(self, subject: str) -> str:
        return f"{self.prefix}.{subject}" if self.prefix else subject

    def _endpoint(self, first: str, name: str, metadata: dict[str, str]) -> dict[str, Any]:
        subject = self._on(f"{first}.{self.sidecar.name}.{name}")
        return {"name": name, "subject": subject, "queue_group": self.sidecar.name, "metadata": metadata}

    async def _serve(self, endpoint: dict[str, Any]) -> Subscription:
        counts = {"num_requests": 0, "num_errors": 0, "processing_time": 0}
        self.endpoints.append({"info": endpoint, "counts": counts})

        async def take(message: Msg) -> None:
            if self.replies.admits(message.subject, message.reply):
                task = asyncio.create_task(self._answer(endpoint, counts, message))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

        return await self.client.subscribe(endpoint["subject"], queue=self.sidecar.name, cb=take)

    async def _answer(self, endpoint: dict[str, Any], counts: dict[str, int], message: Msg) -> None:
        began = time.monotonic_ns()

        async def report(said: dict[str, Any]) -> None:
            await message.respond(json.dumps(said).encode())

        traceparent = (message.headers or {}).get(HEADER)
        if endpoint["metadata"]["kind"] == "tool":
            reply = await self.handler.tool(endpoint["name"], message.data, report, traceparent)
        else:
            reply = await self.handler.compact(endpoint["name"], message.data, traceparent)
        body = json.dumps(reply).encode()
        if len(body) > self.client.max_payload:
            reply = {"v": 1, "error": f"the answer has {len(body)} bytes, and NATS carries at most {self.client.max_payload}"}
            body = json.dumps(reply).encode()
        await message.respond(body)
        counts["num_requests"] += 1
        counts["num_errors"] += "error" in reply
        counts["processing_time"] += time.monotonic_ns() - began

    async def _cancel(self, message: Msg) -> None:
        try:
            self.handler.cancel(json.loads(message.data).get("call_id"))
        except (ValueError, AttributeError):
            log.debug("ignored a malformed cancel request")

    async def _discover(self, message: Msg) -> None:
        verb = message.subject.split(".")[1]
        said: dict[str, Any] = {
            "type": f"io.nats.micro.v1.{verb.lower()}_response",
            "name": self.sidecar.name,
            "id": self.id,
            "version": self.sidecar.version,
            "metadata": {"planck": "1", "prefix": self.prefix},
        }
        if verb == "INFO":
            said |= {"description": self.sidecar.description, "endpoints": [endpoint["info"] for endpoint in self.endpoints]}
        if verb == "STATS":
            said |= {"started": self.started.isoformat(), "endpoints": [self._stats(**endpoint) for endpoint in self.endpoints]}
        if self.replies.admits(message.subject, message.reply):
            await message.respond(json.dumps(said).encode())

    def _stats(self, info: dict[str, Any], counts: dict[str, int]) -> dict[str, Any]:
        plain = {key: value for key, value in info.items() if key != "metadata"}
        average = counts["processing_time"] // max(1, counts["num_requests"])
        return {**plain, **counts, "average_processing_time": average, "last_error": ""}

    async def tell(self, what: str) -> None:
        said = {"v": 1, "type": what, "sidecar": self.sidecar.name, "instance": self.id}
        await self.client.publish(self._on(f"sidecar.{self.sidecar.name}"), json.dumps(said).encode())


async def _in_time(seconds: float, *waits: Any) -> None:
    try:
        await asyncio.wait_for(asyncio.gather(*waits), seconds)
    except (asyncio.TimeoutError, nats.errors.Error) as error:
        log.warning("NATS did not confirm in time: %r", error)
