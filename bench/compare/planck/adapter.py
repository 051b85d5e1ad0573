"""Planck in one process with SQLite, as a contender of tools/compare."""

import json
import os
import subprocess
import sys

PLANCK, BENCH = os.environ["COMPARE_PLANCK"], os.environ["COMPARE_PLANCK_BENCH"]
MODEL, DIR, STORE = os.environ["COMPARE_MODEL"], os.environ["COMPARE_DIR"], os.environ["COMPARE_STORE"]
SESSION = "compare"


def main():
    what, *rest = sys.argv[1:]
    if what == "version":
        print("version", subprocess.run([PLANCK, "--version"], capture_output=True, text=True, check=True).stdout.strip())
    elif what == "cost":
        _, agents, turns = rest
        options = [f"--agents={agents}", "--sessions=1", f"--turns={turns}", f"--model={MODEL}", "--dir", DIR, "--store", STORE]
        os.execv(BENCH, [BENCH, "contend", *options])
    elif what == "prompt":
        watch(["run", "--session", SESSION, "-o", "json", rest[0]])
    elif what == "resume":
        watch(["session", "resume", SESSION])


def watch(arguments):
    """Runs a command of Planck, and tells its process, which is the one that works, and its answer."""
    env = os.environ | {"HOME": STORE}
    env.pop("NATS_URL", None)
    os.makedirs(os.path.join(STORE, ".planck"), exist_ok=True)
    with open(os.path.join(STORE, ".planck", "config.toml"), "w") as config:
        config.write(f'models.default = "scripted:book"\nproviders.scripted.base_url = "{MODEL}"\n')
    process = subprocess.Popen([PLANCK, *arguments], env=env, cwd=DIR, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    print("process", process.pid, flush=True)
    said = process.communicate()[0]
    if process.returncode:
        sys.exit(f"planck {arguments[0]} ended with {process.returncode}")
    if arguments[0] == "run":
        said = json.loads(said)["answer"] or ""
    print("answer", " ".join(said.split()), flush=True)


if __name__ == "__main__":
    main()
