"""A scriptable engine: llama-server's arguments and endpoints, and every way of lying that real engines were seen with.

It stands in for faults that cannot be had for real in a test's time: a wedge, counters that lie, a load of
minutes. It runs in a container like any engine (fixture `fake_engine_image`) with nothing but the standard
library, and recites the alphabet as the generated models do: one character is one token, and a text goes on after
its last character.

What it does stands in `fake.json` in the folder of its model, which is mounted into the container; it is read
again at every step, so that a test can change the engine's mind while it runs (`Script.write`). Keys, with
their defaults:

    load_seconds 0      seconds until it is loaded; /health says 503 until then
    load_lines 0        lines a second that it logs while it loads
    load_fail null      exit code with which it ends instead of being loaded
    load_log ""         what it logs last before that
    oom_at_load false   ends the load as llama.cpp does without memory: its words, exit code 1
    grow_bytes 0        bytes a second of memory that it takes while it loads, at most 64 MB
    tps 500             tokens a second of each request
    prefill_tps 100000  prompt tokens a second (a token is a character)
    first_request_s 0   seconds for which a request of a client computes before anything else, once (a kernel is
                        compiled), each time that this number changes
    compiler_mb 64      memory that it takes and gives back meanwhile, as a compiler does; 0: it only spins
    reads_s 0           seconds for which a request of a client does nothing but read the weights' folder's `ballast`
                        from the disk, past the page cache, once each time that this number changes; `reads_bytes`
                        5000000: so many bytes a second
    hang_after null     tokens after which every request stops, its connection open, until this is null again
    wedge false         accepts, and answers nothing but /health
    health_hangs false  /health does not answer either; slots_hang, metrics_hang: the same for these
    health_lies false   /health says 200 while it loads, and later too, whatever goes on
    livelock false      counters go on as if tokens were made; none comes
    status null         answers every completion with this status
    garbage false       the letters come in another order
    crosstalk false     a request that runs beside others answers with their text
    drop_first null     answers with only that many tokens right, then others
    wrong_drafts null   the same, only of answers that it drafts: asked for one token it is right
    logprob 0.0         what it says of each right token; wrong ones get -20
    die_after null      tokens (over all requests) after which its process ends with `exit_code`
    die_signal null     kills itself with this signal instead
    no_done false       a stream ends without [DONE]
    lump_counters true  tokens are counted when a request ends, as llama.cpp counts; false: one by one
    speculative null    what /slots says of it; null: whether it was given --spec-type
    draft_rate 1.0      how many of the drafted tokens are accepted; 0: none. draft_length 5: tokens a draft
    drafts true         whether it drafts at all when it speculates
    ignore_sigterm false
    slow_end 0          seconds that it takes to end after SIGTERM
    exit_code 0         with which it ends
    log []              lines that it logs once, when they appear here

Files of this name that cannot be read are taken as the last one that could.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n"
OUT_OF_MEMORY = "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99999999999"
STEP = 0.02
GROWS_TO = 64 << 20
DEFAULTS: Mapping[str, Any] = {
    "load_seconds": 0,
    "load_lines": 0,
    "load_fail": None,
    "load_log": "",
    "oom_at_load": False,
    "grow_bytes": 0,
    "tps": 500,
    "prefill_tps": 100_000,
    "first_request_s": 0,
    "compiler_mb": 64,
    "reads_s": 0,
    "reads_bytes": 5_000_000,
    "hang_after": None,
    "wedge": False,
    "health_hangs": False,
    "slots_hang": False,
    "metrics_hang": False,
    "health_lies": False,
    "livelock": False,
    "status": None,
    "garbage": False,
    "crosstalk": False,
    "drop_first": None,
    "wrong_drafts": None,
    "logprob": 0.0,
    "die_after": None,
    "die_signal": None,
    "no_done": False,
    "lump_counters": True,
    "speculative": None,
    "draft_rate": 1.0,
    "draft_length": 5,
    "drafts": True,
    "ignore_sigterm": False,
    "slow_end": 0,
    "exit_code": 0,
    "log": [],
}


class Script:
    """`fake.json` of one model's folder: written by tests, read by the engine."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "fake.json"
        self._stamp: object = None
        self._known = dict(DEFAULTS)

    def write(self, **values: Any) -> None:
        """Make these the engine's script, whole at once. Other keys go back to their defaults."""
        unknown = set(values) - set(DEFAULTS)
        if unknown:
            raise ValueError(f"the fake engine knows no {', '.join(sorted(unknown))}")
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.chmod(0o644)
        new.rename(self.file)

    def read(self) -> Mapping[str, Any]:
        """What holds now."""
        try:
            found = os.stat(self.file)
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._stamp:
                self._known = {**DEFAULTS, **json.loads(self.file.read_text())}
                self._stamp = stamp
        except (OSError, ValueError):
            pass
        return self._known


