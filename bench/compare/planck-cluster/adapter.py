"""Two nodes of Planck with NATS on this machine, as a contender of tools/compare."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

PLANCK, MODEL, DIR = os.environ["COMPARE_PLANCK"], os.environ["COMPARE_MODEL"], os.environ["COMPARE_DIR"]
STORE = pathlib.Path(os.environ["COMPARE_STORE"])
NATS = shutil.which("nats-server") or os.path.join(os.environ["COMPARE_TOOLS"], "bin", "nats-server")
SESSION = "compare"


def main():
    what, *rest = sys.argv[1:]
    if what == "version":
        planck, nats = (subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip() for program in (PLANCK, NATS))
        print(f"version {planck}, {nats}")
    elif what == "up":
        up()
    elif what == "prompt":
        prompt(rest[0])
    elif what == "resume":
        print("nothing the client of the cluster has ended without an answer")
    else:
        sys.exit(f"{what} is not known")


def up():
    """Starts the server and both nodes, and ends them when standard input is closed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{free.getsockname()[1]}"
    (STORE / "nats.url").write_text(url)
    (STORE / ".planck").mkdir()
    (STORE / ".planck" / "config.toml").write_text(f'models.default = "scripted:book"\nproviders.scripted.base_url = "{MODEL}"\n')
    host, port = url.removeprefix("nats://").split(":")
    parts = [start([NATS, "--addr", host, "--port", port, "--jetstream", "--store_dir", str(STORE / "nats")])]
    try:
        wait(lambda: reaches(host, int(port)))
        for name in ("one", "two"):
            parts.append(start([PLANCK, "node"], PLANCK_NODE_NAME=name))
            (STORE / f"{name}.pid").write_text(str(parts[-1].pid))
        wait(lambda: len(alive()) == 2)
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        for part in parts:
            part.send_signal(signal.SIGKILL)
            part.wait()


def start(command, **more):
    return subprocess.Popen(command, env=environment() | more, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def environment():
    url = (STORE / "nats.url").read_text()
    return os.environ | {"HOME": str(STORE), "NATS_URL": url}


def wait(holds):
    until = time.time() + 40
    while not holds():
        if time.time() > until:
            sys.exit("the cluster does not start")
        time.sleep(0.05)


def reaches(host, port):
    with socket.socket() as connection:
        return connection.connect_ex((host, port)) == 0


def alive():
    return [node for node in ask("nodes", "ls") if node["state"] == "alive"]


def ask(*arguments):
    done = subprocess.run([PLANCK, *arguments, "-o", "json"], env=environment(), capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else []


def prompt(text):
    """Gives the prompt, tells which process hosts the session, and then the answer."""
    command = [PLANCK, "run", "--session", SESSION, "-o", "json", text]
    client = subprocess.Popen(command, env=environment(), cwd=DIR, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    print("process", host(client), flush=True)
    said = client.communicate()[0]
    if client.returncode:
        sys.exit(f"planck run ended with {client.returncode}: {said}")
    print("answer", " ".join((json.loads(said)["answer"] or "").split()), flush=True)


def host(client):
    """Returns the id of the process of the node that hosts the session."""
    names = {node["id"]: node["name"] for node in ask("nodes", "ls")}
    while client.poll() is None:
        shown = ask("session", "show", SESSION)
        node = shown["agents"][0]["node_id"] if shown else None
        if node in names:
            return (STORE / f"{names[node]}.pid").read_text()
    return 0


if __name__ == "__main__":
    main()
