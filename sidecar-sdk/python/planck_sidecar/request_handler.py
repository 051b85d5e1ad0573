"""Answers requests, independently of how they arrive. Tracks the running calls, checks who may call, and handles calls that
are repeated, cancelled, late or that fail."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable, Union

from .schema import Misfit, fit_object, object_of
from .trace import within

Json = dict[str, Any]
Report = Callable[[Json], Awaitable[None]]

IN_PROGRESS = "in progress"
# The number of agents whose epoch is remembered. The agent whose last call is the longest ago is forgotten first.
AGENTS = 10_000
# How many calls may wait for each one that runs.
WAITING = 16
# How long a cancelled call has to end by itself, in seconds.
GRACE = 1.0
# The maximum length of a progress message in characters, and the number of reports that may wait to be sent.
LONGEST_REPORT = 4000
REPORTS = 64

log = logging.getLogger("planck_sidecar")


@dataclass
class Context:
    """The context of one call. A tool with a parameter of this type gets it."""

    call_id: str
    """The id of the call. It stays the same when the call is sent again, so an idempotent tool can use it."""
    agent_id: str
    session_id: str
    team_id: str | None
    epoch: int | None
    deadline: float
    cancelled: asyncio.Event
    """Set when the answer is no longer needed. The call's task is cancelled one second later."""
    _reports: asyncio.Queue[Json] = field(repr=False)
    _loop: asyncio.AbstractEventLoop = field(repr=False)
    traceparent: str | None = None
    """The caller's place in its trace, as W3C Trace Context writes it. If `opentelemetry` is installed, it is already the
    current span."""

    def time_left(self) -> float:
        """Returns how many seconds the caller still waits for the answer."""
        return max(0.0, self.deadline - self._loop.time())

    def progress(self, message: str, percent: float | None = None) -> None:
        """Reports progress, which restarts the idle time-out. If too many reports wait, further ones are left out. May be called
        from any thread."""
        said: Json = {"message": str(message)[:LONGEST_REPORT]}
        if percent is not None:
            said["percent"] = min(100.0, max(0.0, float(percent)))
        self._loop.call_soon_threadsafe(self._report, {"v": 1, "progress": said})

    def _report(self, said: Json) -> None:
        if not self._reports.full():
            self._reports.put_nowait(said)


@dataclass
class Conversation:
    """The conversation to compact, with its messages in the form of the protocol."""

    model: Json
    messages: list[Json]
    tokens: int

    def cut(self, keep: int) -> int | None:
        """Returns the id at which to cut, so that at least the last `keep` messages are kept, and every tool's result with its
        call. Returns `None` if the cut would remove nothing."""
        for at in range(len(self.messages) - max(keep, 1), 0, -1):
            parts = [part for message in self.messages[at:] for part in message["content"]]
            calls = {part["call_id"] for part in parts if part["type"] == "tool_call"}
            if all(part["call_id"] in calls for part in parts if part["type"] == "tool_result"):
                return int(self.messages[at]["id"])
        return None


@dataclass
class Summary:
    """Replaces every message before `keep_from`, which is the id of the first message that is kept."""

    summary: str
    keep_from: int


class Skip:
    """Leaves the conversation as it is."""


Compactor = Callable[[Conversation], Union[Summary, Skip, Awaitable[Union[Summary, Skip]]]]


class Tool:
    def __init__(self, function: Callable[..., Any], name: str, description: str, effect: str, timeout: float) -> None:
        self.function, self.name = function, name
        hints = _hints(function)
        parameters = inspect.signature(function).parameters
        taken = {key: hints.get(key, parameter.annotation) for key, parameter in parameters.items()}
        self.context = next((key for key, hint in taken.items() if hint is Context), None)
        empty = inspect.Parameter.empty
        self.fields = {key: (hint, parameters[key].default is empty) for key, hint in taken.items() if key != self.context}
        self.metadata = {
            "kind": "tool",
            "description": description,
            "parameters": json.dumps(object_of(self.fields)),
            "effect": effect,
            "timeout_ms": str(int(timeout * 1000)),
        }

    async def run(self, context: Context, args: Any) -> str:
        given = fit_object(self.fields, args, "the arguments")
        if self.context:
            given[self.context] = context
        return str(await _call(self.function, **given))


class Refused(Exception):
    """A request that is answered with an error."""


