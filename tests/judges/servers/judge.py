#!/usr/bin/env python3
"""Runs agents against independent servers: llama.cpp's own, and LiteLLM's proxy in front of it.

    judge.py PLANCK SCRIPTED_MODEL    the binaries `planck` and `scripted-model`

Every wire that a server speaks runs the same scenes: text; thinking and two calls in one answer, whose results are sent back;
an abort in the middle of a stream, which must leave the server idle; and the next prompt of that session. No request may be
retried or end in an error. Every server listens on loopback, has a deadline, and is ended by its process id.

The exit code is 1 if a scene fails. A server that is not available is named at the end, and fails the run if
PLANCK_TESTS_NEED_JUDGES is set.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import have
import model

START_SECONDS = 180
SCENE_SECONDS = 120
IDLE_SECONDS = 10
KEY = "judges-0123456789"
TEMPLATE = "Qwen-Qwen3-0.6B.jinja"
LOOK = "Look at both files."

# The script of the model that replaces llama.cpp's server behind LiteLLM if that server is not available.
SCRIPT = {
    "auth": "off",
    "pace": {"per_second": 200, "chunk": 12},
    "rules": [
        {"when": {"last": model.END}, "replies": [[{"text": model.LAST}]]},
        {"when": {"last": model.LOOP}, "replies": [[{"text": (model.BLAH + model.MORE) * 10_000}]]},
        {"when": {"result": "beta"}, "replies": [[{"text": model.LAST}]]},
        {"when": {"last": LOOK}, "replies": [[{"call": {"name": "read", "args": {"path": path}}} for path in ("a.txt", "b.txt")]]},
    ],
}


class Server:
    """A process in its own group that listens on a loopback port."""

    def __init__(self, name, command, port, health, log, env=None):
        self.name, self.port, self.log = name, port, log
        self.url = f"http://127.0.0.1:{port}"
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, env=env
            )
        deadline = time.monotonic() + START_SECONDS
        while not answers(port, health):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise have.NotHad(f"{name} does not start; see {log}")
            time.sleep(0.5)

    def stop(self):
        for what in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, what)
                try:
                    self.process.wait(20)
                except subprocess.TimeoutExpired:
                    continue


def answers(port, health):
    """Returns whether the server reports that it is healthy or, without a health address, whether it accepts connections."""
    try:
        if health is None:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return True
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start_llama_cpp(folder):
    program, templates = have.llama_cpp()
    template, weights = templates / TEMPLATE, folder / "judge.gguf"
    weights.write_bytes(model.gguf(template.read_text(encoding="utf-8")))
    port = free_port()
    shown = ["--jinja", "--chat-template-file", str(template), "--temp", "0", "--slots"]
    room = ["--ctx-size", str(2 * model.CONTEXT), "--parallel", "2", "--threads", "1"]
    command = [str(program), "--model", str(weights), "--host", "127.0.0.1", "--port", str(port), *shown, *room]
    return Server("llama.cpp", command, port, "/health", folder / "llama_cpp.log")


def start_litellm(folder, upstream):
    proxy = have.litellm()
    served = [
        {"model_name": name, "litellm_params": {"model": "openai/judge", "api_base": f"{upstream}/v1", "api_key": "none"}}
        for name in ("through-chat", "through-messages", "through-google", "through-responses")
    ]
    settings = {"model_list": served, "general_settings": {"master_key": KEY}, "litellm_settings": {"num_retries": 0}}
    config = folder / "litellm.yaml"
    config.write_text(json.dumps(settings))  # JSON is YAML
    port = free_port()
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    command = [*proxy, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    return Server("LiteLLM", command, port, "/health/liveliness", folder / "litellm.log", env)


def endpoint(name, base, *more):
    head = [f"[providers.{name}]", f'base_url = "{base}"', *more]
    entry = [f'[models.entries."{name}"]', f'provider = "{name}"', f'model = "through-{name.rpartition("_")[2]}"']
    limits = [f"context_window = {model.CONTEXT}", f"max_output = {model.CONTEXT // 2}"]
    return "\n".join(head + entry + limits) + "\n"


class Desk:
    """A home folder with a configuration, and a working folder."""

    def __init__(self, planck, folder, config):
        self.planck, self.home, self.work = planck, folder / "home", folder / "work"
        (self.home / ".planck").mkdir(parents=True)
        self.work.mkdir()
        (self.home / ".planck/config.toml").write_text(config)
        (self.work / "a.txt").write_text("alpha\n")
        (self.work / "b.txt").write_text("beta\n")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "JUDGES_KEY": KEY}

    def start(self, model_name, session, prompt):
        command = [str(self.planck), "run", "-o", "jsonl", "--model", model_name, "--session", session, prompt]
        return subprocess.Popen(
            command, cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def prompt(self, model_name, session, prompt):
        return finish(self.start(model_name, session, prompt))

    def aborted(self, model_name, session, prompt):
        """Interrupts a run once it streams text."""
        process = self.start(model_name, session, prompt)
        read, deadline = [], time.monotonic() + SCENE_SECONDS
        os.set_blocking(process.stdout.fileno(), False)
        while time.monotonic() < deadline and process.poll() is None:
            piece = process.stdout.read()
            read.append(piece or b"")
            if b'"text_delta"' in b"".join(read):
                process.send_signal(signal.SIGINT)
                break
            time.sleep(0.02)
        os.set_blocking(process.stdout.fileno(), True)
        return finish(process, b"".join(read))


def finish(process, before=b""):
    try:
        out, err = process.communicate(timeout=SCENE_SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise AssertionError(f"it does not end within {SCENE_SECONDS} s") from error
    events = [json.loads(line) for line in (before + out).decode().splitlines() if line]
    return Ran(process.returncode, events, err.decode(errors="replace"))


class Ran:
    def __init__(self, code, events, err):
        self.code, self.events, self.err = code, events, err

    def of(self, kind):
        return [event["data"] for event in self.events if event["type"] == kind]

    def parts(self, kind):
        messages = [said["message"] for said in self.of("message")]
        return [part for said in messages for part in said["content"] if part["type"] == kind]

    def sound(self, code, outcome):
        wrong = self.of("error") + self.of("retry")
        assert not wrong, f"{wrong}"
        assert self.code == code, f"it exits with {self.code}: {self.err[-400:]}"
        ends = [end["outcome"] for end in self.of("turn_end")]
        assert ends == [outcome], f"the turn ends with {ends}: {self.err[-400:]}"
        return self


def text(desk, name):
    ran = desk.prompt(f"{name}", "text", f"Say it: {model.END}").sound(0, "completed")
    said = ran.of("turn_end")[0]["message"]
    assert said.strip() == model.LAST, f"it said {said!r}"
    return ran


def tools(desk, name):
    ran = desk.prompt(f"{name}", "tools", LOOK).sound(0, "completed")
    results = [part["text"] for part in ran.parts("tool_result")]
    assert len(results) == 2 and "alpha" in results[0] and "beta" in results[1], f"the results are {results}"
    ids = [part["id"] for part in ran.parts("tool_call")]
    assert len(set(ids)) == 2, f"the ids are {ids}"
    said = ran.of("turn_end")[0]["message"]
    assert said.strip() == model.LAST, f"it said {said!r}"
    return ran


def thinking(ran):
    thoughts = [part["text"] for part in ran.parts("thinking")]
    assert any(model.THOUGHT in thought for thought in thoughts), f"its thoughts are {thoughts}"


def abort(desk, name, llama):
    ran = desk.aborted(f"{name}", "abort", f"Go on for ever: {model.LOOP}").sound(130, "aborted")
    kept = [part["text"] for part in ran.parts("text")][-1]
    assert model.BLAH.strip() in kept, f"of its text {kept[:80]!r} is kept"
    if llama:
        idle(llama)


def idle(llama):
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        with urllib.request.urlopen(f"{llama.url}/slots", timeout=5) as answer:
            busy = [slot["id"] for slot in json.load(answer) if slot["is_processing"]]
        if not busy:
            return
        assert time.monotonic() < deadline, f"{IDLE_SECONDS} s after the abort the server still works"
        time.sleep(0.1)


def again(desk, name):
    ran = desk.prompt(f"{name}", "abort", f"Enough. Say it: {model.END}").sound(0, "completed")
    said = ran.of("turn_end")[0]["message"]
    assert said.strip() == model.LAST, f"it said {said!r}"


class Bench:
    """Runs the scenes, and counts how they ended."""

    def __init__(self):
        self.failed, self.passed, self.deviations = 0, 0, set()

    def scene(self, name, what, play):
        began = time.monotonic()
        try:
            ran = play()
        except (AssertionError, OSError, ValueError, KeyError, IndexError) as error:
            self.failed += 1
            print(f"FAIL {name:22} {what:9} {type(error).__name__}: {error}", flush=True)
            return None
        self.passed += 1
        print(f"ok   {name:22} {what:9} {time.monotonic() - began:.1f} s", flush=True)
        if isinstance(ran, Ran):
            self.deviations.update(warning["message"] for warning in ran.of("warning"))
        return ran

    def judge(self, planck, folder, name, config, llama, thinks):
        folder = folder / name
        folder.mkdir()
        desk = Desk(planck, folder, config)
        self.scene(name, "text", lambda: text(desk, name))
        ran = self.scene(name, "tools", lambda: tools(desk, name))
        if ran and thinks:
            self.scene(name, "thinking", lambda: thinking(ran))
        self.scene(name, "abort", lambda: abort(desk, name, llama))
        self.scene(name, "again", lambda: again(desk, name))


def main():
    planck, scripted = (Path(path).resolve() for path in sys.argv[1:])
    bench, missing, servers = Bench(), [], []
    folder = Path(tempfile.mkdtemp(prefix="planck-judges-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        llama = had(lambda: start_llama_cpp(folder), "llama.cpp's server", missing, servers)
        if llama:
            v1 = f"{llama.url}/v1"
            for name, config in [
                ("local_chat", endpoint("local_chat", llama.url, 'preset = "llama_cpp"')),
                ("local_messages", endpoint("local_messages", llama.url, 'wire = "anthropic"', 'api_key = "env:JUDGES_KEY"')),
                ("local_responses", endpoint("local_responses", v1, 'wire = "responses"', 'api_key = "env:JUDGES_KEY"')),
            ]:
                bench.judge(planck, folder, name, config, llama, thinks=True)
        else:
            missing.append("thinking, and LiteLLM's routes of Anthropic and Google: the scripted model behind it refuses their requests")
        behind = llama.url if llama else start_scripted(scripted, folder, servers).url
        proxy = had(lambda: start_litellm(folder, behind), "LiteLLM", missing, servers)
        if proxy:
            # LiteLLM passes thinking on only over chat unless the request asks for it. On Google's route it reads its upstream to the
            # end after its client has disconnected.
            for name, base, wire, stops in [
                ("proxy_chat", f"{proxy.url}/v1", "chat", True),
                ("proxy_messages", proxy.url, "anthropic", True),
                ("proxy_responses", f"{proxy.url}/v1", "responses", True),
                ("proxy_google", proxy.url, "google", False),
            ]:
                if not llama and wire in ("anthropic", "google"):
                    continue
                config = endpoint(name, base, f'wire = "{wire}"', 'api_key = "env:JUDGES_KEY"')
                thinks = wire == "chat" and llama is not None
                bench.judge(planck, folder, name, config, llama if stops else None, thinks)
    finally:
        for server in reversed(servers):
            server.stop()
        if bench.failed == 0:
            shutil.rmtree(folder, ignore_errors=True)
    for deviation in sorted(bench.deviations):
        print(f"told: {deviation}")
    for what in missing:
        print(f"WARNING: NOT JUDGED: {what}", file=sys.stderr)
    kept = f"; logs and sessions are in {folder}" if bench.failed else ""
    print(f"{bench.passed} passed, {bench.failed} failed{kept}")
    sys.exit(1 if bench.failed or (missing and os.environ.get("PLANCK_TESTS_NEED_JUDGES")) or not bench.passed else 0)


def start_scripted(program, folder, servers):
    script, port = folder / "script.json", free_port()
    script.write_text(json.dumps(SCRIPT))
    server = Server("the scripted model", [str(program), str(script), str(port)], port, None, folder / "scripted.log")
    servers.append(server)
    return server


def had(start, name, missing, servers):
    try:
        server = start()
    except have.NotHad as why:
        missing.append(f"{name}: {why}")
        return None
    servers.append(server)
    return server


if __name__ == "__main__":
    main()
