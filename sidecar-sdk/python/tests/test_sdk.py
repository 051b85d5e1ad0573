"""Run with `python3 -m unittest discover sidecar-sdk/python/tests`. Tests that need a server run only if NATS_URL is set."""

import asyncio
import enum
import json
import os
import sys
import time
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Optional
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nats
from planck_sidecar import Context, Conversation, Harness, Sidecar, Skip, Summary
from planck_sidecar.replies import admits
from planck_sidecar.schema import Misfit, fit, schema_of


class Unit(enum.Enum):
    METRE = "m"
    MILE = "mi"


@dataclass
class Place:
    name: str
    unit: Unit = Unit.METRE


def make() -> Sidecar:
    sidecar = Sidecar("test", "1.0.0", at_once=2)

    @sidecar.tool(effect="pure")
    async def add(numbers: Annotated[list[float], "What to add"], note: Optional[str] = None) -> str:
        "Adds numbers."
        return f"{sum(numbers)}{note or ''}"

    @sidecar.tool(effect="pure")
    async def wait(context: Context, seconds: float) -> str:
        context.progress("waiting", 250)
        await asyncio.sleep(seconds)
        return f"{context.agent_id} {context.epoch}"

    @sidecar.tool(effect="pure")
    def place(context: Context) -> str:
        try:
            from opentelemetry import trace
        except ImportError:
            return f"{context.traceparent} None"
        span = trace.get_current_span().get_span_context()
        current = f"{span.trace_id:032x}-{span.span_id:016x}" if span.is_valid else None
        return f"{context.traceparent} {current}"

    @sidecar.tool()
    def block(place: Place) -> str:
        time.sleep(0.05)
        if place.unit is Unit.MILE:
            raise RuntimeError("no miles")
        return place.name

    @sidecar.tool()
    async def leave() -> str:
        sys.exit("bye")

    @sidecar.compactor()
    def head(conversation: Conversation) -> "Summary | Skip":
        keep_from = conversation.cut(2)
        return Skip() if keep_from is None else Summary("short", keep_from)

    return sidecar


class Schemas(unittest.TestCase):
    def test_annotations_give_schemas(self) -> None:
        cases = [
            (Annotated[int, "how often"], {"type": "integer", "description": "how often"}),
            (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),
            (Literal["a", "b"], {"enum": ["a", "b"]}),
            (dict[str, list[bool]], {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "boolean"}}}),
        ]
        for annotation, schema in cases:
            self.assertEqual(schema_of(annotation), schema)
        self.assertEqual(schema_of(Place)["required"], ["name"])
        with self.assertRaises(TypeError):
            schema_of(object)

    def test_values_are_converted_to_their_annotations(self) -> None:
        self.assertEqual(fit(Place, {"name": "a", "unit": "mi"}, "it"), Place("a", Unit.MILE))
        self.assertEqual(fit(list[float], [1, 2.5], "it"), [1.0, 2.5])
        for annotation, value in [(int, 1.5), (int, True), (str, 1), (Literal["a"], "b"), (Place, {}), (Place, {"name": "a", "x": 1})]:
            with self.assertRaises(Misfit):
                fit(annotation, value, "it")


class Replies(unittest.TestCase):
    def test_replies_go_to_inboxes_only(self) -> None:
        for prefix, subject, admitted in [
            ("", "_INBOX.abc.1", True),
            ("", "_INBOX_client.abc", True),
            ("", "_R_.abc", True),
            ("", "_GR_.abcdef.ghijkl._INBOX.abc", True),
            ("", "_GR_.abcdef.ghijkl.cmd.session.vic.delete", False),
            ("", "cmd.session.vic.delete", False),
            ("", "$KV.planck_registry.store", False),
            ("", "_INBOX", False),
            ("", "_INBOX.*", False),
            ("", "_INBOX.a b", False),
            ("", "", False),
            ("p2", "p2.agent.a1", False),
            ("p2", "replies.team.x", True),
            ("p2", "replies.teams.x", False),
            ("_INBOX", "_INBOX.cmd.session.vic.delete", False),
        ]:
            self.assertEqual(admits(subject, prefix, ["replies.team"]), admitted, subject)


