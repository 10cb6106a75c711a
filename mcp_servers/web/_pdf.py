"""The text of a PDF, by pdfium."""

import importlib
from typing import NamedTuple, Protocol, cast

from mcp_servers.web._jobs import Unreadable

__all__ = ["Pdf", "read_pdf"]


class _TextPage(Protocol):
    def get_text_range(self) -> str: ...


class _Page(Protocol):
    def get_textpage(self) -> _TextPage: ...


class _Document(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> _Page: ...
    def get_metadata_value(self, key: str) -> str: ...


class _Pdfium(Protocol):
    PdfiumError: type[Exception]

    def PdfDocument(self, data: bytes) -> _Document: ...


class Pdf(NamedTuple):
    """What a PDF says."""

    title: str
    """Its title; empty: it names none."""
    pages: list[str]
    """The text of its first pages."""
    page_count: int
    """How many pages it has."""


def read_pdf(data: bytes, most: int) -> Pdf:
    """The text of a PDF's first pages, at most so many.

    :raises Unreadable: if it is encrypted or damaged.
    """
    pdfium = cast("_Pdfium", importlib.import_module("pypdfium2"))
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        encrypted = "password" in str(error).lower()
        reason = "the PDF is encrypted and asks for a password" if encrypted else "the PDF is damaged"
        raise Unreadable(reason) from None
    count = len(document)
    pages: list[str] = []
    for number in range(min(count, most)):
        try:
            pages.append(document[number].get_textpage().get_text_range())
        except pdfium.PdfiumError:
            pages.append("")
    return Pdf(document.get_metadata_value("Title"), pages, count)
