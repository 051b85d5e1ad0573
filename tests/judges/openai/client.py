"""Plays one scenario against the front with OpenAI's own SDK for Python.

    client.py SCENARIO BASE_URL

The scripted model of the front answers what each scenario expects (http/tests/openai/judges.rs, and for the
scenarios of `IN_CLUSTER` tests/tests/e2e/http/clients.rs). A scenario ends with an exception if the front says
something else than the SDK's types allow.
"""

import json
import os
import re
import sys
import time
import urllib.request

import openai
import pydantic
from openai import BadRequestError, ConflictError, NotFoundError, OpenAI, UnprocessableEntityError

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER}}
TOOL = {"type": "function", "name": "weather", "description": "Tells the weather.", "parameters": WEATHER}


def strict(value):
    """Checks an answer against its type. The SDK itself accepts answers with missing fields."""
    type(value).model_validate(value.to_dict())
    return value


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


def models(client):
    ids = [strict(model).id for model in client.models.list()]
    assert "duo" in ids and "planck" in ids, ids
    assert client.models.retrieve("duo").owned_by == "team"
    refused(NotFoundError, lambda: client.models.retrieve("nobody"))


def chat(client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    answer = client.chat.completions.with_raw_response.create(model="duo", messages=messages, temperature=0.2)
    assert "temperature" in answer.headers["x-planck-warning"], answer.headers
    session = answer.headers["x-planck-session"]
    answer = strict(answer.parse())
    assert answer.choices[0].message.content == "Hello there.", answer
    assert answer.choices[0].finish_reason == "stop" and answer.usage.total_tokens >= 0
    messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "More"}]
    raw = client.chat.completions.with_raw_response.create(
        model="duo", messages=messages, stream=True, stream_options={"include_usage": True})
    assert raw.headers["x-planck-session"] == session, "another session"
    text, usage, reasons = "", None, []
    for chunk in raw.parse():
        strict(chunk)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == "Much more of it." and reasons == ["stop"] and usage is not None, (text, reasons, usage)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And?"}]
    with client.chat.completions.stream(model="duo", messages=messages) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "That is all.", answer


def chat_tools(client):
    messages = [{"role": "user", "content": "Weather in Rome?"}]
    answer = strict(client.chat.completions.create(model="planck", messages=messages, tools=[CHAT_TOOL]))
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": "Rome"}
    messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = strict(client.chat.completions.create(model="planck", messages=messages, tools=[CHAT_TOOL]))
    assert answer.choices[0].message.content == "Sunny in Rome.", answer
    messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "And Oslo?"}]
    with client.chat.completions.stream(model="planck", messages=messages, tools=[CHAT_TOOL]) as stream:
        answer = stream.get_final_completion()
    call = answer.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Oslo"}, call
    messages += [answer.choices[0].message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
                 {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    with client.chat.completions.stream(model="planck", messages=messages, tools=[CHAT_TOOL]) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "Rain in Oslo.", answer


def shapes(client):
    client = client.with_options(max_retries=0)
    class Weather(pydantic.BaseModel):
        city: str
        degrees: int

    warm, messages = Weather(city="Rome", degrees=21), [{"role": "user", "content": "Weather in Rome?"}]
    answer = client.chat.completions.with_raw_response.parse(model="duo", messages=messages, response_format=Weather)
    session, answer = answer.headers["x-planck-session"], answer.parse()
    assert answer.choices[0].message.parsed == warm and answer.choices[0].finish_reason == "stop", answer
    messages += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "And now?"}]
    raw = client.chat.completions.with_raw_response.create(model="duo", messages=messages)
    assert raw.headers["x-planck-session"] == session, "another session"
    assert raw.parse().choices[0].message.content == "In words: warm."
    # The model says something in prose first, and its answer is demanded.
    messages = [{"role": "user", "content": "Weather in Rome, streamed?"}]
    with client.chat.completions.stream(model="duo", messages=messages, response_format=Weather) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.parsed == warm, answer
    # The first answer does not satisfy the schema.
    response = client.responses.parse(model="duo", input="Weather in Rome?", text_format=Weather)
    assert response.output_parsed == warm and response.status == "completed", response
    assert client.responses.retrieve(response.id).output_text == response.output_text
    with client.responses.stream(model="duo", input="Again?", text_format=Weather) as stream:
        for event in stream:
            pass
        assert stream.get_final_response().output_parsed == warm
    free = client.chat.completions.create(model="duo", messages=messages, response_format={"type": "json_object"})
    assert json.loads(free.choices[0].message.content) == {"any": [1]}, free
    listed = {"type": "json_schema", "json_schema": {"name": "list", "schema": {"type": "array"}}}
    error = refused(BadRequestError, lambda: client.chat.completions.create(model="duo", messages=messages, response_format=listed))
    assert "`type` must be" in error.message, error
    # All answers are wrong.
    error = refused(UnprocessableEntityError, lambda: client.chat.completions.parse(model="duo", messages=messages, response_format=Weather))
    assert error.code == "output_invalid" and "after 2 repairs" in error.message, error


