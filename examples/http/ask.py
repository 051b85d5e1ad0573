"""Starts a session at a front, sends a prompt, and prints the answer as it comes.

Usage: python3 ask.py PROMPT. PLANCK_URL is the front, http://127.0.0.1:8400 by default; PLANCK_KEY is a key,
such as `planck serve key` prints.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid

BASE = os.environ.get("PLANCK_URL", "http://127.0.0.1:8400")
KEY = os.environ.get("PLANCK_KEY")


def request(path, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | (headers or {})
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    return urllib.request.urlopen(urllib.request.Request(BASE + path, data, headers), timeout=60)


def events(session, prompt, last):
    """Yields the events after number `last`, each with its name, until the outcome of the prompt. Connects again
    when the stream breaks."""
    name = ""
    while True:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
        try:
            with request(f"/v1/sessions/{session}/events?prompt={prompt}", headers=headers) as stream:
                for line in stream:
                    if line.startswith(b"id: "):
                        last = int(line[4:])
                    elif line.startswith(b"event: "):
                        name = line[7:].decode().strip()
                    elif line.startswith(b"data: "):
                        yield name, json.loads(line[6:])
                        name = ""
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise
        except OSError:
            pass
        time.sleep(1)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python3 ask.py PROMPT")
    # With the same key a repeated request starts nothing more.
    key = {"Idempotency-Key": uuid.uuid4().hex}
    started = json.load(request("/v1/sessions", {}, key))
    session = started["session_id"]
    accepted = json.load(request(f"/v1/sessions/{session}/prompt", {"text": sys.argv[1]}, key))
    shown = ""  # what was printed of the reply that is not saved yet
    for name, event in events(session, accepted["prompt_id"], accepted["seq"]):
        if name == "outcome":
            # The work is over: that of the agent, and of all to which it gave tasks.
            if event["outcome"] != "completed":
                sys.exit(event.get("error", {}).get("reason", event["outcome"]))
            return
        if event.get("agent_id") != accepted["agent_id"]:
            continue
        data = event["data"]
        if event["type"] == "text_delta":
            print(data["text"], end="", flush=True)
            shown += data["text"]
        elif event["type"] == "message" and data["message"]["role"] == "assistant":
            text = "".join(part["text"] for part in data["message"]["content"] if part["type"] == "text")
            # Deltas are not repeated for a client that was away.
            print(text[len(shown) :] if text.startswith(shown) else f"\n{text}", end="\n" if text else "", flush=True)
            shown = ""


try:
    main()
except urllib.error.HTTPError as error:
    sys.exit(json.load(error)["detail"])
except urllib.error.URLError as error:
    sys.exit(f"no front answers at {BASE} ({error.reason}); `planck serve` starts one")
