"""Gives a task to a team through `planck mcp serve`, and prints what the team says.

    pip install mcp==2.3.0
    python3 examples/mcp/client.py "Write the notes for the next release." --team release-notes
"""

import argparse
import asyncio
import os

from mcp import Client
from mcp.client.stdio import StdioServerParameters


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    # A mistake in the arguments has no state.
    return result.structured_content or {"state": "refused", "answer": result.content[0].text}


async def run(prompt, team):
    # The SDK passes only a few variables on by default, and no key of a provider.
    server = StdioServerParameters(command="planck", args=["mcp", "serve"], env=dict(os.environ))
    async with Client(server) as client:
        task = {"prompt": prompt} | ({"team": team} if team else {})
        work = await call(client, "run_team", **task)
        # A call answers within a minute. The work goes on, and `status` waits for it.
        while work["state"] == "working":
            work = await call(client, "status", session=work["session"])
        print(work.get("answer") or work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt")
    parser.add_argument("--team")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.prompt, arguments.team))
