"""The tools of the document backend."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import anyio.to_thread
from pydantic import AliasChoices, Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Image, Text
from mcp_servers.core._running import check_settings, read_settings
from mcp_servers.core._session import Session
from mcp_servers.core._tool import tool
from mcp_servers.document._document import Document, Table
from mcp_servers.document._excerpts import Span, as_list, chosen, cut, part_of, spans_of
from mcp_servers.document._files import Choice, File, check_place, choice_of
from mcp_servers.document._library import Library, Shown
from mcp_servers.document._rendering import (
    hits_text,
    listed,
    outline_text,
    outlined,
    parts_text,
    tabled,
    tables_text,
)
from mcp_servers.document._results import Hit, Hits, Outline, PageImage, Read, Tables, Unread
from mcp_servers.document._search import highlights
from mcp_servers.document._settings import DocumentSettings
from mcp_servers.document._vision import Vision

__all__ = ["DocumentBackend"]

MOST_TABLE_PAGES = 50
PASSAGES_FOR_A_GOAL = 50
MOST_SEARCHED = 60_000_000
DPI = 100

_TOO_MUCH = f"more than {MOST_SEARCHED} characters are not searched at once: name it."

Name = Annotated[
    str | None,
    Field(description="The document, by its name in document_outline; needed where there are several."),
]
Query = Annotated[str, Field(min_length=1, max_length=10_000)]
Sections = Annotated[
    str | list[str] | None,
    Field(description="The sections to read, by the ids that document_outline gives."),
]
Pages = Annotated[
    str | int | None, Field(description="The pages, slides or sheets to read: 3, 3-5 or 1,4-6.")
]
Goal = Annotated[
    str | None,
    Field(max_length=10_000, description="What you want to know: only what serves it is returned."),
]
MostImages = Annotated[
    int | None,
    Field(
        ge=0,
        le=50,
        validation_alias=AliasChoices("max_images", "max_image_num"),
        description="How many pictures to show; by default a few for a goal, else none.",
    ),
]
MostTokens = Annotated[
    int | None,
    Field(
        ge=1,
        le=200_000,
        validation_alias=AliasChoices("max_tokens", "max_text_token"),
        description="How much text to return, in tokens of about four letters.",
    ),
]


class _Chosen:
    """The documents of a session, and its settings."""

    def __init__(self, choice: Choice | None, settings: DocumentSettings) -> None:
        self.choice = choice
        self.settings = settings


class DocumentBackend(Backend):
    """Documents to look up, search and read: a folder of them or one, of the server or of a session."""

    name = "document"
    description = "Outline, search and read documents: PDF, Office, HTML, Markdown, pictures."
    reserved = frozenset(DocumentSettings.model_fields) - {
        "folder",
        "file",
        "max_search_results",
        "max_image_num",
        "max_text_token",
        "max_rows",
    }

    def __init__(self) -> None:
        self._settings = DocumentSettings()
        self._opened: Library | None = None

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that can't be used, and documents that are not there."""
        check_settings(DocumentSettings, self.name, settings)
        check_place(DocumentSettings.model_validate(settings))

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the server's settings."""
        check_settings(DocumentSettings, self.name, settings)
        self._settings = DocumentSettings.model_validate(settings)

    async def shutdown(self) -> None:
        """End what reads."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Find out which documents the session has."""
        own = session.settings.get(self.name, {})
        named = own.keys() & {"folder", "file", "file_path", "seed_path"}
        if named:
            # A session's documents take the place of the server's.
            of_server = settings.keys() & {"folder", "file", "file_path", "seed_path"} - named
            settings = {key: value for key, value in settings.items() if key not in of_server}
        read = await anyio.to_thread.run_sync(read_settings, DocumentSettings, self.name, settings)
        choice = await anyio.to_thread.run_sync(choice_of, read, bool(named))
        session.put(_Chosen(choice, read))

    async def fork(self, session: Session, forked: Session) -> None:
        """Take the choice over."""
        forked.put(session.get(_Chosen))

    @tool(title="Outline a document", read_only=True)
    async def outline(
        self,
        session: Session,
        context: CallContext,
        document: Name = None,
        depth: Annotated[
            int | None, Field(ge=1, le=12, description="How deep to go; by default all.")
        ] = None,
        max_sections: Annotated[int, Field(ge=1, le=5_000, description="How many sections to list.")] = 300,
    ) -> Outline:
        """List the sections of a document with their ids, pages and lengths; without a name, list the documents.

        Use it first, to see what there is and where to read. Where there is only one document, it needs no name.
        """
        if document is None:
            files = await anyio.to_thread.run_sync(self._choice(session).files)
            if len(files) != 1:
                outline = Outline(documents=listed(files))
                context.show(Text(outline_text(outline)))
                return outline
        file, whole = await self._found(session, document)
        outline = outlined(file.name, whole, depth, max_sections)
        context.show(Text(outline_text(outline)))
        return outline

    @tool(title="Search documents", read_only=True)
    async def search(
        self,
        session: Session,
        context: CallContext,
        query: Annotated[
            Query | list[Query],
            Field(
                validation_alias=AliasChoices("query", "key_words"),
                description="What to look for, in words or as a question; several at once as a list.",
            ),
        ],
        document: Annotated[
            str | None, Field(description="The document to search; by default all of them.")
        ] = None,
        max_results: Annotated[
            int | None,
            Field(
                ge=1,
                le=100,
                validation_alias=AliasChoices("max_results", "max_search_results"),
                description="How many places to return; by default a few.",
            ),
        ] = None,
    ) -> Hits:
        """Find the places in documents that fit some words best, with their text, section, page and offsets.

        Use it to find where a document tells about something; document_read then reads the section or the page.
        """
        files = await self._files(session, document)
        queries = as_list(query)
        opened: list[tuple[File, Document]] = []
        unread: list[Unread] = []
        characters = 0
        for number, file in enumerate(files, 1):
            try:
                whole = await self._library.document(file)
                characters += len(whole.text)
                if characters > MOST_SEARCHED:
                    raise ToolFailure(ErrorKind.OUTPUT_LIMIT, f"document: {file.name!r}: {_TOO_MUCH}")
                opened.append((file, whole))
            except ToolFailure as failure:
                if len(files) == 1:
                    raise
                unread.append(Unread(document=file.name, reason=failure.message))
            context.progress(number, len(files), file.name)
        finder = await self._library.finder([one for _, one in opened])
        most = max_results or session.get(_Chosen).settings.max_search_results
        hits: list[Hit] = []
        for found in finder.search(queries, most):
            file, whole = opened[found.passage.document]
            part = part_of(whole, (found.passage.start, found.passage.end))
            marks = highlights(part.text, queries, part.start)
            hits.append(Hit(document=file.name, highlights=marks, score=found.score, **part.model_dump()))
        context.show(Text(hits_text(hits, unread)))
        return Hits(hits=hits, documents=len(opened), unread=unread)

    @tool(title="Read a document", read_only=True)
    async def read(
        self,
        session: Session,
        context: CallContext,
        section_ids: Sections = None,
        document: Name = None,
        pages: Pages = None,
        start: Annotated[int | None, Field(ge=0, description="The character to begin with.")] = None,
        end: Annotated[int | None, Field(ge=0, description="The character to end before.")] = None,
        goal: Goal = None,
        max_images: MostImages = None,
        max_tokens: MostTokens = None,
    ) -> Read:
        """Read a document, or the sections, pages or characters of it that you name.

        Use it after document_outline or document_search. With a goal you get the passages that serve it, and pictures
        of what you can't see in the text. What does not fit goes on at next_start.
        """
        settings = session.get(_Chosen).settings
        file, whole = await self._found(session, document)
        wanted = spans_of(whole, file.name, as_list(section_ids), pages, start, end)
        tokens = max_tokens or settings.max_text_token
        spans, following, note = wanted, None, "" if whole.text else " ".join(whole.draft.notes)
        if goal and settings.vlm_model is None:
            spans, note = await self._serving(goal, whole, wanted, tokens)
        spans, following = cut(spans, tokens, whole)
        parts = [part_of(whole, span) for span in spans]
        most = max_images if max_images is not None else settings.max_image_num if goal else 0
        pictures = await self._pictures(file, whole, spans, most)
        answer = None
        if goal and settings.vlm_model is not None:
            answer = await Vision(settings).read(
                goal, parts_text(file.name, parts, None, ""), [picture.png for picture in pictures]
            )
        context.show(Text(parts_text(file.name, parts, answer, note)))
        for picture in pictures:
            context.show(Image(picture.png))
        return Read(
            document=file.name,
            parts=parts,
            answer=answer,
            images=len(pictures),
            next_start=following,
            note=note,
        )

    @tool(title="Get tables of a document", read_only=True)
    async def tables(
        self,
        session: Session,
        context: CallContext,
        document: Name = None,
        page: Annotated[
            str | int | None, Field(description="The pages, slides or sheets to look at: 3, 3-5 or 1,4-6.")
        ] = None,
        section: Annotated[str | None, Field(description="The section to look at, by its id.")] = None,
        max_tables: Annotated[int, Field(ge=1, le=200, description="How many tables to return.")] = 20,
        max_rows: Annotated[
            int | None, Field(ge=1, le=10_000, description="How many rows of each to return.")
        ] = None,
    ) -> Tables:
        """Return the tables of a document, a page or a section as rows of data.

        Use it for figures in tables, where the text alone loses rows and columns. For a PDF file name a page or section:
        finding tables takes a moment for each page.
        """
        file, whole = await self._found(session, document)
        spans = spans_of(whole, file.name, as_list(section), page, None, None)
        found = await self._tables(file, whole, spans)
        shown = tabled(whole, found[:max_tables], max_rows or session.get(_Chosen).settings.max_rows)
        context.show(Text(tables_text(file.name, shown)))
        return Tables(document=file.name, tables=shown, total_tables=len(found))

    @tool(title="Show a page of a document", read_only=True)
    async def page_image(
        self,
        session: Session,
        context: CallContext,
        page: Annotated[int, Field(ge=1, le=100_000, description="The page, from 1.")],
        document: Name = None,
        dpi: Annotated[
            int, Field(ge=20, le=300, description="The resolution; more shows smaller print.")
        ] = DPI,
    ) -> PageImage:
        """Show a page of a PDF file, or a picture, as an image.

        Use it for charts, drawings, formulas and layouts that the text doesn't tell.
        """
        file = await self._file(session, document)
        shown = await self._library.page(file, page, dpi)
        context.show(Image(shown.png))
        return PageImage(document=file.name, page=page, width=shown.width, height=shown.height, dpi=shown.dpi)

    @property
    def _library(self) -> Library:
        if self._opened is None:
            self._opened = Library(self._settings)
        return self._opened

    @staticmethod
    def _choice(session: Session) -> Choice:
        choice = session.get(_Chosen).choice
        if choice is None:
            message = "document: there is no document: set `folder` or `file` of the backend `document`."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message)
        return choice

    async def _file(self, session: Session, name: str | None) -> File:
        return await anyio.to_thread.run_sync(self._choice(session).file, name)

    async def _files(self, session: Session, name: str | None) -> list[File]:
        if name is not None:
            return [await self._file(session, name)]
        return await anyio.to_thread.run_sync(self._choice(session).files)

    async def _found(self, session: Session, name: str | None) -> tuple[File, Document]:
        file = await self._file(session, name)
        return file, await self._library.document(file)

    async def _serving(
        self, goal: str, document: Document, wanted: Sequence[Span], tokens: int
    ) -> tuple[list[Span], str]:
        """The passages that serve a goal, as far as words tell."""
        finder = await self._library.finder([document])
        spans = chosen(finder.search([goal], PASSAGES_FOR_A_GOAL, wanted), tokens, document)
        if spans:
            return spans, ""
        return list(wanted), "No passage has words of the goal: this is the beginning."

    async def _pictures(
        self, file: File, document: Document, spans: Sequence[Span], most: int
    ) -> list[Shown]:
        """Pictures of what was read: of its pages, or those in the text."""
        if not most:
            return []
        if document.draft.kind in ("pdf", "picture"):
            pages = dict.fromkeys(page for start, end in spans for page in document.pages_of(start, end))
            return [await self._library.page(file, page, DPI) for page in list(pages)[:most]]
        keys = [
            key for place, key in document.draft.pictures if any(start <= place < end for start, end in spans)
        ]
        pictures: list[Shown] = []
        for key in dict.fromkeys(keys[:most]):
            try:
                pictures.append(await self._library.picture(file, key))
            except ToolFailure as failure:
                # A picture in a format that can't be shown hides no text.
                if failure.kind is not ErrorKind.FAILED:
                    raise
        return pictures

    async def _tables(self, file: File, document: Document, spans: Sequence[Span]) -> list[Table]:
        if document.draft.kind != "pdf":
            return [
                table
                for table in document.draft.tables
                if any(start <= table.start < max(end, start + 1) for start, end in spans)
            ]
        pages = sorted({page for start, end in spans for page in document.pages_of(start, end)})
        if len(pages) > MOST_TABLE_PAGES:
            message = f"document: these are {len(pages)} pages: name a page or a section of at most {MOST_TABLE_PAGES}."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        return await self._library.tables(file, pages) if pages else []