def responses(client):
    first = strict(client.responses.create(model="duo", input="Hi", instructions="Be brief.", metadata={"a": "b"}))
    assert first.status == "completed" and first.output_text == "Hello there.", first
    assert first.metadata["a"] == "b" and first.instructions == "Be brief."
    with client.responses.stream(model="duo", input="More", previous_response_id=first.id) as stream:
        events = [strict(event) for event in stream]
        second = stream.get_final_response()
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers)), numbers
    assert second.output_text == "Much more of it." and second.previous_response_id == first.id
    again = strict(client.responses.retrieve(second.id))
    assert again.output_text == second.output_text and again.status == "completed"
    error = refused(ConflictError, lambda: client.responses.create(model="duo", input="Else", previous_response_id=first.id))
    assert second.id in error.message, error
    third = client.responses.create(model="duo", input="And?", conversation=second.conversation.id)
    assert third.output_text == "That is all.", third
    refused(NotFoundError, lambda: client.responses.retrieve("resp_nobody_0"))


def background(client):
    response = strict(client.responses.create(model="planck", input="Tell a story", background=True))
    assert response.status in ("queued", "in_progress"), response.status
    text, last = "", None
    for event in client.responses.retrieve(response.id, stream=True):
        last = event.sequence_number
        if event.type == "response.output_text.delta":
            text += event.delta
            if len(text) > 12:
                break
    for event in client.responses.retrieve(response.id, stream=True, starting_after=last):
        assert event.sequence_number > last, (event, last)
        last = event.sequence_number
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            assert event.response.output_text == text, (text, event)
    assert text == STORY, text
    refused(BadRequestError, lambda: client.responses.retrieve(response.id, stream=True, starting_after=last + 1))
    done = strict(client.responses.retrieve(response.id))
    assert done.status == "completed" and done.output_text == STORY


STORY = "Once there was a small robot that wanted to see the sea and so it went there."


def cancel(client):
    response = client.responses.create(model="planck", input="Tell a story", background=True)
    while not client.responses.retrieve(response.id).output and time.time() < DEADLINE:
        time.sleep(0.05)
        if client.responses.retrieve(response.id).status == "in_progress":
            break
    cancelled = strict(client.responses.cancel(response.id))
    assert cancelled.status == "cancelled", cancelled
    assert client.responses.retrieve(response.id).status == "cancelled"
    after = client.responses.create(model="planck", input="Again", previous_response_id=response.id)
    assert after.output_text == "Here again.", after


def response_tools(client):
    response = strict(client.responses.create(model="planck", input="Weather in Rome?", tools=[TOOL]))
    call = response.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Rome"}, response
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    with client.responses.stream(model="planck", input=[output], previous_response_id=response.id) as stream:
        for event in stream:
            strict(event)
        done = stream.get_final_response()
    assert done.output_text == "Sunny in Rome." and done.id != response.id, done
    assert client.responses.retrieve(response.id).output[-1].call_id == call.call_id
    assert client.responses.retrieve(done.id).output_text == done.output_text
    again = client.responses.create(model="planck", input=[output], previous_response_id=response.id)
    assert again.id == done.id, "the same results are answered with the same response"


def errors(client):
    hi = [{"role": "user", "content": "Hi"}]
    error = refused(BadRequestError, lambda: client.chat.completions.create(model="planck", messages=hi, n=2))
    assert error.param == "n" and error.type == "invalid_request_error", error.body
    refused(BadRequestError, lambda: client.chat.completions.create(model="planck", messages=hi, logprobs=True))
    refused(NotFoundError, lambda: client.chat.completions.create(model="nobody", messages=hi))
    failed = client.responses.create(model="planck", input="Hi")
    assert failed.status == "failed" and "no luck" in failed.error.message, failed
    error = refused(openai.APIStatusError, lambda: client.chat.completions.create(model="planck", messages=hi))
    assert error.status_code == 502 and "no luck" in error.message, error
    error = refused(openai.APIError, lambda: list(client.chat.completions.create(model="planck", messages=hi, stream=True)))
    assert "no luck" in error.message, error


# What the schema of Open Responses requires of a response. The seven requests are those of its own
# compliance test, whose program needs files that are not in a registry.
REQUIRED = """id object created_at completed_at status incomplete_details model previous_response_id instructions
output error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty
top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier metadata
safety_identifier prompt_cache_key""".split()
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGN4DgAA6gDphpkEXgAAAABJRU5ErkJggg=="


