"""Writes a GGUF file with a llama of one layer, with handmade weights, so that it says what a test needs.

The current token determines the next one. Attention is uniform, so its output is the share of each token in the prompt. Three
tokens have weight in it: a tool's result and END lead to the last words, LOOP to endless words. Without any of them the model
thinks, calls `read` twice in one answer, and ends.
"""

import struct
import sys

LOOP, END = "zzloop", "zzend"
THOUGHT = "Two files at once."
LAST = "Done with it."
BLAH, MORE = "blah ", "and more "  # the model alternates them, because LiteLLM ends a stream that repeats one chunk

CALL = '<tool_call>\n{"name": "read", "arguments": {"path": '
CHAIN = [
    "<think>", "\n" + THOUGHT, "\n</think>",
    "\n\n" + CALL, '"a.txt"}}', "\n</tool_call>\n", CALL, '"b.txt"}}', "\n</tool_call>",
]
MARKS = ["<tool_response>", LOOP, END]
PLAIN = ["<tool_call>", "</tool_call>", "</think>", "</tool_response>"]  # the tokens that templates and parsers look for
CONTROL = ["<unk>", "<|im_start|>", "<|im_end|>"]
WIDTH = 64
CONTEXT = 65536
UNIFORM = 40.0  # scales the logits, so that sampling has no choice

UNKNOWN_TYPE, CONTROL_TYPE, USER_TYPE, BYTE_TYPE = 2, 3, 4, 6


def vocabulary():
    tokens = [(text, CONTROL_TYPE) for text in CONTROL]
    tokens[0] = ("<unk>", UNKNOWN_TYPE)
    tokens += [(f"<0x{byte:02X}>", BYTE_TYPE) for byte in range(256)]
    tokens += [(text, USER_TYPE) for text in CHAIN + MARKS + PLAIN + [LAST, BLAH, MORE]]
    assert len({text for text, _ in tokens}) == len(tokens)
    return tokens


def weights(tokens):
    """Gives each token that matters its own dimension, and three more to the flags that attention writes."""
    number = {text: at for at, (text, _) in enumerate(tokens)}
    newline, end = number["<0x0A>"], number["<|im_end|>"]
    chain = [number[text] for text in CHAIN]
    marks = [number[text] for text in MARKS]
    last, blah, more = number[LAST], number[BLAH], number[MORE]
    followed = [newline, *chain, last, blah, more]
    dimension = {token: at for at, token in enumerate([*followed, *marks])}
    flags = [WIDTH - 1 - at for at in range(len(MARKS))]
    assert len(dimension) + len(flags) <= WIDTH

    embedding = matrix(len(tokens))
    for token, at in dimension.items():
        embedding[token][at] = 1.0
    value, output = matrix(WIDTH), matrix(WIDTH)
    for at, (mark, flag) in enumerate(zip(marks, flags)):
        value[at][dimension[mark]] = 1.0
        output[flag][at] = 1.0

    # A row of the head says how much each dimension counts for this token. A flag is at least the share of one token in a full
    # context. The weight of the next token within an answer exceeds the largest flag.
    head = matrix(len(tokens))
    least, always = float(CONTEXT), 1e8
    head[chain[0]][dimension[newline]] = 1.0
    for before, after in zip([*chain, last, blah, more], [*chain[1:], end, end, more, blah]):
        head[after][dimension[before]] = always
    response, loop, ended = flags
    head[last][response] = head[blah][loop] = least
    head[last][ended] = 4 * least  # exceeds any loop and result before it
    scaled = [[UNIFORM * weight for weight in row] for row in head]
    return embedding, value, output, scaled


def matrix(rows):
    return [[0.0] * WIDTH for _ in range(rows)]


def tensors(tokens):
    embedding, value, output, head = weights(tokens)
    zero, ones = matrix(WIDTH), [[1.0] * WIDTH]
    layer = {"attn_norm": ones, "attn_q": zero, "attn_k": zero, "attn_v": value, "attn_output": output,
             "ffn_norm": ones, "ffn_gate": zero, "ffn_up": zero, "ffn_down": zero}
    named = {"token_embd.weight": embedding, "output_norm.weight": ones, "output.weight": head}
    named.update({f"blk.0.{name}.weight": rows for name, rows in layer.items()})
    return named


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def members(tokens, template):
    def number(value):
        return struct.pack("<II", 4, value)

    def real(value):
        return struct.pack("<If", 6, value)

    def string(value):
        return struct.pack("<I", 8) + text(value)

    def listed(kind, items):
        return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)

    ids = {token: at for at, (token, _) in enumerate(tokens)}
    return {
        "general.architecture": string("llama"),
        "general.name": string("judge"),
        "llama.block_count": number(1),
        "llama.context_length": number(CONTEXT),
        "llama.embedding_length": number(WIDTH),
        "llama.feed_forward_length": number(WIDTH),
        "llama.attention.head_count": number(1),
        "llama.rope.dimension_count": number(WIDTH),
        "llama.attention.layer_norm_rms_epsilon": real(1e-6),
        "llama.vocab_size": number(len(tokens)),
        "tokenizer.ggml.model": string("llama"),
        "tokenizer.ggml.pre": string("default"),
        "tokenizer.ggml.tokens": listed(8, [text(token) for token, _ in tokens]),
        "tokenizer.ggml.scores": listed(6, [struct.pack("<f", 0.0)] * len(tokens)),
        "tokenizer.ggml.token_type": listed(5, [struct.pack("<i", kind) for _, kind in tokens]),
        "tokenizer.ggml.bos_token_id": number(ids["<|im_start|>"]),
        "tokenizer.ggml.eos_token_id": number(ids["<|im_end|>"]),
        "tokenizer.ggml.unknown_token_id": number(0),
        "tokenizer.ggml.add_bos_token": struct.pack("<IB", 7, 0),
        "tokenizer.ggml.add_space_prefix": struct.pack("<IB", 7, 0),
        "tokenizer.chat_template": string(template),
    }


def gguf(template):
    tokens = vocabulary()
    about, named = members(tokens, template), tensors(tokens)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(named), len(about))
    out += b"".join(text(key) + value for key, value in about.items())
    data = b""
    for name, rows in named.items():
        shape = [WIDTH] if len(rows) == 1 else [WIDTH, len(rows)]
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += b"".join(struct.pack(f"<{WIDTH}f", *row) for row in rows)
        data += b"\0" * (-len(data) % 32)
    return out + b"\0" * (-len(out) % 32) + data


def main():
    template, path = sys.argv[1:]
    with open(template, encoding="utf-8") as file, open(path, "wb") as out:
        out.write(gguf(file.read()))


if __name__ == "__main__":
    main()
