"""Access of a program to a view, as the page gets it."""

import json
import urllib.request
from urllib.parse import urldefrag


def use_link(link: str) -> dict[str, str]:
    """Exchange the token of a link and return the headers that every request needs."""
    page, fragment = urldefrag(link)
    origin = "/".join(page.split("/")[:3])
    headers = {"Origin": origin, "Authorization": f"Bearer {fragment.removeprefix('token=')}"}
    request = urllib.request.Request(f"{origin}/api/session", headers=headers, method="POST")
    with urllib.request.urlopen(request) as answer:
        return {"Authorization": f"Bearer {json.load(answer)['secret']}"}


def opener_of(link: str) -> urllib.request.OpenerDirector:
    """Use a link and return an opener whose requests the view answers."""
    opener = urllib.request.build_opener()
    opener.addheaders = list(use_link(link).items())
    return opener
