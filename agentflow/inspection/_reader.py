"""Interface of a run that is read, and what runs with a journal share."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._folder_files import read_file, read_lines
from agentflow._typeguards import is_object
from agentflow.errors import AgentFlowError, ConfigurationError, error_line
from agentflow.inspection._types import (
    CallDetail,
    CallSummary,
    NodeDetail,
    NodePart,
    NodeSummary,
    RunChanges,
    RunHit,
    RunKind,
    RunSummary,
    SeedCounts,
    SeedRecord,
    SeedResults,
    SeedSummary,
    SeedTokens,
    ShownMessage,
    StepFigures,
    TreeSkeleton,
    WorkState,
)
from agentflow.journal import JournalReader, StoredRun, StoredSeed
from agentflow.models import ImagePart, Message, TextPart, ToolCall, ToolReply, ToolSpec
from agentflow.runs import RUN_MODELS, RUN_START, RunModels, RunStart, html_card, read_prompt
from agentflow.trace import Blob, Observation, Reply, Text, TokenTree, digest

MAX_TEXT: Final = 1_000_000
"""Characters of a text that are returned; more of it is in the files of the run."""
_MAX_REPORT: Final = 4 << 20
SHORT: Final = 200
"""Characters of a beginning."""
_CARD_SEEDS: Final = 10
"""Seeds in the table of a run."""
_CHUNK: Final = 200
"""Seeds that are read at once."""
DAMAGE: Final = (
    msgspec.MsgspecError, ValueError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip
"""Errors of reading records that have not the form in which runs write them."""
_SIGNATURES: Final = ((b"\x89PNG", "image/png"), (b"\xff\xd8", "image/jpeg"), (b"GIF8", "image/gif"))

R = TypeVar("R")
T = TypeVar("T", bound=msgspec.Struct)


@contextmanager
def damage_reported(what: object) -> Generator[None]:
    """Raise `ConfigurationError` with one line if a record has not the form in which runs write it.

    A key that is missing is the caller's.
    """
    try:
        yield
    except (AgentFlowError, KeyError):
        raise
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or what}: can't be read: {error.strerror or error}"
        ) from None
    except DAMAGE as error:
        reason = decode_reason(error) if isinstance(error, DECODE_ERRORS) else error_line(error)
        raise ConfigurationError(f"{what}: a record of the run is damaged: {reason}") from None


def json_lines(folder: Path, name: str, kind: type[T]) -> Iterator[T]:
    """Yield the lines of a file of a run.

    :raises ConfigurationError: one line with file and line, if one can't be read.
    """
    decoder, path = msgspec.json.Decoder(kind), folder / name
    with unreadable_reported(path):
        for number, line in enumerate(read_lines(path, folder), 1):
            try:
                yield decoder.decode(line)
            except DECODE_ERRORS as error:
                raise ConfigurationError(
                    f"{path}:{number}: {decode_reason(error)}; name the output directory of a run"
                ) from None


@contextmanager
def unreadable_reported(path: Path) -> Generator[None]:
    """Raise `ConfigurationError` if a file can't be read."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{path}: can't be read: {error.strerror}; name the output directory of a finished run"
        ) from None


class RunRecords(ABC):
    """All that a run has, seed by seed: a `RunReader`, or a folder with the files of a run and no journal."""

    kind: RunKind
    """Kind of the run."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Key of the run; the same content has the same one."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools with their schemas; empty for runs of versions that did not store them."""
        return ()

    @abstractmethod
    def records(self) -> Iterator[SeedRecord]:
        """Yield the trees or episodes in the order of the run, the unfinished ones as far as they are known.

        :raises ConfigurationError: one line, if something can't be read.
        """

    @abstractmethod
    def image(self, image: Blob) -> bytes | None:
        """Return the bytes of an image; `None`: it is missing."""


