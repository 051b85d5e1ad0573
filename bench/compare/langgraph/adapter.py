"""An agent of LangGraph whose state is saved by its SQLite checkpointer after every step, as a contender of tools/compare."""

import asyncio
import importlib.metadata
import os
import sys
import time
import uuid

MODEL, DIR, STORE = os.environ.get("COMPARE_MODEL"), os.environ.get("COMPARE_DIR"), os.environ.get("COMPARE_STORE")
HOLD = float(os.environ.get("COMPARE_HOLD", "0"))
# How many steps of the graph a turn may have.
MOST_STEPS = 1_000


def tell(*words):
    print(*words, flush=True)


def book(number: str) -> str:
    """Books a number."""
    note("begin " + number)
    time.sleep(HOLD)
    note("effect " + number)
    time.sleep(HOLD)
    return "booked " + number


def note(line):
    with open(os.path.join(DIR, "ledger"), "a") as ledger:
        ledger.write(line + "\n")


def read(path: str, offset: int, limit: int) -> str:
    """Reads lines of a file."""
    with open(os.path.join(DIR, path)) as file:
        return "".join(file.readlines()[offset : offset + limit])


def agent_of(checkpointer, tools):
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="book", base_url=MODEL, api_key="none", streaming=True)
    return create_agent(model, tools, system_prompt="Be brief.", checkpointer=checkpointer)


def thread(name):
    return {"configurable": {"thread_id": name}, "recursion_limit": MOST_STEPS}


async def turn(agent, text, config):
    """Gives a prompt, or goes on with what was interrupted if there is none, and returns the answer."""
    messages = {"messages": [{"role": "user", "content": text}]} if text else None
    async for _ in agent.astream(messages, config, stream_mode="messages", durability="sync"):
        pass
    return await last_text(agent, config)


async def last_text(agent, config):
    state = await agent.aget_state(config)
    return " ".join(state.values["messages"][-1].text.split())


async def cost(agent, agents, turns):
    while True:
        tell("ready")
        if not await asyncio.to_thread(sys.stdin.readline):
            return
        names = [uuid.uuid4().hex for _ in range(agents)]
        for _ in range(turns):
            await asyncio.gather(*(turn(agent, "Read the lines.", thread(name)) for name in names))
        tell("done")


async def main():
    what, *rest = sys.argv[1:]
    if what == "version":
        tell("version", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("langgraph", "langchain", "langgraph-checkpoint-sqlite")))
        return
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(os.path.join(STORE, "checkpoints.db")) as saver:
        config = thread("compare")
        if what == "cost":
            await cost(agent_of(saver, [read]), int(rest[1]), int(rest[2]))
        elif what == "prompt":
            tell("answer", await turn(agent_of(saver, [book]), rest[0], config))
        elif what == "resume":
            agent = agent_of(saver, [book])
            state = await agent.aget_state(config)
            if state.next:
                tell("answer", await turn(agent, None, config))
            elif state.values.get("messages") and state.values["messages"][-1].type == "ai":
                tell("answer", await last_text(agent, config))
            else:
                tell("nothing", "no checkpoint of the turn")


asyncio.run(main())
