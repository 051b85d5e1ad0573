"""Plays one scenario with the MCP project's SDK for Python.

    client.py SCENARIO GENERATION TARGET...

A target is the address of a front's `/mcp`, or a `planck` program, of which `planck mcp serve` is started. The
generation is `legacy` for the protocol with `initialize`, and `auto` for the one without. The models answer what each
scenario expects (http/tests/mcp/judges.rs and tests/tests/e2e/http/mcp.rs). The SDK itself checks every result against
the schema of its tool. A scenario ends with an exception if the server says something else than is expected.
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

TOOLS = ["list_teams", "run_team", "continue", "status", "list_sessions", "answer", "cancel"]
WARM = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
}


def connect(target, generation):
    if not target.startswith("http"):
        server = StdioServerParameters(command=target, args=["mcp", "serve"], env=dict(os.environ))
        return Client(server, mode=generation)
    headers = {"Authorization": f"Bearer {os.environ.get('PLANCK_KEY', 'none')}"}
    http = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(60))
    return Client(streamable_http_client(target, http_client=http), mode=generation)


async def work(client, tool, arguments, **options):
    """Calls a tool, and returns its structured content, which is the same as its text."""
    result = await client.call_tool(tool, arguments, **options)
    assert not result.is_error, result
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def refused(client, tool, arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return result.content[0].text


async def finished(client, found):
    """Waits until the work is over."""
    while found["state"] == "working":
        arguments = {"session": found["session"], "prompt_id": found["prompt_id"]}
        found = await work(client, "status", arguments)
    return found


async def tour(targets, generation):
    async with connect(targets[0], generation) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS, tools
        for tool in tools:
            assert tool.title and tool.description and tool.output_schema and tool.annotations, tool
        teams = await work(client, "list_teams", {})
        assert {"painter", "asker"} <= {team["name"] for team in teams["teams"]}, teams

        told = []

        async def progress(count, total, message):
            told.append((count, message))

        run = {"prompt": "Say hello.", "team": "painter", "request_key": f"hello-{os.getpid()}"}
        where = {"workspace": os.environ["PLANCK_WORKSPACE"]} if "PLANCK_WORKSPACE" in os.environ else {}
        first = await finished(client, await work(client, "run_team", run | where, progress_callback=progress))
        assert (first["state"], first["answer"]) == ("completed", "Hello."), first
        assert told[0][1].startswith(f"session {first['session']},"), told
        assert any("lead calls" in message for _, message in told), told
        assert [count for count, _ in told] == sorted({count for count, _ in told}), told
        # The same call again starts nothing.
        again = await work(client, "run_team", run | where)
        assert again == first, again

        more = {"session": first["session"], "prompt": "Once more."}
        more = await finished(client, await work(client, "continue", more))
        assert more["answer"] == "Again.", more

        warm = {"prompt": "How warm is it?", "output_schema": WARM}
        warm = await finished(client, await work(client, "run_team", warm | where))
        assert warm["output"] == {"city": "Rome", "degrees": 21}, warm

        asked = await finished(client, await work(client, "run_team", {"prompt": "Paint.", "team": "asker"} | where))
        assert asked["state"] == "input_required", asked
        wait = asked["waits"][0]
        answer = {"decision": "allow"} if wait["kind"] == "approval" else {"decision": "answer", "value": "blue"}
        answer |= {"session": asked["session"], "wait": wait["id"], "digest": wait["digest"]}
        painted = await finished(client, await work(client, "answer", answer))
        assert painted["answer"] == "Painted.", painted

        story = await work(client, "run_team", {"prompt": "Tell a story.", "wait_seconds": 1} | where)
        assert story["state"] == "working", story
        ended = {"session": story["session"], "prompt_id": story["prompt_id"], "reason": "enough"}
        ended = await work(client, "cancel", ended)
        assert ended["state"] == "cancelled", ended

        assert "no session" in await refused(client, "status", {"session": "missing"})
        assert "`dir`" in await refused(client, "run_team", {"prompt": "a", "dir": "/"})
    return {"session": story["session"]}


async def lost(targets, generation):
    """A call that its client gives up is found by another client, at another server."""
    where = {"workspace": os.environ["PLANCK_WORKSPACE"]} if "PLANCK_WORKSPACE" in os.environ else {}
    async with connect(targets[0], generation) as client:
        try:
            await client.call_tool("run_team", {"prompt": "Tell a story."} | where, read_timeout_seconds=2)
            raise AssertionError("the call was not cut off")
        except AssertionError:
            raise
        except Exception as error:
            assert "timed out" in str(error).lower() or "timeout" in str(error).lower(), error
    async with connect(targets[-1], generation) as client:
        listed = await work(client, "list_sessions", {"limit": 1})
        found = listed["sessions"][0]
        assert found["first_prompt"] == "Tell a story.", listed
        told = await work(client, "status", {"session": found["session"]})
        while told["state"] == "working":
            told = await work(client, "status", {"session": found["session"]})
        assert told["state"] == "completed", told
        return told


async def killed(targets, generation):
    """The test kills the node of the session while the call waits."""
    where = {"workspace": os.environ["PLANCK_WORKSPACE"]} if "PLANCK_WORKSPACE" in os.environ else {}

    async def progress(count, total, message):
        if "lead calls" in message:
            print("streaming", flush=True)

    async with connect(targets[0], generation) as client:
        run = {"prompt": "Tell a story.", "team": "painter"}
        found = await work(client, "run_team", run | where, progress_callback=progress)
    async with connect(targets[-1], generation) as client:
        return await finished(client, found)


SCENARIOS = {"tour": tour, "lost": lost, "killed": killed}

if __name__ == "__main__":
    _, scenario, generation, *targets = sys.argv
    print(json.dumps(asyncio.run(SCENARIOS[scenario](targets, generation))), flush=True)