def open_responses(client):
    def message(role, content):
        return {"type": "message", "role": role, "content": content}

    def ask(items, **more):
        raw = client.responses.with_raw_response.create(model="planck", input=items, **more)
        body = json.loads(raw.http_response.text)
        missing = [field for field in REQUIRED if field not in body]
        assert not missing, missing
        for tool in body["tools"]:
            assert {"type", "name", "description", "parameters", "strict"} <= set(tool), tool
        answer = strict(raw.parse())
        assert answer.status == "completed" and answer.output, answer
        return answer

    ask([message("user", "Say hello in exactly 3 words.")])
    with client.responses.stream(model="planck", input=[message("user", "Count from 1 to 5.")]) as stream:
        assert all(strict(event) for event in stream)
    ask([message("system", "You are a pirate."), message("user", "Say hello.")])
    question = [message("user", "Weather in Rome?")]
    assert ask(question, tools=[TOOL]).output[-1].type == "function_call"
    with client.responses.stream(model="planck", input=question, tools=[TOOL]) as stream:
        kinds = [strict(event).type for event in stream]
    for kind in ("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"):
        assert f"response.{kind}" in kinds, kinds
    image = {"type": "input_image", "image_url": PIXEL}
    ask([message("user", [{"type": "input_text", "text": "What is this?"}, image])])
    ask([message("user", "My name is Alice."), message("assistant", "Hello Alice!"), message("user", "What is my name?")])


def put_together(pieces):
    """Returns the text of a stream, and says on the way that it has begun."""
    text = ""
    for piece in pieces:
        if "slow-3" in text + piece and "slow-3" not in text:
            print("streaming", flush=True)
        text += piece
    return text


def failover_chat(client):
    """The node is killed in mid-stream. The text that was sent stays, and the new one follows in a paragraph."""
    stream = client.chat.completions.create(
        model="planck", messages=[{"role": "user", "content": "Tell python-chat"}], stream=True, metadata=METADATA)
    finish = []

    def pieces():
        for chunk in stream:
            for choice in strict(chunk).choices:
                finish.extend([choice.finish_reason] if choice.finish_reason else [])
                yield choice.delta.content or ""

    text = put_together(pieces())
    assert finish == ["stop"], finish
    print(json.dumps({"paragraphs": text.split("\n\n")}))


def failover_responses(client):
    """The node is killed in mid-stream. The item that had begun ends as incomplete, and a new one follows."""
    texts, items, last = {}, [], []

    def pieces(stream):
        for event in stream:
            assert not last or event.sequence_number > last[-1], (event, last)
            last.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                texts[event.item_id] = texts.get(event.item_id, "") + event.delta
                yield event.delta
            if event.type == "response.output_item.done" and event.item.type == "message":
                items.append(event.item)

    with client.responses.stream(model="planck", input="Tell python-responses", metadata=METADATA) as stream:
        put_together(pieces(stream))
        response = stream.get_final_response()
    for item in items:
        assert texts[item.id] == item.content[0].text, item
    assert [item.status for item in items] == ["completed", "incomplete", "completed"], items
    kept = [texts[item.id] for item in items if item.status == "completed"]
    assert response.output_text == "".join(kept), response
    again = client.responses.retrieve(response.id)
    assert again.output_text == response.output_text, again
    print(json.dumps({"paragraphs": kept, "void": texts[items[1].id]}))


def failover_team(client):
    """The lead has ended its turn, and its node is killed while the helper works."""
    stream = client.chat.completions.create(
        model="crew", messages=[{"role": "user", "content": "How many?"}], stream=True, metadata=METADATA)
    text, finish = "", []
    for chunk in stream:
        for choice in strict(chunk).choices:
            finish += [choice.finish_reason] if choice.finish_reason else []
            text += choice.delta.content or ""
            if text == FIRST and choice.delta.content:
                print("delegated", flush=True)
    assert text == f"{FIRST}\n\n{LAST}" and finish == ["stop"], (text, finish)
    print(json.dumps({"text": text}))


