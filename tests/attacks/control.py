"""Control channel: messages that a hostile session sends to the server, unasked, malformed, huge or endless."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import anyio

from agentflow.errors import AgentFlowError
from runtimes import Instance, InstanceSpec, Language, Limits
from runtimes.process import ProcessRuntime
from tests.attacks._table import Attack, attacks

CATEGORY = "control"
ENDED = "(ended|refused: .*|output_limit); (fresh|gone); other: 2"
ANY = "(ok|ended|timeout|output_limit|out_of_memory|refused: .*); (fresh|kept|gone); other: 2"
_SEND = "import os, json, struct\ndef send(data, size=None):\n    data += b'\\n'\n    os.write(3, struct.pack('>I', len(data) if size is None else size) + data)\n"
_END = "\nimport time\ntime.sleep(60)"

_PYTHON: dict[str, tuple[str, str, str]] = {
    "no JSON": ("send a frame that is not JSON", "send(b'not json')", ENDED),
    "empty frame": ("send an empty frame", "send(b'')", ENDED),
    "list": ("send a list", "send(b'[1, 2]')", ENDED),
    "number": ("send a number", "send(b'7')", ENDED),
    "null": ("send null", "send(b'null')", ENDED),
    "text": ("send bytes that are no text", "send(b'\\xff\\xfe\\x00')", ENDED),
    "deep": ("exhaust the stack of the decoder", "send(b'[' * 100000 + b']' * 100000)", ENDED),
    "deep objects": ("exhaust the stack by objects", "send(b'{\"a\":' * 50000 + b'1' + b'}' * 50000)", ENDED),
    "many values": ("take memory by small values", "send(b'{\"run\":[' + b'[],' * 2000000 + b'1]}')", ENDED),
    "many keys": ("take memory by keys", "send(b'{' + b','.join(b'\"%d\":1' % n for n in range(300000)) + b'}')", ENDED),
    "huge number": ("take time by a number of a million digits", "send(b'{\"run\":' + b'9' * 1000000 + b'}')", ENDED),
    "length of 4 GiB": ("claim 4 GiB", "send(b'{}', 0xFFFFFFFF)", ENDED),
    "length of 1 GiB": ("claim 1 GiB and send a little", "send(b'{}', 1 << 30)", ENDED),
    "half a frame": ("never finish a frame", f"send(b'{{\"run\"', 100){_END}", "(timeout|ended|refused: .*); (fresh|gone); other: 2"),
    "half a header": ("never finish a header", f"os.write(3, b'\\x00\\x00'){_END}", "(timeout|ended|refused: .*); (fresh|gone); other: 2"),
    "wrong run": ("answer another run", "send(json.dumps({'run': 999, 'value': 'x', 'error': None, 'displays': [], 'cwd': '/'}).encode())", ANY),
    "wrong types": ("answer with values of other types", "send(json.dumps({'run': 'x', 'value': [], 'error': 7, 'displays': {}, 'cwd': []}).encode())",ANY),
    "missing keys": ("answer without the result", "send(b'{}')",ANY),
    "forged error": ("answer with a forged error", "send(json.dumps({'run': None, 'error': {'type': 1}}).encode())",ANY),
    "forged fork": ("claim that it was forked", "send(b'{\"forked\": true}')",ANY),
    "forged ready": ("claim that it is ready", "send(b'{\"ready\": true, \"left_behind\": [7]}')",ANY),
    "paths in displays": ("name files of the host as displays", "send(json.dumps({'run': 1, 'value': None, 'error': None, 'displays': ['/etc/passwd'], 'cwd': '/'}).encode())",ANY),
    "repeated answers": ("answer many times", "for n in range(10000):\n    send(json.dumps({'run': n, 'value': 'x', 'error': None, 'displays': [], 'cwd': '/'}).encode())", ANY),
    "flood of frames": ("flood the server with frames", "while True:\n    send(b'{}')",ANY),
    "flood of bytes": ("flood the server with bytes", "while True:\n    os.write(3, b'\\x00' * 65536)", ENDED),
    "closed": ("close the control channel", "os.close(3)", "(ended|refused: .*); (fresh|gone); other: 2"),
    "half closed": ("close one direction", "import socket\nsocket.socket(fileno=os.dup(3)).shutdown(1)", "(ended|refused: .*); (fresh|gone); other: 2"),
    "descriptors": ("send descriptors to the server", "import socket\nsock = socket.socket(fileno=os.dup(3))\nfor n in range(50):\n    socket.send_fds(sock, [b'x'], [0] * 50)", ENDED),
    "out of band": ("send urgent data", "import socket\ntry:\n    socket.socket(fileno=os.dup(3)).send(b'x', 1)\nexcept OSError:\n    os._exit(1)",ANY),
    "read by a child": ("steal requests by a child", "if os.fork() == 0:\n    while True:\n        if not os.read(3, 65536):\n            os._exit(0)", ANY),
    "answered by a child": ("answer by a child after the run", "if os.fork() == 0:\n    import time\n    for n in range(200):\n        send(b'{\"run\": 2, \"value\": \"forged\", \"error\": null, \"displays\": [], \"cwd\": \"/\"}')\n        time.sleep(0.01)\n    os._exit(0)", ANY),
    "replaced": ("replace the channel by a pipe", "os.dup2(os.pipe()[1], 3)", ANY),
    "own loop": ("replace the code of the loop", "import sys\nframe = sys._getframe()\nwhile 'fork_copy' not in frame.f_globals:\n    frame = frame.f_back\nframe.f_globals['pack_message'] = lambda head, data=b'': b'[' * 10000", ENDED),
    "output of the runtime": ("print frames to the output", "os.write(1, struct.pack('>I', 2) + b'{}')", "ok; kept; other: 2"),
    "output without an end": ("print without an end", "while True:\n    os.write(1, b'x' * 65536)", "output_limit; (kept|fresh); other: 2"),
    "control characters": ("print control characters", "print('\\x1b]0;evil\\x07\\x1b[2J' * 1000)", "ok; kept; other: 2"),
    "value without an end": ("return a value that never ends", "class Endless:\n    def __repr__(self):\n        return 'x' * (1 << 27)\nEndless()", ANY),
    "error without an end": ("raise an error that never ends", "class Endless(Exception):\n    def __str__(self):\n        return 'x' * (1 << 27)\nraise Endless", ANY),
    "name of an error": ("raise an error with a huge name", "raise type('x' * 10000000, (Exception,), {})", ANY),
    "many displays": ("show without an end", "class Shown:\n    def _repr_html_(self):\n        return 'x' * (1 << 25)\nShown()", ANY),
}  # fmt: skip
_BASH: dict[str, tuple[str, str, str]] = {
    "shell: four bytes": ("answer unasked", "__agentflow_turn() { for n in {1..2000}; do builtin printf 'xxxx' >&197; done; exit; }", ANY),
    "shell: zeros": ("answer with zeros", "__agentflow_turn() { head -c 1000000 /dev/zero >&197; exit; }", ANY),
    "shell: flood": ("flood the server", "__agentflow_turn() { yes >&197; }", ANY),
    "shell: closed": ("close the control channel", "__agentflow_turn() { exec 197>&-; sleep 60; }", ANY),
    "shell: forged answer": ("forge the answer of a run", "__agentflow_turn() { builtin printf '7\\0/etc\\0' >&197; builtin printf 'x\\0\\xff\\0' >&197; exit; }", ANY),
    "shell: replaced": ("replace the channel", "__agentflow_turn() { exec 197</dev/null; sleep 60; }", ANY),
    "shell: stolen": ("steal the next request", "__agentflow_turn() { cat <&197 > /dev/null; }", ANY),
    "shell: builtins": ("replace the builtins of the driver", "read() { :; }; printf() { :; }; eval() { :; }; echo replaced", ANY),
    "shell: options": ("change options of the driver", "set -e; set -u; set -f; shopt -s extdebug; false", ANY),
    "shell: traps": ("trap each command of the driver", "trap 'exit 7' DEBUG ERR RETURN EXIT", ANY),
    "shell: readonly": ("make the driver's variables constant", "for v in $(compgen -v | grep -i agentflow); do readonly $v; done; readonly IFS PATH", ANY),
    "shell: environment": ("change the environment of the driver", "export IFS=x PATH=/nowhere LD_PRELOAD=/home/agent/x.so BASH_ENV=/home/agent/x", ANY),
}  # fmt: skip

_SHORT = ("no JSON", "list", "deep", "many values", "length of 4 GiB", "missing keys", "shell: forged answer")
"""Attacks that take no time."""

ATTACKS: list[Attack] = [
    replace(attack, soak=attack.id.removeprefix(f"{CATEGORY}: ") not in _SHORT)
    for attack in (
        *attacks(CATEGORY, {name: (aim, _SEND + code, seen) for name, (aim, code, seen) in _PYTHON.items()}),
        *attacks(CATEGORY, _BASH),
    )
]
_LIMITS = Limits(wall_seconds=60, memory_bytes=512 << 20, output_bytes=1 << 20)


async def _try(runtime: ProcessRuntime, instance: Instance, other: Instance, attack: Attack) -> str:
    language: Language = "bash" if attack.id.startswith(f"{CATEGORY}: shell") else "python"
    await instance.run(language, "state=kept" if language == "bash" else "state = 'kept'")
    try:
        done = await instance.run(language, attack.code, timeout=3)
        outcome = done.outcome.value
    except (AgentFlowError, OSError) as error:
        outcome = f"refused: {type(error).__name__}"
    try:
        again = await instance.run(
            language, "echo $state" if language == "bash" else "globals().get('state')", timeout=3
        )
        state = "kept" if "kept" in f"{again.stdout}{again.value}" else "fresh"
    except (AgentFlowError, OSError):
        state = "gone"
    return f"{outcome}; {state}; other: {(await other.run('python', '1 + 1')).value}"


async def observe(runtime: ProcessRuntime, table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Try each attack in a sandbox of its own, next to another one; return the outcomes by id."""
    other = await runtime.start()
    seen: dict[str, str] = {}
    for attack in table:
        instance = await runtime.start(InstanceSpec(limits=_LIMITS))
        with anyio.fail_after(120):
            seen[attack.id] = await _try(runtime, instance, other, attack)
            await instance.stop()
    return seen
