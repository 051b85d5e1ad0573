"""Gives a task to a team through `planck mcp serve`, and prints what the team says.

    pip install mcp==2.3.0
    python3 examples/mcp/client.py "Write the notes for the next release." --team examples/mcp
"""

import argparse
import asyncio

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def run(prompt, team):
    server = StdioServerParameters(command="planck", args=["mcp", "serve"])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        task = {"prompt": prompt, **({"team": team} if team else {})}
        result = (await session.call_tool("run_team", task)).structured_content
        # A call answers within a minute. The work goes on, and `status` waits for it.
        while result["state"] == "working":
            result = (await session.call_tool("status", {"session": result["session"]})).structured_content
        print(result.get("answer") or result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt")
    parser.add_argument("--team")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.prompt, arguments.team))
