"""Records a team that Neovim drives on a cluster of two nodes, one of which is killed in mid-answer, into docs/editors.svg.

    tests/judges/acp-neovim/record.py [FOLDER]

FOLDER has the build, by default target/release. Neovim, its plugins, nats-server and termtosvg are those of `.tools`
(tests/judges/README.md and tools/record). The model plays examples/scripts/build-a-cli.json, slowly. What is shown is what the
terminal got, but times in which nothing changed are cut to two seconds.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / ".tools" / "acp-neovim"))

from terminal import Neovim  # noqa: E402

BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target" / "release").resolve()
NATS = "nats://127.0.0.1:24222"
MODEL = "127.0.0.1:28080"
COLUMNS, ROWS = 100, 40
# CodeCompanion's own icons are characters of special fonts, and a background makes the picture twice as large.
LUA = """
vim.o.termguicolors = true
vim.api.nvim_set_hl(0, "Normal", { fg = "#e0e2ea" })
require("codecompanion.config").display.chat.icons = vim.tbl_extend(
  "force",
  require("codecompanion.config").display.chat.icons,
  { chat_fold = "▸ ", tool_pending = "· ", tool_in_progress = "… ", tool_success = "✓ ", tool_failure = "✗ " }
)
"""
started = []


def start(name, *command):
    log = open(f"{name}.log", "wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PLANCK_NODE_NAME": name})
    started.append(process)
    return process


def listed(what):
    said = subprocess.run(["planck", what, "ls", "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(said.stdout) if said.returncode == 0 else []


def owner():
    """Returns the name of the node that has the session at work."""
    (session,) = [session for session in listed("session") if session["activity"] == "working"]
    (name,) = [node["name"] for node in listed("nodes") if node["id"] == session["owner"]]
    return name


def play(cast):
    def see(at, output):
        cast.write(json.dumps([round(at, 3), "o", output.decode("utf-8", "replace")]) + "\n")

    cast.write(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS}) + "\n")
    start("nats", "nats-server", "-js", "-a", "127.0.0.1", "-p", "24222", "-sd", "jetstream")
    script = json.loads((ROOT / "examples/scripts/build-a-cli.json").read_text())
    script["pace"] = {"per_second": 12, "chunk": 6}
    Path("script.json").write_text(json.dumps(script))
    start("model", "scripted-model", "script.json", MODEL)
    both = {name: start(name, "planck", "node") for name in ("one", "two")}
    end = time.monotonic() + 30
    while len(listed("nodes")) < 2:
        assert time.monotonic() < end, Path("one.log").read_text()
        time.sleep(0.2)
    team = str(ROOT / "examples/teams/build-a-cli")
    with Neovim(["planck", "acp", "--team", team], COLUMNS, ROWS, see, LUA) as neovim:
        neovim.types(":belowright 11split +terminal\r")
        neovim.types("i")
        neovim.shows("\n$")
        neovim.types("planck nodes ls\r")
        neovim.shows("alive", times=2)
        neovim.types("\x1c\x0e\x17k")
        neovim.asks("A tool that counts words, with a test")
        neovim.shows("count.sh cou")
        victim = owner()
        neovim.types(f"\x17ji")
        neovim.types(f"kill -9 {both[victim].pid}   # node {victim}\r")
        neovim.shows("the test passes now.")
        neovim.types("planck nodes ls\r")
        neovim.shows("dead")
        neovim.rests(1)


def main():
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)
    os.makedirs("home")
    Path("shell").write_text("PS1='$ '\n")
    os.environ.update(
        PATH=f"{BUILD}:{ROOT}/.tools/bin:{os.environ['PATH']}", HOME=f"{folder.name}/home", NATS_URL=NATS, SHELL="/bin/sh", ENV="shell",
        ANTHROPIC_API_KEY="none", ANTHROPIC_BASE_URL=f"http://{MODEL}", PLANCK_MODELS_DEFAULT="anthropic:claude-sonnet-5-5",
    )
    try:
        with open("cast", "w") as cast:
            play(cast)
        render = [ROOT / ".tools/record/bin/python", "-m", "termtosvg", "render", "cast", ROOT / "docs/editors.svg"]
        subprocess.run([*render, "--template", "window_frame", "-m", "150", "-M", "2000", "--loop-delay", "8000"], check=True)
        print((ROOT / "docs/editors.svg").stat().st_size, "bytes")
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGKILL)
            process.wait()


main()
