"""Write a Planck sidecar: a program that brings tools and compactors to the agents of a cluster, over NATS.

    from planck_sidecar import Sidecar

    sidecar = Sidecar("calculator", "1.0.0")

    @sidecar.tool(effect="pure")
    async def add(numbers: list[float]) -> str:
        "Adds numbers."
        return str(sum(numbers))

    sidecar.run()
"""

from .request_handler import Context, Conversation, Skip, Summary
from .harness import Answer, Harness
from .sidecar import Sidecar

__all__ = ["Answer", "Context", "Conversation", "Harness", "Sidecar", "Skip", "Summary"]