def answer(session, wait, decision):
    """Answers a wait, as a person does in another client."""
    body = json.dumps({"wait": wait, "decision": decision, "by": "ann"}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    path = f"{URL}/v1/sessions/{session}/answer"
    with urllib.request.urlopen(urllib.request.Request(path, body, headers), timeout=30) as reply:
        assert json.load(reply)["decision"] == decision


def waits(client):
    """A person allows a call while a stream waits, and denies one while a response is read again and again."""
    raw = client.chat.completions.with_raw_response.create(
        model="careful", messages=[{"role": "user", "content": "Write a file"}], stream=True, metadata=METADATA)
    session, text, reasoning, answered = raw.headers["x-planck-session"], "", "", None
    for chunk in raw.parse():
        for choice in strict(chunk).choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        asked = re.search(r"Waits for a person: (.*) \(`planck answer (\S+)`\)\n", reasoning)
        if asked and not answered:
            answered = asked.group(2)
            assert "write" in asked.group(1), asked
            answer(session, answered, "allow")
    assert answered and text == "I will write.\n\nIt is done.", (text, reasoning)
    assert reasoning.startswith("A file is asked for.Waits"), reasoning
    response = client.responses.create(model="careful", input="Write a file", background=True, metadata=METADATA)
    while "planck_waits" not in (response.metadata or {}):
        assert time.time() < DEADLINE and response.status in ("queued", "in_progress"), response
        time.sleep(0.05)
        response = strict(client.responses.retrieve(response.id))
    wait = re.search(r"planck answer (\S+)`", response.metadata["planck_waits"]).group(1)
    answer(response.conversation.id, wait, "deny")
    kinds = []
    for event in client.responses.retrieve(response.id, stream=True):
        kinds.append(strict(event).type)
    response = strict(client.responses.retrieve(response.id))
    assert response.status == "completed" and "response.reasoning_text.delta" in kinds, (response, kinds)
    shown = [(item.type, item.content[0].text) for item in response.output]
    assert shown[:2] == [("reasoning", "A file is asked for."), ("message", "I will write.")], shown
    assert response.output_text == "I will write.It is done.", response


FIRST, LAST = "It is at work.", "Seven, says the helper."


def team_completion(client):
    """The lead delegates, and its first turn ends before the result is there."""
    messages = [{"role": "user", "content": "How many?"}]
    answer = strict(client.chat.completions.create(model="crew", messages=messages))
    assert answer.choices[0].message.content == LAST and answer.choices[0].finish_reason == "stop", answer
    messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "And?"}]
    answer = strict(client.chat.completions.create(model="crew", messages=messages))
    assert answer.choices[0].message.content == "More.", answer


def team_stream(client):
    messages = [{"role": "user", "content": "How many?"}]
    with client.chat.completions.stream(model="crew", messages=messages) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == f"{FIRST}\n\n{LAST}", answer
    assert answer.choices[0].finish_reason == "stop", answer


def team_response(client):
    with client.responses.stream(model="crew", input="How many?") as stream:
        events = [strict(event) for event in stream]
        response = stream.get_final_response()
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers)), numbers

    def items(response):
        assert response.status == "completed", response
        return [(item.id, item.content[0].text) for item in response.output if item.type == "message"]

    assert [text for _, text in items(response)] == [FIRST, LAST], response
    assert items(strict(client.responses.retrieve(response.id))) == items(response)
    more = client.responses.create(model="crew", input="And?", previous_response_id=response.id)
    assert more.output_text == "More.", more


def delete(client):
    first = client.responses.create(model="planck", input="One")
    second = client.responses.create(model="planck", input="Two", previous_response_id=first.id)
    error = refused(ConflictError, lambda: client.responses.delete(first.id))
    assert "delete the later ones first" in error.message, error
    gone = client.responses.with_raw_response.delete(second.id)
    assert json.loads(gone.http_response.text) == {"id": second.id, "object": "response", "deleted": True}, gone
    refused(NotFoundError, lambda: client.responses.retrieve(second.id))
    refused(NotFoundError, lambda: client.responses.delete(second.id))
    third = client.responses.create(model="planck", input="Three", previous_response_id=first.id)
    assert third.output_text == "Three." and third.conversation.id == first.conversation.id, third
    assert client.responses.retrieve(first.id).output_text == "One."
    client.responses.delete(third.id)
    client.responses.delete(first.id)
    for response in (first, third):
        refused(NotFoundError, lambda: client.responses.retrieve(response.id))


SCENARIOS = [models, chat, chat_tools, shapes, responses, background, cancel, response_tools, errors, open_responses, delete,
             team_completion, team_stream, team_response]
IN_CLUSTER = [failover_chat, failover_responses, failover_team, waits]
# The folder in which the sessions of a cluster work.
METADATA = {"dir": os.environ["PLANCK_DIR"]} if "PLANCK_DIR" in os.environ else {}
DEADLINE = time.time() + 60
# A front without keys takes any.
KEY = os.environ.get("OPENAI_API_KEY", "unused")

if __name__ == "__main__":
    name, URL = sys.argv[1:]
    scenario = {scenario.__name__: scenario for scenario in SCENARIOS + IN_CLUSTER}[name]
    scenario(OpenAI(api_key=KEY, base_url=f"{URL}/openai/v1", timeout=120))
    print(f"{name}: openai {openai.__version__} found nothing wrong")
