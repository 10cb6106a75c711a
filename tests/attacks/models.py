"""Model folders: files that run code, lead out of the folder, or claim what they do not have. Also a program."""

import contextlib
import io
import json
import os
import pickle
import resource
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from agentflow.errors import ConfigurationError
from agentflow.serving import ServingSettings
from agentflow.serving._settings import command_of
from agentflow.serving._weights import check_folder
from tests.attacks._table import Attack, attacks, within

CATEGORY: Final = "models"
REFUSED: Final = "refused in one line; no trace"
ACCEPTED: Final = "accepted; no trace"
CONTAINED: Final = f"({REFUSED}|{ACCEPTED})"
SECONDS: Final = 20
_TRACE: Final = "/tmp/agentflow-model-attack"
_MEMORY: Final = 6 << 30

Maker = Callable[[Path], None]
"""Changes a good folder."""


class _Pickled:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(_TRACE),)


def header(tensors: object, size: int | None = None, data: bytes = b"") -> bytes:
    """Return a safetensors file."""
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def _tensor(shape: object, start: int = 0, end: int = 4, dtype: str = "F32") -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}


def _weights(content: bytes) -> Maker:
    return lambda folder: _write(folder / "model.safetensors", content)


def _write(path: Path, content: bytes | str) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _file(name: str, content: bytes | str) -> Maker:
    return lambda folder: _write(folder / name, content)


def _link(name: str, target: str) -> Maker:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return make


