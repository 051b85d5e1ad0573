"""Calls a sidecar's tools in a test, without a node and without NATS. The calls run through the same code that answers a node."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sidecar import Sidecar


@dataclass
class Answer:
    ok: str | None
    error: str | None
    progress: list[dict[str, Any]]


class Harness:
    """A sidecar under test. Create it inside a running event loop."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.handler = sidecar.handler()
        self._calls = itertools.count()

    async def call(self, tool: str, args: Any, **said: Any) -> Answer:
        """Calls a tool. `call_id`, `agent_id`, `epoch` and `deadline_ms` can be set by keyword."""
        request = {
            "v": 1, "call_id": f"call-{next(self._calls)}", "tool": tool, "args": args, "agent_id": "agent",
            "session_id": "session", "team_id": "team", "epoch": 1, "deadline_ms": 60_000, **said,
        }  # fmt: skip
        return await self.send(tool, json.dumps(request).encode())

    async def send(self, tool: str, body: bytes) -> Answer:
        """Sends a body unchanged."""
        progress: list[dict[str, Any]] = []

        async def report(said: dict[str, Any]) -> None:
            progress.append(said["progress"])

        reply = await self.handler.tool(tool, body, report)
        return Answer(reply.get("ok"), reply.get("error"), progress)

    async def compact(self, compactor: str, messages: list[dict[str, Any]], window: int = 100_000) -> dict[str, Any]:
        """Compacts a conversation, and returns the reply without `v`."""
        request = {
            "v": 1, "call_id": f"call-{next(self._calls)}", "compactor": compactor, "messages": messages, "agent_id": "agent",
            "model": {"id": "model", "context_window": window}, "tokens": len(json.dumps(messages)) // 4,
            "session_id": "session", "deadline_ms": 60_000,
        }  # fmt: skip
        reply = await self.handler.compact(compactor, json.dumps(request).encode())
        return {key: value for key, value in reply.items() if key != "v"}

    def cancel(self, call_id: str) -> None:
        self.handler.cancel(call_id)
