"""Drives `planck acp` from Neovim with CodeCompanion by pressing keys, as a person does.

    judge.py COMMAND...

The model answers as cli/tests/acp_judges.rs says. The script ends with an exception if the screen does not show what is expected,
and otherwise prints the scenes that were played.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from terminal import Neovim

COMMAND = sys.argv[1:]
OUT = Path("out.txt")


def allowed(neovim):
    """The question shows the whole command, and the answer is a key."""
    neovim.asks("Write it.")
    for line in ["I write it.", "Approval Required", "Execute: echo one > out.txt", "echo two >> out.txt"]:
        neovim.shows(line)
    assert not OUT.exists()
    neovim.types("g2")
    neovim.shows("It is written.")
    assert OUT.read_text() == "one\ntwo\n"
    OUT.unlink()


def denied(neovim):
    neovim.asks("Write it.")
    neovim.shows("Approval Required")
    neovim.types("g3")
    neovim.shows("It is written.")
    assert not OUT.exists()


def stopped(neovim):
    neovim.asks("Tell a story.")
    neovim.shows("slow", times=3)
    neovim.types("q")
    neovim.shows("## Me", times=2)
    told = neovim.shown().count("slow")
    neovim.rests(1)
    assert neovim.shown().count("slow") == told < 100
    neovim.asks("Hello.")
    neovim.shows("Quick.")


def stopped_while_asked(neovim):
    neovim.asks("Write it.")
    neovim.shows("Approval Required")
    neovim.types("q")
    neovim.shows("## Me", times=2)
    neovim.asks("Hello.")
    neovim.shows("Quick.")
    assert not OUT.exists()


def killed(neovim):
    """The command dies in mid-answer. The next message starts it again, with another session."""
    neovim.asks("Tell a story.")
    neovim.shows("slow", times=3)
    os.kill(agent(neovim), signal.SIGKILL)
    neovim.shows("canceled")
    neovim.types("\r")
    neovim.asks("Hello.")
    neovim.shows("Quick.")


def resumed(neovim):
    """The session of the first scene is chosen from the list, and goes on."""
    neovim.types("i/resume\x18\x0f\x19")
    neovim.shows("Type number")
    (*_, first) = re.findall(r"^(\d+): .*Write it\.$", neovim.shown(), re.MULTILINE)
    neovim.types(f"{first}\r")
    neovim.shows("Resumed session: Write it.")
    neovim.types("\r")
    neovim.shows("It is written.")
    neovim.asks("Hello.")
    neovim.shows("Quick.")


def agent(neovim):
    """Returns the process that Neovim has started as the agent. Neovim's own process may be a child of the one in the terminal."""
    found = [neovim.process]
    while found:
        process = found.pop()
        if b"\0acp\0" in Path(f"/proc/{process}/cmdline").read_bytes():
            return process
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    raise AssertionError("there is no agent")


def capabilities():
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    said = subprocess.run(COMMAND, input=json.dumps(hello) + "\n", stdout=subprocess.PIPE, text=True, timeout=60)
    return json.loads(said.stdout)["result"]["agentCapabilities"]


scenes = [allowed, denied, stopped, stopped_while_asked, killed]
if "list" in capabilities().get("sessionCapabilities", {}):
    scenes.append(resumed)
for scene in scenes:
    print(f"{scene.__name__} ...", file=sys.stderr)
    with Neovim(COMMAND) as neovim:
        scene(neovim)
print(json.dumps({"scenes": [scene.__name__ for scene in scenes]}))
