#!/usr/bin/env python3
"""Checks captured requests against the types that the vendors' own SDKs publish, and against their rules of order.

    judge.py FOLDER     checks every FOLDER/*.jsonl, with one request per line: {"wire", "path", "headers", "body"}
    judge.py --can     checks whether the SDKs are installed
    judge.py --self-test FILE     checks lines that also have "blamed": a part of the expected complaint, or null if none is expected

The wire is anthropic, openai, chat (a server that imitates OpenAI), responses, google or ollama. A member that an SDK's type
does not name is an error, and so is a missing member or one of another type. Complaints go to standard output, each with its
body; the exit code is 1 if there are any.
"""

import json
import sys
from pathlib import Path

from walk import Judge, arguments_of, load, members_of_model

# Members that only servers that imitate OpenAI accept, by the type that has them there.
IMITATED = {
    "CompletionCreateParamsStreaming": {"chat_template_kwargs": dict, "thinking": dict, "reasoning": dict},
    "ChatCompletionAssistantMessageParam": {"reasoning_content": str, "reasoning": str, "reasoning_details": list, "extra_content": dict},
    "ChatCompletionMessageFunctionToolCallParam": {"extra_content": dict},
}
# Members of the beta types that the server refuses unless the header `anthropic-beta` names the feature.
BETAS = {"block_binding": "thinking-binding-controls-2026-08-01"}
# Ollama's server ignores keywords of a tool's schema that it does not read; its SDK's types name only those that it reads.
BOUNDS = dict.fromkeys(("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"), int)
SCHEMA_OF_TOOLS = {"Parameters": {"additionalProperties": bool}, "Property": BOUNDS}
CHAT = ("openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming", "/chat/completions")
TYPES = {
    "anthropic": ("anthropic.types.message_create_params", "MessageCreateParamsStreaming", "/v1/messages"),
    "openai": CHAT,
    "chat": CHAT,
    "responses": ("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming", "/responses"),
    "google": ("google.genai.types", "GenerationConfig", ":streamGenerateContent"),
    "ollama": ("ollama._types", "ChatRequest", "/api/chat"),
}


def faults_of_types(wire, headers, body):
    module, name, _ = TYPES[wire]
    if wire == "anthropic" and "anthropic-beta" in headers:
        module = "anthropic.types.beta.message_create_params"
    kind = load(module, name)
    if wire == "google":
        sdk = sys.modules[module]
        members = {"contents": (list[sdk.Content], True), "generationConfig": (kind, False), "systemInstruction": (sdk.Content, False)}
        members |= {"tools": (list[sdk.Tool], False), "toolConfig": (sdk.ToolConfig, False), "cachedContent": (str, False)}
        return Judge(models=True).of_members(body, "GenerateContentRequest", members, "body")
    if wire == "ollama":
        # The types of these two members accept any object besides their own.
        own = {"messages": (list[load(module, "Message")], True), "options": (load(module, "Options"), False)}
        return Judge(SCHEMA_OF_TOOLS, models=True).of_members(body, name, {**members_of_model(kind), **own}, "body")
    return Judge(IMITATED if wire == "chat" else None).faults(body, kind, "body")


def faults_of_features(headers, body):
    """Checks that the header names every feature that an Anthropic body uses, and no other."""
    named = [word.strip() for word in headers.get("anthropic-beta", "").split(",") if word.strip()]
    thinking = body.get("thinking") or {}
    faults = [f"header anthropic-beta: lacks {beta} for `{member}`" for member, beta in BETAS.items() if member in thinking and beta not in named]
    unused = [beta for member, beta in BETAS.items() if beta in named and member not in thinking]
    known = arguments_of(arguments_of(load("anthropic.types.anthropic_beta_param", "AnthropicBetaParam"))[1])
    faults += [f"header anthropic-beta: {beta} is not used" for beta in unused]
    faults += [f"header anthropic-beta: {beta} is unknown" for beta in named if beta not in known]
    if json.dumps(body).count('"cache_control":') > 4:
        faults.append("body: has more than four marks of `cache_control`")
    if thinking.get("budget_tokens", 0) >= body["max_tokens"]:
        faults.append("body.thinking.budget_tokens: leaves no room for an answer")
    return faults