class RunReader(RunRecords):
    """A run that is read; it may be active, finished or killed. Threads may share it, and nothing is changed.

    Every method reads what is committed at that moment. Unknown seeds, node paths, calls and blobs raise `KeyError`.

    Example::

        with open_runs("results") as collection:
            reader = collection.run(collection.runs()[0].id)
            for seed in reader.seeds():
                print(seed.id, seed.state, reader.skeleton(seed.id).spots)

    :raises ConfigurationError: from every method, in one line, if the run can't be read.
    """

    id: str
    """Id in its collection."""
    name: str
    """Name of the run."""

    def _repr_html_(self) -> str:
        """Return the run as a table for notebooks."""
        return card_or_error(self.id, lambda: _run_card(self.summary(), self.seeds(limit=_CARD_SEEDS)))

    @abstractmethod
    def summary(self) -> RunSummary:
        """Return the run without its seeds."""

    @abstractmethod
    def seeds(
        self, after: str = "", limit: int = 200, text: str = "", state: WorkState | None = None
    ) -> list[SeedSummary]:
        """Return seeds in their order.

        :param after: id of the seed before the first one; empty: from the beginning.
        :param text: only those whose id or content contains it, whatever the case.
        :param state: only those in this state.
        """

    @abstractmethod
    def seed(self, seed: str) -> SeedSummary:
        """Return one seed."""

    @abstractmethod
    def skeleton(self, seed: str) -> TreeSkeleton:
        """Return the shape of a tree, or of the turns of an episode: one branch for each try."""

    @abstractmethod
    def nodes(self, seed: str, node_paths: Sequence[str]) -> list[NodeSummary]:
        """Return nodes as rows, in this order; unknown ones are left out."""

    @abstractmethod
    def children(self, seed: str, node_path: str) -> list[NodeSummary]:
        """Return the children of a node as rows."""

    @abstractmethod
    def node(self, seed: str, node_path: str) -> NodeDetail:
        """Return a node with everything that is known about it."""

    def text(self, seed: str, node_path: str, part: int) -> str:
        """Return a whole text of an observation, by its place among the parts; a node has the first million characters."""
        parts = self.node(seed, node_path).parts
        if part < len(parts) and not parts[part].blob:
            return parts[part].text
        raise KeyError(part)

    @abstractmethod
    def call(self, seed: str, key: str) -> CallDetail:
        """Return a model call with its prompt."""

    def calls(self, seed: str) -> list[CallSummary]:
        """Return the calls of a seed that belong to no node, with the beginnings of their answers."""
        del seed
        return []

    @abstractmethod
    def results(self, seed: str) -> SeedResults:
        """Return the results of a seed."""

    @abstractmethod
    def tokens(self, seed: str) -> list[SeedTokens]:
        """Return the rows of exact tokens of a seed; empty if its engine reported none."""

    def metrics(self) -> list[StepFigures]:
        """Return the figures of all training steps."""
        return []

    def blob(self, digest: str) -> tuple[bytes, str]:
        """Return the bytes with a SHA-256, and their MIME type as far as their beginning tells."""
        raise KeyError(digest)

    def image(self, image: Blob) -> bytes | None:
        """Return the bytes of an image; `None`: it is missing."""
        with suppress(KeyError):
            return self.blob(image.hash)[0]
        return None

    @abstractmethod
    def search(self, text: str, limit: int = 100, seed: str | None = None) -> list[RunHit]:
        """Return places with a text in seeds, actions, observations and answers of models."""

    @abstractmethod
    def changes(self, cursor: str = "", seed: str | None = None) -> RunChanges:
        """Return what was committed since a cursor; an empty one means from now on.

        :param seed: seed whose new node paths are named.
        """


