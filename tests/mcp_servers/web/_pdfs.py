"""Small PDFs."""

import io

from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas


def pdf(*pages: str, title: str = "", password: str = "") -> bytes:
    """A PDF with a line of text on each page."""
    data = io.BytesIO()
    canvas = Canvas(data, encrypt=StandardEncryption(password) if password else None)
    if title:
        canvas.setTitle(title)
    for text in pages:
        canvas.drawString(72, 720, text)
        canvas.showPage()
    canvas.save()
    return data.getvalue()
