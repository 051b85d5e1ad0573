"""Plays an editor with the Agent Client Protocol's SDK for Python.

    client.py COMMAND...

The command is `planck acp` with its options, and the model answers as cli/tests/acp.rs says. The SDK reads every message with its
models. They mend optional fields that are wrong, so each message is also compared with what its model has read of it. The script
ends with an exception if the agent says something else than is expected, and otherwise prints the number of messages.
"""

import asyncio
import json
import os
import sys

from acp import schema, spawn_agent_process, text_block
from acp.exceptions import RequestError

RESULTS = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/prompt": schema.PromptResponse,
}
CALLS = {"session/update": schema.SessionNotification, "session/request_permission": schema.RequestPermissionRequest}


class Judge:
    """Compares what comes in with the SDK's models."""

    def __init__(self):
        self.methods, self.count, self.wrong = {}, 0, []

    def __call__(self, event):
        message = event.message
        if event.direction.value == "outgoing":
            if "method" in message and "id" in message:
                self.methods[message["id"]] = message["method"]
            return
        self.count += 1
        if "error" in message:
            return
        if "method" in message:
            model, content = CALLS[message["method"]], message["params"]
        else:
            model, content = RESULTS[self.methods.pop(message["id"])], message["result"]
        read = model.model_validate(content).model_dump(by_alias=True, exclude_unset=True, mode="json")
        if read != content:
            self.wrong.append((content, read))


class Editor:
    def __init__(self):
        self.option, self.updates, self.seen = "allow", [], asyncio.Event()

    def on_connect(self, agent):
        pass

    async def session_update(self, session_id, update, **_):
        self.updates.append(update)
        if update.session_update == "agent_message_chunk":
            self.seen.set()

    async def request_permission(self, session_id, tool_call, options, **_):
        assert tool_call.title == tool_call.raw_input["command"], tool_call
        assert {option.kind for option in options} >= {"allow_once", "reject_once"}, options
        outcome = schema.AllowedOutcome(outcome="selected", option_id=self.option)
        return schema.RequestPermissionResponse(outcome=outcome)

    def said(self):
        """Returns what the agent has said since the last call."""
        chunks = [update for update in self.updates if update.session_update == "agent_message_chunk"]
        self.updates.clear()
        return "".join(chunk.content.text for chunk in chunks)


async def connected(judge, play):
    editor = Editor()
    command = {"env": dict(os.environ), "cwd": os.getcwd(), "transport_kwargs": {"stderr": None}}
    async with spawn_agent_process(editor, *sys.argv[1:], observers=[judge], **command) as (agent, process):
        hello = await agent.initialize(protocol_version=1)
        assert hello.protocol_version == 1 and hello.agent_capabilities.load_session, hello
        result = await play(editor, agent)
    assert process.returncode == 0, process.returncode
    return result


async def prompts(editor, agent):
    session = (await agent.new_session(cwd=os.getcwd(), mcp_servers=[])).session_id
    prompt = lambda text, session=session: agent.prompt(session_id=session, prompt=[text_block(text)])
    assert (await prompt("Write it.")).stop_reason == "end_turn"
    states = [update.status for update in editor.updates if update.session_update.startswith("tool_call")]
    assert states == ["pending", "in_progress", "completed"], states
    assert editor.said() == "I write it.It is written."

    editor.option = "deny"
    other = (await agent.new_session(cwd=os.getcwd(), mcp_servers=[])).session_id
    assert (await prompt("Write it.", other)).stop_reason == "end_turn"
    states = [update.status for update in editor.updates if update.session_update.startswith("tool_call")]
    assert states == ["pending", "failed"], states

    editor.seen.clear()
    story = asyncio.ensure_future(prompt("Tell a story.", other))
    await editor.seen.wait()
    await agent.cancel(session_id=other)
    assert (await story).stop_reason == "cancelled"
    return session


async def main():
    judge = Judge()
    session = await connected(judge, prompts)

    async def load(editor, agent):
        try:
            await agent.load_session(cwd=os.getcwd(), session_id="none", mcp_servers=[])
            raise AssertionError("an unknown session was loaded")
        except RequestError as error:
            assert error.code == -32002, error
        await agent.load_session(cwd=os.getcwd(), session_id=session, mcp_servers=[])
        assert editor.said() == "I write it.It is written."

    await connected(judge, load)
    assert not judge.wrong, judge.wrong
    print(json.dumps({"messages": judge.count}))


asyncio.run(main())
