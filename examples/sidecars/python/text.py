"""A sidecar with two tools and a compactor, on the SDK."""

import asyncio
from typing import Annotated

from planck_sidecar import Context, Conversation, Sidecar, Skip, Summary

sidecar = Sidecar("text-python", "1.0.0")


@sidecar.tool(effect="pure")
async def repeat(text: Annotated[str, "What to repeat"], times: Annotated[int, "How often"]) -> str:
    "Repeats a text."
    return text * times


@sidecar.tool(effect="pure")
async def countdown(context: Context, seconds: Annotated[float, "How long it takes"]) -> str:
    "Counts down, and says how far it is."
    for step in range(10):
        context.progress(f"{10 - step} to go", step * 10)
        await asyncio.sleep(seconds / 10)
    return "lift-off"


@sidecar.compactor()
async def requests(conversation: Conversation) -> Summary | Skip:
    keep_from = conversation.cut(4)
    if keep_from is None:
        return Skip()
    older = [message for message in conversation.messages if message["id"] < keep_from and message["role"] == "user"]
    said = [part["text"] for message in older for part in message["content"] if part["type"] == "text"]
    return Summary("The user had asked: " + " ".join(said), keep_from)


if __name__ == "__main__":
    sidecar.run()
