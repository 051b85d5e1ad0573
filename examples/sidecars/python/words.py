"""A sidecar with one tool, on the SDK. `planck demo` runs it."""

from planck_sidecar import Sidecar

sidecar = Sidecar("words", "1.0.0")


@sidecar.tool(effect="pure")
async def count_words(text: str) -> str:
    "Counts the words of a text."
    return str(len(text.split()))


if __name__ == "__main__":
    sidecar.run()