class JournalRun(RunReader, Generic[R]):
    """A run with a journal."""

    result_type: type[R]
    """Type of the results of its seeds."""

    def __init__(
        self, id: str, name: str, journal: JournalReader, stored: StoredRun, folder: Path | None
    ) -> None:
        """:param folder: folder of its files, if it is known."""
        self.id = id
        self.name = name
        self._journal = journal
        self._run = stored.number
        self._folder = folder
        settings: object = msgspec.json.decode(stored.settings)
        self.settings: Mapping[str, Any] = settings if is_object(settings) else {}
        """Settings that decide its content."""
        self._key = digest(settings, 16)
        # Results never change.
        self._read_result = lru_cache(maxsize=8)(self._decoded_result)

    @property
    def key(self) -> str:
        """Key of the run, from which ids derive."""
        return self._key

    def summary(self) -> RunSummary:
        """Return the run without its seeds."""
        counts, active, begun = self._journal.counts(self._run)
        seeds = SeedCounts(counts.waiting, counts.leased, counts.done)
        start, models, used = self.start, self.models, self._journal.usage(self._run)
        prices = {} if models is None else models.priced()
        done = counts.done > 0 and counts.waiting + counts.leased == 0
        idle = WorkState.STOPPED if begun else WorkState.WAITING
        return RunSummary(
            id=self.id,
            name=self.name,
            kind=self.kind,
            state=WorkState.DONE if done else WorkState.RUNNING if active else idle,
            paused=bool(self._journal.paused(self._run)),
            folder="" if self._folder is None else str(self._folder),
            started=None if start is None else start.started,
            seeds=seeds,
            hosts={
                host: SeedCounts(0, held.leased, held.done)
                for host, held in self._journal.hosts(self._run).items()
            },
            usage=used,
            cost=sum(price.cost(used[role]) for role, price in prices.items() if role in used)
            if prices
            else None,
            failures=self._failures(done=done),
            models=models.names if models is not None else {},
            settings=dict(self.settings),
        )

    @property
    def start(self) -> RunStart | None:
        """Record of its beginning; `None` for runs of earlier versions."""
        body = self._journal.kept(self._run, RUN_START)
        return None if body is None else msgspec.json.decode(body, type=RunStart)

    @property
    def models(self) -> RunModels | None:
        """Its models; `None` for runs of earlier versions."""
        body = self._journal.kept(self._run, RUN_MODELS)
        return None if body is None else msgspec.json.decode(body, type=RunModels)

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools with their schemas."""
        start = self.start
        return () if start is None else tuple(ToolSpec(t.name, t.description, t.schema) for t in start.tools)

    def seeds(
        self, after: str = "", limit: int = 200, text: str = "", state: WorkState | None = None
    ) -> list[SeedSummary]:
        """Return seeds in their order."""
        last = -1 if not after else self._journal.seed(self._run, after).seed.index
        done = None if state is None else state is WorkState.DONE
        begun = None if state is None or done else state is not WorkState.WAITING
        lowered = text.casefold()
        matches: list[StoredSeed] = []
        while len(matches) < limit:
            chunk = self._journal.seeds(self._run, after=last, limit=max(limit, 200), done=done, begun=begun)
            if not chunk:
                break
            last = chunk[-1].seed.index
            matches += [
                stored
                for stored in chunk
                if (state is None or seed_state(stored) is state)
                and (
                    not lowered
                    or lowered in stored.seed.id.casefold()
                    or lowered in stored.seed.content.casefold()
                )
            ]
        return self._summaries(matches[:limit])

    def seed(self, seed: str) -> SeedSummary:
        """Return one seed."""
        return self._summaries([self.stored(seed)])[0]

    def stored(self, seed: str) -> StoredSeed:
        """Return a seed as it is stored."""
        return self._journal.seed(self._run, seed)

    def records(self) -> Iterator[SeedRecord]:
        """Yield the trees or episodes in the order of the run, the unfinished ones as far as they are known."""
        shown, last = self._folder or self.name, -1
        while True:
            with damage_reported(shown):
                chunk = self._journal.seeds(self._run, after=last, limit=_CHUNK)
            for stored in chunk:
                with damage_reported(f"{shown}: {stored.seed.id}"):
                    records = list(self._seed_records(stored))
                yield from records
            if not chunk:
                return
            last = chunk[-1].seed.index

    @abstractmethod
    def _seed_records(self, stored: StoredSeed) -> Iterable[SeedRecord]:
        """Return all that the run has of a seed: a record for each of its episodes."""

    @abstractmethod
    def _summaries(self, stored_seeds: Sequence[StoredSeed]) -> list[SeedSummary]: ...

    @abstractmethod
    def _details(self, stored: StoredSeed, node_paths: Sequence[str]) -> dict[str, NodeDetail]:
        """Return nodes by node path, in a synthesis without their calls; unknown ones are left out."""

    def nodes(self, seed: str, node_paths: Sequence[str]) -> list[NodeSummary]:
        """Return nodes as rows."""
        details = self._details(self.stored(seed), node_paths)
        return [_row(details[node_path]) for node_path in node_paths if node_path in details]

    @abstractmethod
    def _observation(self, stored: StoredSeed, node_path: str) -> Observation:
        """Return the observation of a node."""

    def text(self, seed: str, node_path: str, part: int) -> str:
        """Return a whole text of an observation, by its place among the parts."""
        parts = self._observation(self.stored(seed), node_path).parts[part : part + 1]
        for node_part in parts:
            if isinstance(node_part, Text):
                return node_part.text
        raise KeyError(part)

    def with_prompt(self, call: CallSummary) -> CallDetail:
        """Return a call with its stored prompt."""
        if not call.prompt:
            return CallDetail(call=call, missing="it was not stored; see the setting save_prompts")
        try:
            messages = read_prompt(lambda hash: self._journal.json(self._run, hash), call.prompt)
        except (KeyError, ValueError):
            return CallDetail(call=call, missing="the journal has not all of it")
        return CallDetail(call=call, prompt=tuple(map(shown_message, messages)))

    @abstractmethod
    def node_path_of(self, key: str) -> str | None:
        """Return the node path of the node that an entry belongs to; `None`: it changes no node."""

    def result_of(self, stored: StoredSeed) -> R | None:
        """Return the result of a seed."""
        return self._read_result(stored.seed.index) if stored.done else None

    def _decoded_result(self, number: int) -> R | None:
        body = self._journal.results(self._run, [number]).get(number)
        return None if body is None else msgspec.json.decode(body, type=self.result_type)

    def blob(self, digest: str) -> tuple[bytes, str]:
        """Return the bytes with a SHA-256, and their MIME type."""
        data = self._journal.blob(self._run, digest)
        return data, mime_of(data)

    def search(self, text: str, limit: int = 100, seed: str | None = None) -> list[RunHit]:
        """Return places with a text."""
        words = msgspec.json.encode(text).decode()[1:-1]
        if not words.strip():
            return []
        hits: list[RunHit] = []
        if seed is None:
            hits += [
                RunHit(seed=seed_summary.id, spot="", place="seed", excerpt=excerpt(seed_summary.text, text))
                for seed_summary in self.seeds(limit=limit, text=text)
            ]
        number = None if seed is None else self.stored(seed).seed.index
        entries = self._journal.find(self._run, words, limit - len(hits), number) if len(hits) < limit else []
        names = {
            stored.seed.index: stored.seed.id
            for stored in self._journal.seeds(
                self._run, numbers={row[0] for row in entries}, limit=len(entries) + 1
            )
        }
        for index, key, around in entries:
            node_path = self.node_path_of(key)
            kind = (
                "observation" if "act" in key.split("/") else "plan" if key.startswith("plan/") else "answer"
            )
            hits.append(
                RunHit(
                    seed=names.get(index, ""),
                    spot=node_path or "",
                    place=kind,
                    excerpt=excerpt(around, words),
                )
            )
        return hits

    def changes(self, cursor: str = "", seed: str | None = None) -> RunChanges:
        """Return what was committed since a cursor."""
        watched = None if seed is None else self.stored(seed).seed.index
        news = self._journal.news(self._run, cursor, watched)
        names = self._journal.seeds(self._run, numbers=news.seeds[:1000], limit=1000) if news.seeds else []
        node_paths = dict.fromkeys(
            node_path for key in news.keys if (node_path := self.node_path_of(key)) is not None
        )
        return RunChanges(
            cursor=news.cursor,
            summary=news.changed,
            seeds=tuple(stored.seed.id for stored in names),
            spots=tuple(node_paths),
        )

    def _failures(self, *, done: bool) -> dict[str, int]:
        """Return the failures by kind: those that its processes stored, and of a finished run those of its report."""
        stored = self._journal.failures(self._run)
        for name in ("report.json", "summary.json") if done or not stored else ():
            report = self._read_report(name)
            if not is_object(report):
                continue
            counts = Counter[str]()
            for name in ("failures", "model_failures", "tool_failures"):
                kinds: object = report.get(name)
                if is_object(kinds):
                    counts.update({kind: number for kind, number in kinds.items() if isinstance(number, int)})
            return dict(sorted(counts.items()))
        return stored

    def _read_report(self, name: str) -> object:
        if self._folder is None:
            return None
        try:
            return msgspec.json.decode(read_file(self._folder / name, self._folder, _MAX_REPORT))
        except (FileNotFoundError, *DECODE_ERRORS):
            return None
        except OSError as error:
            raise ConfigurationError(f"{self._folder / name}: can't be read: {error.strerror}") from None


def seed_state(stored: StoredSeed) -> WorkState:
    """Return the state of a stored seed."""
    if stored.done:
        return WorkState.DONE
    if stored.active:
        return WorkState.RUNNING
    return WorkState.STOPPED if stored.claims else WorkState.WAITING


def short(text: str, limit: int = SHORT) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def excerpt(text: str, words: str) -> str:
    """Return the text around the first occurrence, in one line."""
    start = max(text.casefold().find(words.casefold()), 0)
    beginning = max(0, start - SHORT // 2)
    return short(f"{'…' if beginning else ''}{text[beginning : start + len(words) + SHORT // 2]}", 2 * SHORT)


def parts_of(observation: Observation) -> tuple[NodePart, ...]:
    """Return the parts of an observation, very long texts cut."""
    return tuple(
        NodePart(text=part.text[:MAX_TEXT], chars=len(part.text))
        if isinstance(part, Text)
        else NodePart(blob=part.hash, mime=part.mime)
        for part in observation.parts
    )


def _row(node: NodeDetail) -> NodeSummary:
    text = "\n".join(part.text for part in node.parts if not part.blob)
    return NodeSummary(
        spot=node.spot,
        tool=node.tool,
        arguments=short(msgspec.json.encode(node.arguments).decode()) if node.tool else "",
        intent=short(node.intent),
        verdict=node.verdict,
        failure="" if node.failure is None else node.failure.kind,
        line=short(text[:2_000]),
        images=sum(bool(part.blob) for part in node.parts) if node.spot else 0,
        children=node.children,
    )


def mime_of(data: bytes) -> str:
    """Return the MIME type of bytes, from their beginning."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for begin, mime in _SIGNATURES if data.startswith(begin)), "application/octet-stream")


