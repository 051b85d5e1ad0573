"""The sidecar SIDECAR_NAME. Each function with `@sidecar.tool` is a tool: its annotations define the schema that the model sees, and
its docstring the description."""

import asyncio
from typing import Annotated

from planck_sidecar import Context, Sidecar

sidecar = Sidecar("SIDECAR_NAME", "0.1.0")

STEPS = 10


@sidecar.tool(effect="pure")
async def sort_words(
    context: Context,
    text: Annotated[str, "The text whose words to sort"],
    seconds: Annotated[float, "How long to take over it"] = 0,
) -> str:
    "Sorts the words of a text."
    for step in range(STEPS):
        # A progress report also extends the time for which the node waits.
        context.progress(f"step {step + 1} of {STEPS}", 100 * step / STEPS)
        # When the answer is no longer wanted, this function has a second to stop by itself.
        if context.cancelled.is_set():
            raise RuntimeError(f"cancelled at step {step + 1}")
        await asyncio.sleep(max(0, seconds) / STEPS)
    # An exception becomes the error that the model reads.
    if not text.strip():
        raise ValueError("the text has no words; give one that has")
    return " ".join(sorted(text.split()))


if __name__ == "__main__":
    sidecar.run()