def turns(wire, body):
    """Yields each turn as [side, calls, answers, whether it ends in thinking]. A side is user, results or assistant."""
    if wire == "anthropic":
        for message in body["messages"]:
            blocks = message["content"]
            kinds = [block["type"] for block in blocks]
            calls, answers = [b["id"] for b in blocks if b["type"] == "tool_use"], [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
            misplaced = "tool_result" in kinds[len(answers) :]
            yield ["results after words" if misplaced else message["role"], calls, answers, kinds[-1:] in (["thinking"], ["redacted_thinking"])]
    elif wire == "google":
        for content in body["contents"]:
            named = lambda member: [part[member]["name"] for part in content["parts"] if member in part]
            yield ["assistant" if content["role"] == "model" else content["role"], named("functionCall"), named("functionResponse"), False]
    elif wire == "responses":
        for item in body["input"]:
            kind = item.get("type", "message")
            side = {"message": item.get("role"), "function_call_output": "results"}.get(kind, "assistant")
            ids = [item["call_id"]] if "call_id" in item else []
            yield [side, ids if side == "assistant" else [], ids if side == "results" else [], kind == "reasoning"]
    else:
        for message in body["messages"]:
            calls = [call["id"] if "id" in call else call["function"]["name"] for call in message.get("tool_calls", [])]
            answers = [message[name] for name in ("tool_call_id", "tool_name") if name in message]
            if message["role"] not in ("system", "developer"):
                yield ["results" if message["role"] == "tool" else message["role"], calls, answers, False]


def faults_of_order(wire, body):
    joined = []
    for turn in turns(wire, body):
        if joined and joined[-1][0] == turn[0] and (turn[0] == "results" or wire == "responses"):
            joined[-1] = [turn[0], joined[-1][1] + turn[1], joined[-1][2] + turn[2], turn[3]]
        else:
            joined.append(turn)
    faults, waiting, seen, by_name = [], [], [], wire in ("google", "ollama")
    told = lambda side: "assistant" if side == "assistant" else "user"
    for index, (side, calls, answers, thinks) in enumerate(joined):
        at = f"turn {index} ({side})"
        faults += [f"{at}: is no side"] if side not in ("user", "assistant", "results") else []
        if (answers if by_name else sorted(answers)) != (waiting if by_name else sorted(waiting)):
            faults.append(f"{at}: answers {answers}, and the calls before are {waiting}")
        faults += [f"{at}: the id {call} was there before" for call in calls if call in seen and not by_name]
        faults += [f"{at}: ends in thinking"] if thinks else []
        if index and wire not in ("responses", "ollama") and told(side) == told(joined[index - 1][0]):
            faults.append(f"{at}: follows another of the same side")
        waiting, seen = calls, seen + calls
    if not joined or told(joined[0][0]) != "user" or told(joined[-1][0]) != "user":
        faults.append("the first or the last word is not the user's")
    return faults


def judge(request):
    wire, headers, body = request["wire"], request["headers"], request["body"]
    faults = [] if request["path"].endswith(TYPES[wire][2]) else [f"path: {request['path']}"]
    faults += faults_of_types(wire, headers, body)
    try:
        return faults + (faults_of_features(headers, body) if wire == "anthropic" else []) + faults_of_order(wire, body)
    except (KeyError, TypeError, AttributeError) as error:
        return [*faults, f"its order cannot be read: {error!r}"]


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def main(arguments):
    if arguments == ["--can"]:
        return not all(load(module, name) for module, name, _ in TYPES.values())
    if arguments[0] == "--self-test":
        judged = [(request, judge(request)) for request in lines(Path(arguments[1]))]
        blind = [(r["blamed"], faults) for r, faults in judged if not (any(r["blamed"] in fault for fault in faults) if r["blamed"] else not faults)]
        for blamed, faults in blind:
            print(f"{blamed!r} was to be blamed, and this was: {faults}")
        print(f"self-test: {len(judged)} bodies")
        return bool(blind) or not judged
    requests = [request for file in sorted(Path(arguments[0]).glob("*.jsonl")) for request in lines(file)]
    guilty = [(request, faults) for request in requests if (faults := judge(request))]
    for request, faults in guilty:
        print(f"{request['wire']} {request['path']}:", *faults, json.dumps(request["body"])[:20_000], sep="\n  ")
    for wire in TYPES:
        print(f"judged {wire}: {sum(request['wire'] == wire for request in requests)}")
    return bool(guilty) or not requests


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