def shown_message(message: Message) -> ShownMessage:
    """Return a message as text and images, whose data is the hash of a blob."""
    texts: list[str] = []
    images: list[Blob] = []
    for part in message.parts:
        for shown in (
            (TextPart(f"result of {part.call}"), *part.parts) if isinstance(part, ToolReply) else (part,)
        ):
            if isinstance(shown, ImagePart):
                images.append(Blob(shown.data.decode("ascii", "replace"), shown.mime))
            else:
                texts.append(shown.text if isinstance(shown, TextPart) else _call_text(shown))
    return ShownMessage(role=message.role, text="\n\n".join(texts)[:MAX_TEXT], images=tuple(images))


def _call_text(call: ToolCall) -> str:
    arguments = call.raw_arguments if call.arguments is None else msgspec.json.encode(call.arguments).decode()
    return f"{call.name} {arguments}"


def call_of(key: str, role: str, reply: Reply[Any], seconds: float | None = None) -> CallSummary:
    """Describe a model call."""
    text = reply.text or ("" if reply.value is None else msgspec.json.encode(reply.value).decode())
    return CallSummary(
        key=key,
        role=role,
        text=text[:MAX_TEXT],
        reasoning=reply.reasoning[:MAX_TEXT],
        usage=reply.usage,
        failure=reply.failure,
        prompt=reply.prompt,
        sampled=None if reply.tokens is None else len(reply.tokens.sampled),
        seconds=seconds,
    )