def after(text: str) -> Iterator[str]:
    """What the reciter says after a text."""
    start = ALPHABET.find(text[-1:]) + 1 if text else 0
    return itertools.islice(itertools.cycle(ALPHABET), start, None)


class State:
    """What all requests share."""

    def __init__(self, script: Script, slots: int, speculates: bool, names: list[str]) -> None:
        self.script = script
        self.names = names
        self.speculates = speculates
        self.lock = threading.Lock()
        self.free = threading.Semaphore(slots)
        self.slots = slots
        self.loaded = False
        self.waiting = 0
        self.running: dict[int, dict[str, Any]] = {}
        self.ids = itertools.count()
        self.counts = {"prompt": 0, "generated": 0, "drafted": 0, "accepted": 0, "drafts": 0}
        self.made = 0
        self.compiled = self.has_read = 0.0
        self.compiler = threading.Lock()
        self.kept = bytearray()
        self.logged = 0
        self.lively = 0.0

    def knob(self, name: str) -> Any:
        return self.script.read()[name]

    def count(self, **more: int) -> None:
        with self.lock:
            for name, value in more.items():
                self.counts[name] += value


def log(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def end(state: State) -> None:
    """The process's own end, by signal or exit code."""
    number = state.knob("die_signal")
    if number is not None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(state.knob("exit_code"))


def load(state: State) -> None:
    """Take as long as the script says, or fail as it says; then look after what the script logs."""
    began = time.monotonic()
    lines = grown = 0
    while not state.loaded:
        said, passed = state.script.read(), time.monotonic() - began
        if said["oom_at_load"]:
            log(OUT_OF_MEMORY)
            log("main: error: unable to load model")
            os._exit(1)
        if said["load_fail"] is not None and passed >= said["load_seconds"]:
            log(said["load_log"])
            os._exit(said["load_fail"])
        while lines < passed * said["load_lines"]:
            lines += 1
            log(f"load_tensors: layer {lines}")
        while grown < min(GROWS_TO, passed * said["grow_bytes"]):
            state.kept += os.urandom(1 << 16)
            grown += 1 << 16
        state.loaded = passed >= said["load_seconds"]
        time.sleep(STEP)
    log("main: model loaded")
    while True:
        said = state.script.read()
        for line in said["log"][state.logged :]:
            state.logged += 1
            log(line)
        if said["livelock"]:
            state.count(generated=5)
        if said["die_signal"] is not None and said["die_after"] is None:
            end(state)
        time.sleep(STEP)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        pass

    def address_string(self) -> str:
        return "unix"

    @property
    def state(self) -> State:
        return self.server.state

    def hold(self, *knobs: str) -> None:
        """Answer nothing for as long as one of these is on."""
        while any(self.state.knob(k) for k in knobs):
            time.sleep(STEP)

    def answer(self, status: int, body: object, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, text: str) -> None:
        self.answer(status, {"error": {"code": status, "message": text, "type": "fake_error"}})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        state = self.state
        if path == "/health":
            self.hold("health_hangs")
            if state.loaded or state.knob("health_lies"):
                return self.answer(200, {"status": "ok"})
            return self.refuse(503, "Loading model")
        self.hold("wedge")
        if not state.loaded and path != "/v1/models":
            return self.refuse(503, "Loading model")
        if path == "/v1/models":
            return self.answer(200, {"object": "list", "data": [{"id": n, "object": "model"} for n in state.names]})
        if path == "/slots":
            self.hold("slots_hang")
            return self.answer(200, self.slots())
        if path == "/metrics":
            self.hold("metrics_hang")
            return self.answer(200, self.metrics(), "text/plain; version=0.0.4")
        if path == "/props":
            return self.answer(200, {"total_slots": state.slots, "model_alias": state.names[0]})
        return self.refuse(404, "File Not Found")

    def slots(self) -> list[dict[str, Any]]:
        """As llama-server shows them: what runs, and how far it is."""
        state = self.state
        said = state.knob("speculative")
        shown = state.speculates if said is None else said
        with state.lock:
            busy = list(state.running.values())
        return [
            {
                "id": at,
                "n_ctx": 2048,
                "speculative": shown,
                "is_processing": at < len(busy),
                **(
                    {
                        "id_task": busy[at]["id"],
                        "n_prompt_tokens": busy[at]["prompt"],
                        "n_prompt_tokens_processed": busy[at]["prefilled"],
                        "next_token": [{"n_decoded": busy[at]["decoded"], "n_remain": busy[at]["left"]}],
                    }
                    if at < len(busy)
                    else {}
                ),
            }
            for at in range(state.slots)
        ]

    def metrics(self) -> str:
        state = self.state
        with state.lock:
            counts, running, waiting = dict(state.counts), len(state.running), state.waiting
        lines = {
            "prompt_tokens_total": counts["prompt"],
            "tokens_predicted_total": counts["generated"],
            "requests_processing": running,
            "requests_deferred": waiting,
        }
        if state.speculates:
            lines |= {
                "spec_decode_num_draft_tokens_total": counts["drafted"],
                "spec_decode_num_accepted_tokens_total": counts["accepted"],
                "spec_decode_num_drafts_total": counts["drafts"],
            }
        return "".join(f"llamacpp:{name} {value}\n" for name, value in lines.items())

    def do_POST(self) -> None:
        state = self.state
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.hold("wedge")
        try:
            asked = json.loads(raw)
        except ValueError:
            return self.refuse(400, "no JSON")
        if not state.loaded:
            return self.refuse(503, "Loading model")
        path = self.path.partition("?")[0]
        if path == "/tokenize":
            return self.answer(200, {"tokens": [ord(c) for c in str(asked.get("content", ""))]})
        if path == "/detokenize":
            return self.answer(200, {"content": _text(asked.get("tokens", []))})
        if path == "/apply-template":
            return self.answer(200, {"prompt": "".join(str(m.get("content", "")) for m in asked["messages"]) + "\n"})
        if path not in ("/v1/chat/completions", "/v1/completions", "/completion", "/completions"):
            return self.refuse(404, "File Not Found")
        status = state.knob("status")
        if status is not None:
            return self.refuse(status, "the script says so")
        return self.complete(path, asked)

    def complete(self, path: str, asked: dict[str, Any]) -> None:
        state = self.state
        chat = path.endswith("/chat/completions")
        text = "".join(str(m.get("content", "")) for m in asked["messages"]) if chat else _text(asked.get("prompt", ""))
        wanted = next((asked[k] for k in ("max_tokens", "max_completion_tokens", "n_predict") if k in asked), 64)
        number = next(state.ids)
        me = {"id": number, "prompt": len(text), "prefilled": 0, "decoded": 0, "left": wanted}
        with state.lock:
            state.waiting += 1
        with state.free:
            with state.lock:
                state.waiting -= 1
                state.running[number] = me
            try:
                self.recite(asked, me, "" if chat else text, chat=chat, wanted=wanted, native=path == "/completion")
            except OSError:
                self.close_connection = True  # the client left
            finally:
                with state.lock:
                    del state.running[number]

    def recite(
        self, asked: dict[str, Any], me: dict[str, Any], text: str, *, chat: bool, wanted: int, native: bool
    ) -> None:
        """Prefill, then token by token; as a stream or in one."""
        state = self.state
        self.compile()
        self.read_disk()
        self.prefill(me)
        stream = bool(asked.get("stream"))
        if stream:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
        right = after(text)
        pieces: list[tuple[str, float]] = []
        for at in range(wanted):
            self.hold_hang(at)
            token, logprob = self.token(next(right), at, drafted=state.speculates and wanted > 2)
            pieces.append((token, logprob))
            self.pause(1 / state.knob("tps"))
            me["decoded"] += 1
            me["left"] -= 1
            if not state.knob("lump_counters"):
                state.count(generated=1)
            with state.lock:
                state.made += 1
            dies = state.knob("die_after")
            if stream:
                self.event(self.piece(asked, token, chat=chat))
            if dies is not None and state.made >= dies:
                end(state)
        self.settle(me, wanted)
        if not stream:
            self.answer(200, self.whole(asked, pieces, me, chat=chat, native=native))
            return
        self.event(self.piece(asked, "", chat=chat, finish="length"))
        if not state.knob("no_done"):
            self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def compile(self) -> None:
        """Use some CPU for as long as the script says, the first time that it says so; all others wait meanwhile."""
        state = self.state
        with state.compiler:
            seconds = state.knob("first_request_s")
            if seconds == state.compiled:
                return
            state.compiled = seconds
            until = time.monotonic() + seconds
            taken: list[mmap.mmap] = []
            while time.monotonic() < until:
                if len(taken) < state.knob("compiler_mb"):
                    taken.append(mmap.mmap(-1, 1 << 20))  # an allocator would keep it when it is given back
                    taken[-1].write(b"\1" * (1 << 20))
                else:
                    taken.clear()
                spin = time.monotonic() + STEP
                while time.monotonic() < spin:
                    pass
                time.sleep(STEP)

    def read_disk(self) -> None:
        """Wait for a slow disk as a page fault does: nothing is computed, bytes come; all others wait meanwhile."""
        state = self.state
        with state.compiler:
            seconds = state.knob("reads_s")
            if seconds == state.has_read:
                return
            state.has_read = seconds
            page = mmap.mmap(-1, 1 << 20)
            file = os.open(state.script.file.with_name("ballast"), os.O_RDONLY | os.O_DIRECT)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if os.readv(file, [page]) == 0:
                    os.lseek(file, 0, os.SEEK_SET)
                time.sleep(len(page) / state.knob("reads_bytes"))
            os.close(file)

    def prefill(self, me: dict[str, Any]) -> None:
        while me["prefilled"] < me["prompt"]:
            step = max(1, int(self.state.knob("prefill_tps") * STEP))
            me["prefilled"] = min(me["prompt"], me["prefilled"] + step)
            if me["prefilled"] < me["prompt"]:
                self.pause(STEP)

    def hold_hang(self, at: int) -> None:
        while True:
            said = self.state.script.read()
            if not said["livelock"] and (said["hang_after"] is None or at < said["hang_after"]):
                return
            time.sleep(STEP)

    def token(self, right: str, at: int, *, drafted: bool) -> tuple[str, float]:
        state = self.state
        said = state.script.read()
        wrong = said["garbage"] or (said["drop_first"] is not None and at >= said["drop_first"])
        wrong = wrong or (drafted and said["wrong_drafts"] is not None and at >= said["wrong_drafts"])
        if said["crosstalk"] and len(state.running) > 1:
            wrong = True
        return ("#", -20.0) if wrong else (right, said["logprob"])

    def settle(self, me: dict[str, Any], wanted: int) -> None:
        """Count what a request took, as llama.cpp does when it ends."""
        state = self.state
        said = state.script.read()
        more = {"prompt": me["prompt"], "generated": wanted if said["lump_counters"] else 0}
        if state.speculates and said["drafts"] and wanted > 2:
            drafts = max(1, wanted // (1 + round(said["draft_length"] * said["draft_rate"])))
            drafted = drafts * said["draft_length"]
            more |= {"drafts": drafts, "drafted": drafted, "accepted": round(drafted * said["draft_rate"])}
        state.count(**more)

    def pause(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def event(self, body: object) -> None:
        self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def piece(self, asked: dict[str, Any], token: str, *, chat: bool, finish: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice |= {"delta": {"content": token} if token else {}} if chat else {"text": token}
        kind = "chat.completion.chunk" if chat else "text_completion"
        return {"id": "fake", "object": kind, "created": 0, "model": asked.get("model"), "choices": [choice]}

    def whole(
        self, asked: dict[str, Any], pieces: list[tuple[str, float]], me: dict[str, Any], *, chat: bool, native: bool
    ) -> dict[str, Any]:
        text = "".join(token for token, _ in pieces)
        known = [
            {
                "id": ord(t),
                "token": t,
                "bytes": list(t.encode()),
                "logprob": p,
                "top_logprobs": [{"id": ord(t), "token": t, "bytes": list(t.encode()), "logprob": p}],
            }
            for t, p in pieces
        ]
        if native:
            said: dict[str, Any] = {"content": text, "stop": True, "tokens_predicted": len(pieces)}
            return said | ({"completion_probabilities": known} if asked.get("n_probs") else {})
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if asked.get("logprobs"):
            choice["logprobs"] = {"content": known}
        usage = {"prompt_tokens": me["prompt"], "completion_tokens": len(pieces)}
        usage["total_tokens"] = sum(usage.values())
        kind = "chat.completion" if chat else "text_completion"
        head = {"id": "fake", "object": kind, "created": 0, "model": asked.get("model")}
        return {**head, "choices": [choice], "usage": usage}


def _text(prompt: object) -> str:
    """A prompt given as text or as tokens."""
    if isinstance(prompt, list):
        return "".join(chr(t) if isinstance(t, int) else str(t) for t in prompt)
    return str(prompt)


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """HTTP on a unix socket, or on a port."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, host: str, port: int, state: State) -> None:
        self.state = state
        if host.endswith(".sock"):
            self.address_family = socket.AF_UNIX
            super().__init__(host, Handler)  # type: ignore[arg-type]  # a unix socket's address is a path
        else:
            super().__init__((host, port), Handler)

    def get_request(self) -> tuple[Any, Any]:
        request, address = super().get_request()
        return request, address or ("unix", 0)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no error."""


def option(words: list[str], *names: str) -> str | None:
    """The value of an option of llama-server."""
    for name, value in itertools.pairwise(words):
        if name in names:
            return value
    return None


def main(words: list[str]) -> int:
    """Serve until SIGTERM."""
    model = option(words, "-m", "--model")
    if model is None:
        log("error: --model is required")
        return 1
    names = (option(words, "--alias", "-a") or "model").split(",")
    speculates = option(words, "--spec-type") not in (None, "none")
    state = State(Script(Path(model).parent), int(option(words, "-np", "--parallel") or 1), speculates, names)

    def ended(*_: object) -> None:
        if state.knob("ignore_sigterm"):
            log("a signal, ignored")
            return
        time.sleep(state.knob("slow_end"))
        os._exit(state.knob("exit_code"))

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    threading.Thread(target=load, args=(state,), daemon=True).start()
    with Server(option(words, "--host") or "127.0.0.1", int(option(words, "--port") or 8080), state) as server:
        server.serve_forever(poll_interval=STEP)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
