"""Fetches and builds the servers below `.tools/servers`. A server that is already there in the pinned version is used."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLACE = HERE.parent.parent.parent / ".tools" / "servers"
FETCH_SECONDS = 900
BUILD_SECONDS = int(os.environ.get("PLANCK_JUDGES_BUILD_SECONDS", "5400"))

# The server runs one process with one model and downloads nothing. Other parts would only cost compile time.
CMAKE = [
    "-DCMAKE_BUILD_TYPE=Judge", "-DCMAKE_CXX_FLAGS=-O0 -g0", "-DCMAKE_C_FLAGS=-O1 -g0", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF", "-DGGML_LLAMAFILE=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
]


class NotHad(Exception):
    """Says why a server is not available on this machine."""


def run(command, seconds, log):
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        try:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=seconds)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotHad(f"{error}; see {log}") from error
    if done.returncode != 0:
        raise NotHad(f"`{' '.join(map(str, command[:6]))} …` failed; see {log}")


def is_current(folder, pinned):
    taken = folder / "pinned"
    return taken.is_file() and taken.read_text() == pinned


def begin(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def llama_cpp():
    """Returns the path of `llama-server`, and the folder of chat templates beside it."""
    folder, sources = PLACE / "llama_cpp", HERE / "sources.txt"
    pinned = sources.read_text() + "\n".join(CMAKE)
    if not is_current(folder, pinned):
        for program in ("cmake", "c++"):
            if not shutil.which(program):
                raise NotHad(f"{program} is not installed")
        begin(folder)
        print("judges: building llama.cpp's server; this takes 10 to 30 minutes once", flush=True)
        build_llama_cpp(folder, sources)
        (folder / "pinned").write_text(pinned)
    return folder / "llama-server", folder / "templates"


def build_llama_cpp(folder, sources):
    log = folder / "build.log"
    with tempfile.TemporaryDirectory() as work:
        options = ["--quiet", "--require-hashes", "--no-deps", "--dest", work, "--requirement", str(sources)]
        run([sys.executable, "-m", "pip", "download", *options], FETCH_SECONDS, log)
        (archive,) = Path(work).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(work, filter="data")
        (tree,) = Path(work).glob("*/llama.cpp")
        build = Path(work) / "build"
        ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
        run(["cmake", "-S", str(tree), "-B", str(build), *ninja, *CMAKE], FETCH_SECONDS, log)
        run(["cmake", "--build", str(build), "--target", "llama-server", "--parallel", str(os.cpu_count() or 1)], BUILD_SECONDS, log)
        shutil.copytree(tree / "models" / "templates", folder / "templates")
        shutil.copy2(build / "bin" / "llama-server", folder / "llama-server")


def litellm():
    """Returns the command of LiteLLM's proxy. The command names the interpreter, because the proxy's script contains the path at
    which it was installed, and that path is wrong once the checkout has moved."""
    folder, wheels = PLACE / "litellm", HERE / "requirements.txt"
    pinned = wheels.read_text() + sys.implementation.cache_tag
    if not is_current(folder, pinned):
        begin(folder)
        print("judges: fetching LiteLLM", flush=True)
        log = folder / "install.log"
        run([sys.executable, "-m", "venv", str(folder / "venv")], FETCH_SECONDS, log)
        options = ["--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement", str(wheels)]
        run([str(folder / "venv/bin/python"), "-m", "pip", "install", *options], FETCH_SECONDS, log)
        (folder / "pinned").write_text(pinned)
    return [str(folder / "venv/bin/python"), str(folder / "venv/bin/litellm")]