def token_rows(tree: TokenTree) -> list[SeedTokens]:
    """Return the rows of a token tree."""
    rows: list[SeedTokens] = []
    for call in tree.rows():
        pieces, voice = tuple(tree.pieces(call)), tree.voice(call)
        title = f"{sum(len(piece.ids) for piece in pieces)} tokens up to {call}"
        rows.append(SeedTokens(title=title, agent=voice.agent or voice.role, pieces=pieces))
    return rows


def _run_card(run: RunSummary, seeds: Sequence[SeedSummary]) -> str:
    """Return the table of a run with its first seeds, for notebooks."""
    begun = "" if run.started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))
    calls = {role: used for role, used in run.usage.items() if used.calls}
    rows = [
        ("state", run.state.value),
        ("folder", run.folder),
        ("started", begun),
        ("seeds", run.seeds.shown),
        ("steps", str(run.steps or "")),
        *((f"model of the {role}", name) for role, name in run.models.items()),
        *(
            (f"calls of the {role}", f"{used.calls}, {used.prompt_tokens + used.completion_tokens} tokens")
            for role, used in calls.items()
        ),
        ("cost", "" if run.cost is None else f"{run.cost:.4f}"),
        *((f"failed: {kind}", str(number)) for kind, number in run.failures.items()),
        *((seed.id, f"{seed.state.value}: {seed.text}") for seed in seeds),
    ]
    left = run.seeds.total - len(seeds)
    shown = [(name, text) for name, text in rows if text]
    return html_card(f"{run.kind.value} {run.name}", shown, note=f"{left} more seeds" if left > 0 else "")


def card_or_error(title: str, card: Callable[[], str]) -> str:
    """Return a table, or one with the reason that the run can't be read: a notebook would show a traceback."""
    try:
        return card()
    except ConfigurationError as error:
        return html_card(title, [("can't be read", str(error))])
