"""Plays the scenes of one client that asks for answers in a shape, with Pydantic AI or Instructor.

    shapes.py CLIENT BASE_URL

The scripted model of the front has the replies of all scenes, in their order (http/tests/openai/shapes.rs). So a client
that makes a request too many or too few fails in the next scene.
"""

import asyncio
import itertools
import sys

import httpx2
import pydantic
from openai import AsyncOpenAI, OpenAI


class Weather(pydantic.BaseModel):
    city: str
    degrees: int

    @pydantic.field_validator("degrees")
    @classmethod
    def is_possible(cls, degrees):
        """Checks what the schema does not say."""
        if degrees > 60:
            raise ValueError("too hot")
        return degrees


WARM = Weather(city="Rome", degrees=21)
PROSE = "It is warm."
# Planck compares a history with eight sessions that begin with the same message.
QUESTIONS = (f"Weather in Rome, {number}?" for number in itertools.count())


async def pydantic_ai(url):
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
    from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    sessions = []

    async def note(response):
        sessions.append(response.headers.get("x-planck-session"))

    http = httpx2.AsyncClient(event_hooks={"response": [note]}, timeout=60)
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=url, api_key="unused", http_client=http))
    chat = OpenAIChatModel("planck", provider=provider)
    responses = OpenAIResponsesModel("planck", provider=provider)

    async def answered(agent, requests, **more):
        """Returns the run, which takes this many requests of the client, all to one session."""
        sessions.clear()
        run = await agent.run(next(QUESTIONS), **more)
        assert run.output == WARM, run.output
        assert run.usage.requests == len(sessions) == requests, (run.usage, sessions)
        assert len(set(sessions)) == 1, sessions
        return run

    async def refused(kind, says, call):
        try:
            said = await call
        except kind as error:
            assert says in str(error), repr(error)
            return error
        raise AssertionError(f"expected {kind.__name__}, got {said}")

    async def streamed(agent):
        async with agent.run_stream(next(QUESTIONS)) as run:
            async for partial in run.stream_output():
                assert partial.city == WARM.city, partial
            return await run.get_output()

    for model in (chat, responses):
        native = Agent(model, output_type=NativeOutput(Weather))
        run = await answered(native, 1)
        # The conversation goes on without a shape.
        more = await Agent(model).run("In words?", message_history=run.all_messages())
        assert more.output == PROSE, more.output
        assert len(set(sessions)) == 1, sessions
        # The model says something in prose first, and its answer is demanded.
        assert await streamed(native) == WARM
        # Planck has the first answer repaired, of which the client sees nothing.
        await answered(native, 1)
        assert await streamed(native) == WARM
        # The client has an answer repaired that satisfies only the schema.
        await answered(native, 2)
        # All answers are wrong.
        error = await refused(ModelAPIError, "after 2 repairs", native.run(next(QUESTIONS)))
        assert model is chat and error.status_code == 422 or error.provider_error_type == "output_invalid", error
        await refused(ModelAPIError, "after 2 repairs", streamed(native))
        # The model calls a tool of the client before it answers.
        asked = []
        equipped = Agent(model, output_type=NativeOutput(Weather))

        @equipped.tool_plain
        def station(city: str, degrees: int) -> str:
            """Reads a station."""
            asked.append(city)
            return f"{degrees} degrees"

        await answered(equipped, 2)
        assert asked == ["Rome"], asked

    for model in (chat, responses):
        called = Agent(model, output_type=ToolOutput(Weather))
        run = await answered(called, 1)
        # The history ends with the result of the output tool, and the next question follows it.
        await answered(called, 1, message_history=run.all_messages())
        # Planck has arguments repaired that do not satisfy the schema, and the client other ones.
        await answered(called, 1)
        await answered(called, 2)
        # The model answers in prose, because nothing makes it call a tool.
        await answered(called, 2)
        await refused(UnexpectedModelBehavior, "output retries", called.run(next(QUESTIONS)))

    for model in (chat, responses):
        prompted = Agent(model, output_type=PromptedOutput(Weather))
        await answered(prompted, 1)
        # Planck knows only that an object is wanted, and the client has it repaired.
        await answered(prompted, 2)
        await refused(UnexpectedModelBehavior, "output retries", prompted.run(next(QUESTIONS)))
    plain = OpenAIChatModel("planck", provider=provider, profile={"supports_json_object_output": False})
    await answered(Agent(plain, output_type=PromptedOutput(Weather)), 1)
    await http.aclose()


def instructor(url):
    from instructor import Mode, from_openai
    from instructor.core import InstructorRetryException

    client = OpenAI(base_url=url, api_key="unused", timeout=60)

    def made(mode):
        """Returns the client, the arguments of a question, and the requests that the client has made."""
        requests = []
        made = from_openai(client, mode=mode)
        made.on("completion:kwargs", lambda *_, **kwargs: requests.append(kwargs))
        ask = {"messages": [{"role": "user", "content": next(QUESTIONS)}], "response_model": Weather}
        return made, {"model": "planck", **ask}, requests

    def answered(mode, count):
        """The answer takes this many requests of the client."""
        wrapped, ask, requests = made(mode)
        answer = wrapped.create(**ask)
        assert answer.model_dump() == WARM.model_dump() and len(requests) == count, (answer, requests)

    def refused(mode, says):
        wrapped, ask, _ = made(mode)
        try:
            answer = wrapped.create(**ask, max_retries=1)
        except InstructorRetryException as error:
            assert says in str(error), repr(error)
            return
        raise AssertionError(f"{mode}: expected an error, got {answer!r}")

    # Planck has the first answer repaired, of which the client sees nothing. Then all answers are wrong.
    answered(Mode.JSON_SCHEMA, 1)
    answered(Mode.JSON_SCHEMA, 1)
    refused(Mode.JSON_SCHEMA, "after 2 repairs")
    wrapped, ask, _ = made(Mode.JSON_SCHEMA)
    *_, last = wrapped.create_partial(**ask)
    assert last.model_dump() == WARM.model_dump(), last
    # The client itself has answers repaired.
    answered(Mode.JSON, 1)
    answered(Mode.JSON, 2)
    refused(Mode.JSON, "degrees")
    # Planck has arguments repaired that do not satisfy the schema, and the client other ones.
    answered(Mode.TOOLS, 1)
    answered(Mode.TOOLS, 1)
    answered(Mode.TOOLS, 2)
    refused(Mode.TOOLS, "too hot")
    # This mode sends the schema both as a format and as a tool, and takes only a call of the tool.
    answered(Mode.RESPONSES_TOOLS, 1)
    refused(Mode.RESPONSES_TOOLS, "No choices")


CLIENTS = {"pydantic_ai": pydantic_ai, "instructor": instructor}

if __name__ == "__main__":
    name, front = sys.argv[1:]
    played = CLIENTS[name](f"{front}/openai/v1")
    if played is not None:
        asyncio.run(played)
    print(f"{name}: found nothing wrong")