def _fifo(name: str) -> Maker:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def _only(name: str, content: bytes) -> Maker:
    """Replace the weights by a file of another format."""

    def make(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        _write(folder / name, content)

    return make


def _config(**values: object) -> Maker:
    def make(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(
            json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8"
        )

    return make


def _with_code(name: str) -> Maker:
    """Add a module with a side effect, and name it as the code of the model."""

    def make(folder: Path) -> None:
        _write(
            folder / f"{name}.py",
            f"import os\nos.system('touch {_TRACE}')\nclass Model: pass\nclass Config: pass\n",
        )
        names = {
            "AutoConfig": f"{name}.Config",
            "AutoModelForCausalLM": f"{name}.Model",
            "AutoTokenizer": [f"{name}.Model", None],
        }
        _config(auto_map=names, model_type="evil")(folder)

    return make


def _template(text: str) -> Maker:
    return _file("chat_template.jinja", text)


_TEMPLATE: Final = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
_PICKLE: Final = pickle.dumps({"w": _Pickled()})
_DEEP: Final = b"[" * 200_000 + b"]" * 200_000
_ATTRIBUTES: Final = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
_OS: Final = "{{ cycler.__init__.__globals__.os.system('touch $TRACE') }}".replace("$TRACE", _TRACE)
_LOOP: Final = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"

_PUBLISH: dict[str, tuple[str, Maker, str]] = {
    "header of 2^60 bytes": ("take memory by the length of the header", _weights(header({}, 1 << 60)), REFUSED),
    "header of 2^63 bytes": ("overflow by the length of the header", _weights(header({}, (1 << 64) - 1)), REFUSED),
    "header of 4 GB": ("take memory by the length of the header", _weights(header({}, 1 << 32)), REFUSED),
    "header: none": ("send a file without a header", _weights(b""), REFUSED),
    "header: no JSON": ("send a header that is no JSON", _weights(header(b"\xff" * 64)), REFUSED),
    "header: deep": ("exhaust the stack by a header", _weights(header(b'{"w":' + _DEEP + b"}")), REFUSED),
    "header: list": ("send a list as a header", _weights(header([])), REFUSED),
    "shape: negative": ("use a negative size", _weights(header(_tensor([-1]), data=bytes(4))), REFUSED),
    "shape: huge": ("use a size of 2^70", _weights(header(_tensor([2**70]), data=bytes(4))), REFUSED),
    "offsets: beyond": ("read beyond the file", _weights(header(_tensor([1], 0, 1 << 50), data=bytes(4))), REFUSED),
    "offsets: negative": ("read before the file", _weights(header(_tensor([1], -8, 4), data=bytes(4))), CONTAINED),
    "other model": ("publish another model", _weights(header(_tensor([2], 0, 8), data=bytes(8))), REFUSED),
    "pickle": ("publish a pickle", _only("pytorch_model.bin", _PICKLE), REFUSED),
    "index: above": ("name a file above", _file("model.safetensors.index.json", '{"weight_map": {"w": "../../x.safetensors"}}'), REFUSED),
    "index: deep": ("exhaust the stack by an index", _file("model.safetensors.index.json", b'{"weight_map":' + _DEEP + b"}"), REFUSED),
    "FIFO": ("make the reader wait", _fifo("model.safetensors"), REFUSED),
    "index: FIFO": ("make the reader wait by the index", _fifo("model.safetensors.index.json"), REFUSED),
    "index: device": ("read a device without an end", _link("model.safetensors.index.json", "/dev/zero"), REFUSED),
    "link": ("read a file of the host as weights", _link("model.safetensors", "/etc/passwd"), REFUSED),
    "device": ("read a device as weights", _link("model.safetensors", "/dev/zero"), REFUSED),
}  # fmt: skip
_SERVE: dict[str, tuple[str, Maker, str]] = {
    "config: no JSON": ("send a configuration that is no JSON", _file("config.json", "{"), REFUSED),
    "config: deep": ("exhaust the stack by a configuration", _file("config.json", b'{"a":' + _DEEP + b"}"), REFUSED),
    "config: negative length": ("use a negative length", _config(max_position_embeddings=-1), REFUSED),
    "config: huge length": ("use a length of 2^62", _config(max_position_embeddings=2**62), ACCEPTED),
    "config: text as a length": ("pass an option to the engine", _config(max_position_embeddings="9 --trust-remote-code"), REFUSED),
    "template: huge": ("take memory by a template", _template("x" * (80 << 20)), CONTAINED),
    "template: FIFO": ("make the reader wait", _fifo("chat_template.jinja"), ACCEPTED),
    "template: option": ("name a parser of tool calls", _template("tools <tool_call> --trust-remote-code"), ACCEPTED),
    "code": ("let the engine run code", _with_code("evil"), ACCEPTED),
    "pickle": ("let the engine load a pickle", _only("pytorch_model.bin", _PICKLE), ACCEPTED),
}  # fmt: skip
_LOAD: dict[str, tuple[str, Maker, str]] = {
    "honest": ("load a model", lambda folder: None, ACCEPTED),
    "pickle: .bin": ("run code by a pickle", _only("pytorch_model.bin", _PICKLE), REFUSED),
    "pickle: .pt": ("run code by a pickle", _only("model.pt", _PICKLE), REFUSED),
    "pickle: as safetensors": ("hide a pickle behind another name", _weights(_PICKLE), REFUSED),
    "pickle: by the index": ("lead the loader to a pickle", lambda folder: (_only("x.bin", _PICKLE)(folder), _write(folder / "pytorch_model.bin.index.json", '{"metadata": {}, "weight_map": {"w": "x.bin"}}'))[0], REFUSED),
    "GGUF": ("load a file of another format", _only("model.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)), REFUSED),
    "code: model": ("run code of the folder", _with_code("evil"), REFUSED),
    "code: of another folder": ("run code of another place", _config(auto_map={"AutoConfig": "evil/evil--evil.Config"}, model_type="evil"), REFUSED),
    "code: name above": ("run code above the folder", _config(auto_map={"AutoConfig": "../evil.Config"}, model_type="evil"), REFUSED),
    "header of 2^60 bytes": ("take memory by the length of the header", _weights(header({}, 1 << 60)), REFUSED),
    "header: deep": ("exhaust the stack by a header", _weights(header(b'{"w":' + _DEEP + b"}")), REFUSED),
    "shape: negative": ("use a negative size", _weights(header(_tensor([-1]), data=bytes(4))), REFUSED),
    "shape: huge": ("use a huge size", _weights(header(_tensor([2**62, 2**62]), data=bytes(4))), REFUSED),
    "offsets: beyond": ("read beyond the file", _weights(header(_tensor([1 << 40], 0, 1 << 42), data=bytes(4))), REFUSED),
    "link": ("read a file of the host", _link("model.safetensors", "/etc/passwd"), REFUSED),
    "index: above": ("read a file above", _file("model.safetensors.index.json", '{"metadata": {}, "weight_map": {"w": "../../../etc/passwd"}}'), CONTAINED),
    "config: no JSON": ("send a configuration that is no JSON", _file("config.json", "{"), REFUSED),
    "config: list": ("send a list as a configuration", _file("config.json", "[]"), REFUSED),
    "config: deep": ("exhaust the stack by a configuration", _file("config.json", b'{"a":' + _DEEP + b"}"), REFUSED),
    "config: huge vocabulary": ("take memory by a size", _config(vocab_size=10**13), REFUSED),
    "config: negative size": ("use a negative size", _config(hidden_size=-8), REFUSED),
    "config: text as a size": ("use a text as a size", _config(hidden_size="evil"), REFUSED),
    "config: unknown model": ("use an unknown model", _config(model_type="evil", architectures=["os.system"]), REFUSED),
    "config: quantisation": ("load a plug-in", _config(quantization_config={"quant_method": "evil"}), CONTAINED),
    "config: attention": ("download a kernel", _config(attn_implementation="evil/kernel", _attn_implementation="evil/kernel"), CONTAINED),
}  # fmt: skip
_RENDER: dict[str, tuple[str, Maker, str]] = {
    "honest": ("render a template", lambda folder: None, ACCEPTED),
    "template: attributes": ("reach classes by attributes", _template(_ATTRIBUTES), REFUSED),
    "template: globals": ("run a command by a global", _template(_OS), REFUSED),
    "template: format": ("reach attributes by a format", _template("{{ '{0.__class__.__init__.__globals__}'.format(messages) }}"), CONTAINED),
    "template: import": ("import a file", _template("{% import '/etc/passwd' as x %}{{ x }}"), REFUSED),
    "template: include": ("include a file", _template("{% include '/etc/passwd' %}"), REFUSED),
    "template: change": ("change the messages", _template("{{ messages.append(1) }}"), REFUSED),
    "template: syntax": ("send a template that is none", _template("{% for %}"), REFUSED),
    "template: long range": ("take memory by a range", _template("{% for a in range(10**12) %}{% endfor %}"), REFUSED),
    "template: multiplication": ("take memory by a text", _template("{{ 'x' * 10**12 }}"), REFUSED),
    "template: loop": ("render without an end", _template(_LOOP), REFUSED),
    "template: recursion": ("exhaust the stack", _template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), REFUSED),
    "template: call": ("call a function that raises", _template("{{ raise_exception('a\\nb\\x1b[2J') }}"), REFUSED),
    "tokenizer: code": ("run code of the tokenizer", _file("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["evil.Model", null]}, "tokenizer_class": "Evil"}'), CONTAINED),
}  # fmt: skip


def _table(part: str, table: dict[str, tuple[str, Maker, str]], *, soak: bool) -> list[Attack]:
    return attacks(
        CATEGORY, {f"{part}: {name}": (aim, part, seen) for name, (aim, _, seen) in table.items()}, soak=soak
    )


ATTACKS: Final[list[Attack]] = [
    *_table("publish", _PUBLISH, soak=False),
    *_table("serve", _SERVE, soak=False),
    *_table("load", _LOAD, soak=True),
    *_table("render", _RENDER, soak=True),
]
"""Attacks on publishing weights, on starting an engine, on the local backbone, and on fine-tuning."""
_MAKERS: Final = {
    f"{part}: {name}": maker
    for part, table in (("publish", _PUBLISH), ("serve", _SERVE), ("load", _LOAD), ("render", _RENDER))
    for name, (_, maker, _) in table.items()
}


def _good(folder: Path) -> Path:
    """Make a folder with one tensor."""
    _write(folder / "model.safetensors", header(_tensor([1]), data=bytes(4)))
    _write(folder / "config.json", json.dumps({"model_type": "llama", "max_position_embeddings": 64}))
    return folder


def _publish(folder: Path) -> None:
    check_folder(folder, _good(folder.parent / "good"))


def _serve(folder: Path) -> None:
    words = command_of(ServingSettings(model=str(folder), python=Path(sys.executable)), 1, cpu=True)
    # What the folder says is one word of the command, and pickles stay refused.
    assert words[words.index("--load-format") + 1] == "safetensors", words
    assert "--trust-remote-code" not in words, words


def _load(folder: Path) -> None:
    import torch

    from agentflow.learner._policy import PolicySettings
    from agentflow.learner.local._model import load_policy

    load_policy(folder, PolicySettings(model=str(folder)), torch.device("cpu"), torch.float32)


def _render(folder: Path) -> None:

    from agentflow.learner.local import _fine_tune

    _fine_tune.TEMPLATE_SECONDS = 1.0
    tokenizer: Any = import_module("transformers").AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}]
    _fine_tune.lessons_of(messages, tokenizer)


_ACTIONS: Final[dict[str, Callable[[Path], None]]] = {
    "publish": _publish, "serve": _serve, "load": _load, "render": _render
}  # fmt: skip


def _outcome(attack: Attack, folder: Path, tiny: Path | None) -> str:
    folder.mkdir()
    if attack.code in ("load", "render"):
        assert tiny is not None
        for path in tiny.iterdir():
            _write(folder / path.name, path.read_bytes())
    else:
        _good(folder)
    _MAKERS[attack.id.removeprefix(f"{CATEGORY}: ")](folder)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            _ACTIONS[attack.code](folder)
    except ConfigurationError as error:
        said = str(error).replace(str(folder.parent), "")
        return (
            "refused in one line" if said.isprintable() and len(said) < 1_000 else f"refused: {said[:300]!r}"
        )
    return "accepted"


def observe(table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Use each folder; return the outcomes by id."""
    chosen, tiny = list(table), None
    if any(attack.code in ("load", "render") for attack in chosen):
        from tests.agentflow.learner._models import save_tiny_model, tiny_tokenizer

        tiny = save_tiny_model(folder / "tiny")
        tokenizer: Any = tiny_tokenizer()
        tokenizer.chat_template = _TEMPLATE
        tokenizer.save_pretrained(tiny)
    seen: dict[str, str] = {}
    for number, attack in enumerate(chosen):
        outcome = within(SECONDS, partial(_outcome, attack, folder / str(number), tiny))
        seen[attack.id] = f"{outcome}; {'trace' if Path(_TRACE).exists() else 'no trace'}"
    return seen


def main() -> None:
    """Print the outcomes of all attacks, with a limit of memory."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder, contextlib.redirect_stdout(sys.stderr):
        seen = observe(ATTACKS, Path(folder))
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main()
