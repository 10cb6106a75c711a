"""PNG encoding of page images."""

import io

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mcp_servers.document.inside._images import png_of

BANDS = st.tuples(st.binary(min_size=12, max_size=12), st.binary(min_size=12, max_size=12))


@given(level=st.binary(min_size=12, max_size=12), others=st.none() | BANDS)
def test_a_picture_has_the_same_pixels_and_is_grey_where_it_has_no_colour(
    level: bytes, others: tuple[bytes, bytes] | None
) -> None:
    bands = (level, *(others or (level, level)))
    picture = Image.merge("RGB", [Image.frombytes("L", (4, 3), band) for band in bands])
    shown = Image.open(io.BytesIO(png_of(picture)))
    assert shown.mode == ("L" if len(set(bands)) == 1 else "RGB")
    assert shown.convert("RGB").tobytes() == picture.tobytes()
