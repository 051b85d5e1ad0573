"""Decides which requests are answered: those whose reply subject is an inbox. A sidecar may publish to more subjects than its
callers, and its answers could be commands of another program."""

from __future__ import annotations

import logging
import time

# The first words of the cluster's own subjects.
OWN = frozenset(("agent", "session", "node", "cluster", "sidecar", "cancel", "tool", "compact", "cmd"))
LONGEST = 1024
# The minimum time between two log lines about refused requests, in seconds.
QUIET = 60.0

log = logging.getLogger("planck_sidecar")


def admits(subject: str, prefix: str = "", more: tuple[str, ...] | list[str] = ()) -> bool:
    """Whether a reply may go to a subject, in a cluster with a subject prefix and further inbox prefixes."""
    words = subject.split(".")
    literal = all(word and all("!" <= letter <= "~" and letter not in "*>" for letter in word) for word in words)
    if len(subject) > LONGEST or len(words) < 2 or not literal:
        return False
    rest = subject[len(prefix) + 1 :] if prefix and subject.startswith(f"{prefix}.") else None if prefix else subject
    if rest is not None and rest.split(".")[0] in OWN:
        return False
    if words[0] == "_GR_":
        # The server removes the first three words, and the reply goes to the rest.
        return admits(".".join(words[3:]), prefix, more)
    return words[0] == "_R_" or words[0].startswith("_INBOX") or any(subject.startswith(f"{inbox}.") for inbox in more)


class ReplyGuard:
    """Refuses requests whose reply would go to another subject, counts them, and logs some of them."""

    def __init__(self, prefix: str, more: list[str]) -> None:
        self.prefix, self.more, self.refused, self._logged = prefix, more, 0, float("-inf")

    def admits(self, request: str, to: str) -> bool:
        """Whether a request is performed. One without a reply subject, or with one that is not an inbox, is not."""
        if not to:
            return False
        if admits(to, self.prefix, self.more):
            return True
        self.refused += 1
        if time.monotonic() - self._logged >= QUIET:
            self._logged = time.monotonic()
            log.warning("refused a request on %r: its reply would go to %r, which is no inbox (%d so far)", request, to, self.refused)
        return False