class Handler(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.harness = Harness(make())

    async def test_calls_are_answered(self) -> None:
        self.assertEqual((await self.harness.call("add", {"numbers": [1, 2]})).ok, "3.0")
        self.assertIn("`numbers`[1] must be of type number", (await self.harness.call("add", {"numbers": [1, "b"]})).error or "")
        unknown = await self.harness.call("add", {"numbers": [], "more": 1})
        self.assertIn("`more` is not known in the arguments; known are: numbers, note", unknown.error or "")
        self.assertEqual((await self.harness.call("block", {"place": {"name": "here"}})).ok, "here")
        failed = await self.harness.call("block", {"place": {"name": "a", "unit": "mi"}})
        self.assertEqual(failed.error, "RuntimeError: no miles")
        self.assertEqual((await self.harness.call("leave", {})).error, "RuntimeError: the tool called sys.exit('bye')")
        answer = await self.harness.call("wait", {"seconds": 0}, epoch=3)
        self.assertEqual((answer.ok, answer.progress), ("agent 3", [{"message": "waiting", "percent": 100.0}]))

    async def test_wrong_requests_are_errors(self) -> None:
        for body in [b"{", b"[]", b"\xff", b"{}", json.dumps({"v": 1, "call_id": "c"}).encode()]:
            self.assertIn("malformed", (await self.harness.send("add", body)).error or "")
        await self.harness.call("add", {"numbers": []}, epoch=5)
        self.assertIn("stale epoch", (await self.harness.call("add", {"numbers": []}, epoch=4)).error or "")
        self.assertEqual((await self.harness.call("add", {"numbers": []}, epoch=4, agent_id="other")).ok, "0")

    async def test_agent_that_calls_is_not_forgotten(self) -> None:
        with mock.patch("planck_sidecar.request_handler.AGENTS", 2):
            for agent in ["a", "b", "a", "c"]:
                await self.harness.call("add", {"numbers": []}, epoch=3, agent_id=agent)
            self.assertIn("stale epoch", (await self.harness.call("add", {"numbers": []}, epoch=2, agent_id="a")).error or "")
            self.assertEqual((await self.harness.call("add", {"numbers": []}, epoch=2, agent_id="b")).ok, "0")

    async def test_running_call_is_not_run_twice_and_ends(self) -> None:
        first = asyncio.create_task(self.harness.call("wait", {"seconds": 60}, call_id="c"))
        await asyncio.sleep(0)
        self.assertEqual((await self.harness.call("wait", {"seconds": 60}, call_id="c")).error, "in progress")
        self.harness.cancel("c")
        self.assertIn("cancelled", (await first).error or "")
        late = await self.harness.call("wait", {"seconds": 60}, call_id="c", deadline_ms=20)
        self.assertIn("out of time", late.error or "")

    async def test_number_of_running_and_waiting_calls_is_bounded(self) -> None:
        calls = [asyncio.create_task(self.harness.call("wait", {"seconds": 60}, call_id=f"c{at}")) for at in range(35)]
        refused, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        self.assertEqual(["busy" in (task.result().error or "") for task in refused], [True])
        for at in range(35):
            self.harness.cancel(f"c{at}")
        await asyncio.wait(calls)

    async def test_call_is_part_of_its_callers_trace(self) -> None:
        trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        request = {"v": 1, "call_id": "c", "args": {}, "agent_id": "a", "session_id": "s", "team_id": "t", "epoch": 1, "deadline_ms": 9000}

        async def report(_: object) -> None:
            pass

        reply = await self.harness.handler.tool("place", json.dumps(request).encode(), report, f"00-{trace}-{span}-01")
        self.assertEqual(reply["ok"].split()[0], f"00-{trace}-{span}-01")
        self.assertEqual((await self.harness.call("place", {})).ok, "None None")
        try:
            import opentelemetry  # noqa: F401
        except ImportError:
            self.skipTest("opentelemetry is not installed: there is no current span")
        self.assertEqual(reply["ok"].split()[1], f"{trace}-{span}")

    async def test_compactor_returns_a_summary_or_skips(self) -> None:
        parts = [[{"type": "text", "text": "a"}], [{"type": "tool_call", "call_id": "x"}], [{"type": "tool_result", "call_id": "x"}]]
        messages = [{"id": 7 + at, "role": "user", "content": content} for at, content in enumerate([*parts, parts[0]])]
        self.assertEqual(await self.harness.compact("head", messages), {"compact": {"summary": "short", "keep_from": 8}})
        self.assertEqual(await self.harness.compact("head", messages[:2]), {"skip": True})


class Waiting(unittest.IsolatedAsyncioTestCase):
    async def test_sidecar_without_a_server_stops_at_once(self) -> None:
        stop = asyncio.Event()
        with self.assertLogs("planck_sidecar", "WARNING") as logs:
            serving = asyncio.create_task(make().serve(stop, "nats://user:secret@127.0.0.1:1"))
            await asyncio.sleep(1.5)
            stop.set()
            await asyncio.wait_for(serving, 1)
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertIn("nats://127.0.0.1:1", logs.output[0])

    async def test_each_of_two_causes_is_logged_once(self) -> None:
        async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        stop = asyncio.Event()
        with self.assertLogs("planck_sidecar", "WARNING") as logs:
            serving = asyncio.create_task(make().serve(stop, f"nats://127.0.0.1:1,nats://127.0.0.1:{port}"))
            await asyncio.sleep(3)
            stop.set()
            await asyncio.wait_for(serving, 1)
        server.close()
        self.assertGreater(len(logs.output), 1, logs.output)
        self.assertEqual(len(logs.output), len(set(logs.output)), logs.output)


class Leaving(unittest.IsolatedAsyncioTestCase):
    async def test_queue_groups_are_left_before_the_server_confirms(self) -> None:
        said: list[str] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"s","version":"2.12.0","proto":1,"headers":true,"max_payload":1048576}\r\n')
            while line := await reader.readline():
                said.append(line.split()[0].decode())
                if said[-1] == "PING":
                    writer.write(b"PONG\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        stop, sidecar = asyncio.Event(), make()
        serving = asyncio.create_task(sidecar.serve(stop, f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        while "PUB" not in said:  # the hello
            await asyncio.sleep(0.01)
        said.clear()
        stop.set()
        await asyncio.wait_for(serving, 10)
        server.close()
        # The first PING may overtake what waits in a buffer. The library sends each UNSUB once more.
        second = [at for at, word in enumerate(said) if word == "PING"][1]
        discovery, offered = 9, len(sidecar.tools) + len(sidecar.compactors)
        self.assertEqual(said[:second].count("UNSUB"), discovery + offered, said)


@unittest.skipUnless(os.environ.get("NATS_URL"), "NATS_URL names no server")
class OverNats(unittest.IsolatedAsyncioTestCase):
    async def test_sidecar_serves_and_leaves_cleanly(self) -> None:
        client = await nats.connect(os.environ["NATS_URL"])
        news = await client.subscribe("sidecar.test")
        stop = asyncio.Event()
        serving = asyncio.create_task(make().serve(stop))
        hello = json.loads((await news.next_msg(20)).data)
        info = json.loads((await client.request("$SRV.INFO.test", timeout=20)).data)
        self.assertEqual((hello["type"], hello["instance"], info["metadata"]["planck"]), ("hello", info["id"], "1"))
        self.assertEqual({endpoint["queue_group"] for endpoint in info["endpoints"]}, {"test"})

        call = {"v": 1, "call_id": "c", "args": {"seconds": 1}, "agent_id": "a", "session_id": "s", "team_id": "t"}
        body = json.dumps({**call, "epoch": 1, "deadline_ms": 20_000}).encode()
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        await client.publish("tool.test.wait", body, reply=inbox)
        self.assertIn("progress", json.loads((await replies.next_msg(20)).data))
        stop.set()
        self.assertEqual(json.loads((await news.next_msg(20)).data)["type"], "bye")
        self.assertEqual(json.loads((await replies.next_msg(20)).data)["ok"], "a 1")
        await asyncio.wait_for(serving, 20)
        with self.assertRaises(nats.errors.NoRespondersError):
            await client.request("tool.test.wait", body)
        await client.close()


if __name__ == "__main__":
    unittest.main()