class RequestHandler:
    def __init__(self, tools: dict[str, Tool], compactors: dict[str, Compactor], at_once: int) -> None:
        self.tools, self.compactors = tools, compactors
        self.most = at_once * (WAITING + 1)
        self.slots = asyncio.Semaphore(at_once)
        self.running: dict[str, asyncio.Event] = {}
        self.epochs: OrderedDict[str, int] = OrderedDict()

    def cancel(self, call_id: Any) -> None:
        if isinstance(call_id, str) and call_id in self.running:
            self.running[call_id].set()

    def cancel_all(self) -> None:
        for cancelled in self.running.values():
            cancelled.set()

    async def tool(self, name: str, body: bytes, report: Report, traceparent: str | None = None) -> Json:
        try:
            request = _parse(body, "args", "team_id", "epoch")
            self._admit(request["agent_id"], request["epoch"])
            work = lambda context: self.tools[name].run(context, request["args"])  # noqa: E731
            return {"v": 1, "ok": await self._perform(request, report, work, traceparent)}
        except Refused as refused:
            return {"v": 1, "error": str(refused)}

    async def compact(self, name: str, body: bytes, traceparent: str | None = None) -> Json:
        try:
            request = _parse(body, "model", "messages", "tokens")
            conversation = Conversation(request["model"], request["messages"], request["tokens"])
            said = await self._perform(request, None, lambda _: _call(self.compactors[name], conversation), traceparent)
        except Refused as refused:
            return {"v": 1, "error": str(refused)}
        if isinstance(said, Summary):
            return {"v": 1, "compact": {"summary": said.summary, "keep_from": said.keep_from}}
        return {"v": 1, "skip": True}

    def _admit(self, agent: str, epoch: int) -> None:
        highest = self.epochs.get(agent, epoch)
        if epoch < highest:
            raise Refused(f"stale epoch {epoch}: agent {agent} has called with {highest}")
        self.epochs[agent] = epoch
        self.epochs.move_to_end(agent)
        if len(self.epochs) > AGENTS:
            self.epochs.popitem(last=False)

    async def _perform(
        self, request: Json, report: Report | None, work: Callable[[Context], Awaitable[Any]], traceparent: str | None
    ) -> Any:
        call_id = request["call_id"]
        if call_id in self.running:
            raise Refused(IN_PROGRESS)
        if len(self.running) >= self.most:
            raise Refused(f"busy: {len(self.running)} calls run or wait here; try again later")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request["deadline_ms"] / 1000, 86_400)
        reports: asyncio.Queue[Json] = asyncio.Queue(REPORTS)
        cancelled = self.running[call_id] = asyncio.Event()
        ids = (call_id, request["agent_id"], request["session_id"], request.get("team_id"), request.get("epoch"))
        context = Context(*ids, deadline, cancelled, reports, loop, traceparent)
        try:
            return await self._watch(context, asyncio.create_task(self._in_slot(context, work)), report)
        finally:
            del self.running[call_id]

    async def _in_slot(self, context: Context, work: Callable[[Context], Awaitable[Any]]) -> Any:
        async with self.slots:
            with within(context.traceparent):
                try:
                    return await work(context)
                except SystemExit as error:  # it would end the event loop, and with it the sidecar
                    raise RuntimeError(f"the tool called sys.exit({error.code!r})") from error

    async def _watch(self, context: Context, task: asyncio.Task[Any], report: Report | None) -> Any:
        cancelling = asyncio.create_task(context.cancelled.wait())
        telling = asyncio.create_task(_tell(context._reports, report))
        try:
            await asyncio.wait({task, cancelling}, timeout=context.time_left(), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and context.cancelled.is_set():
                await asyncio.wait({task}, timeout=GRACE)
            if not task.done():
                # A task that suppresses its cancellation is left running.
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE)
                cause = "cancelled: the answer was no longer wanted"
                raise Refused(cause if context.cancelled.is_set() else "out of time: the call's deadline has passed")
            await context._reports.join() if report else None
            return _result(task)
        finally:
            cancelling.cancel()
            telling.cancel()


def _result(task: asyncio.Task[Any]) -> Any:
    try:
        return task.result()
    except Misfit as misfit:
        raise Refused(f"the arguments do not fit: {misfit}") from misfit
    except asyncio.CancelledError:
        raise Refused("cancelled") from None
    except Exception as error:
        log.debug("a tool failed", exc_info=error)
        raise Refused(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error


async def _tell(reports: asyncio.Queue[Json], report: Report | None) -> None:
    while True:
        said = await reports.get()
        try:
            if report:
                await report(said)
        finally:
            reports.task_done()


async def _call(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Calls a function. A plain function runs in a thread, so that it does not block the event loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **given)
    return await asyncio.to_thread(function, *args, **given)


def _hints(function: Callable[..., Any]) -> Json:
    from typing import get_type_hints

    return get_type_hints(function, include_extras=True)


_KINDS: dict[str, type] = {
    "call_id": str, "agent_id": str, "session_id": str, "team_id": str, "epoch": int, "deadline_ms": int,
    "args": object, "model": dict, "messages": list, "tokens": int,
}  # fmt: skip


def _parse(body: bytes, *more: str) -> Json:
    try:
        request = json.loads(body)
    except ValueError as error:
        raise Refused(f"malformed request: {error}") from error
    if not isinstance(request, dict):
        raise Refused("malformed request: it is no object")
    for key in ("call_id", "agent_id", "session_id", "deadline_ms", *more):
        if not isinstance(request.get(key, Refused), _KINDS[key]) or request.get(key, Refused) is Refused:
            raise Refused(f"malformed request: `{key}` is missing or of the wrong type")
    if request.get("v") != 1:
        raise Refused("the request has another version of the protocol; this sidecar speaks 1")
    return request
