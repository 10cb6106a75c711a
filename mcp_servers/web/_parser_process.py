"""Parser process: `python -m mcp_servers.web._parser_process`. It reads jobs and replies, one by one.

Each job runs in a fork with its own limits on time and memory, and a seccomp filter against opening files, connecting
and starting processes. The input is untrusted; any damage to the parser ends with the fork.
"""

import codecs
import contextlib
import encodings.aliases
import os
import resource
import signal
import sys

import msgspec

from mcp_servers.web._jobs import MAX_REPLY, PageBody, ParserJob, ParserReply, UnparseablePage
from mcp_servers.web._parsing import allows, best_passages, parse
from runtimes import read_frame, restrict_calls, set_limit, write_frame

_PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj trailer<</Root 1 0 R>>"
)
_WARM_UP = b"<html><title>t</title><body><article><h1>One</h1>" + b"<p>A word or two.</p>" * 20


def serve() -> None:
    """Do jobs from standard input until it ends."""
    _load()
    base = _virtual_bytes()
    while (job := read_frame(sys.stdin.buffer.read)) is not None:
        write_frame(1, _answer(job, base))


def _load() -> None:
    """Load everything that parsing needs once, because forks cannot open files."""
    for name in set(encodings.aliases.aliases.values()):
        with contextlib.suppress(LookupError):
            codecs.lookup(name)
    for kind, data in (("text/html", _WARM_UP), ("text/html", b"<p>caf\xe9"), ("application/pdf", _PDF)):
        parse(PageBody("http://warm.up/", kind, data))
    allows("User-agent: *\nDisallow: /x*", "a", "http://warm.up/")
    best_passages("Some words.", "words", 1)


def _answer(job: bytes, base: int) -> bytes:
    """Run a job in a fork and return its reply."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        for descriptor in (readable, 0, 1):
            os.close(descriptor)
        _work(job, base, writable)
    os.close(writable)
    with open(readable, "rb") as pipe:
        answer = pipe.read(MAX_REPLY + 1)
    if len(answer) > MAX_REPLY:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status == 0 and len(answer) <= MAX_REPLY:
        return answer
    return msgspec.json.encode(ParserReply(failed=_failure_reason(status, len(answer) > MAX_REPLY)))


def _work(job: bytes, base: int, writable: int) -> None:
    """Run the job in the fork and exit."""
    try:
        given = msgspec.msgpack.decode(job, type=ParserJob)
        _limit(given, base)
        answer = msgspec.json.encode(_result(given))
        with open(writable, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    except MemoryError:
        os._exit(2)
    except BaseException:  # boundary: any error of a parser ends this fork
        os._exit(3)


def _result(job: ParserJob) -> ParserReply:
    try:
        if job.robots is not None:
            return ParserReply(allowed=allows(job.robots.text, job.robots.agent, job.robots.url))
        if job.question is not None:
            asked = job.question
            return ParserReply(passages=best_passages(asked.text, asked.query, asked.count))
        assert job.body is not None
        return ParserReply(parsed=parse(job.body))
    except UnparseablePage as error:
        return ParserReply(failed=str(error))
    except RecursionError:
        return ParserReply(failed="it is nested too deeply")


def _limit(job: ParserJob, base: int) -> None:
    seconds = job.seconds
    set_limit(resource.RLIMIT_AS, base + job.memory_bytes)
    set_limit(resource.RLIMIT_CPU, int(seconds) + 1)
    set_limit(resource.RLIMIT_FSIZE, 0)
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_NOFILE, 64)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    restrict_calls()


def _virtual_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _failure_reason(status: int, too_much: bool) -> str:
    if too_much:
        return "it has too much text"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL):
        return "parsing it took too long"
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 2:
        return "parsing it took too much memory"
    return "the parser broke on it"


if __name__ == "__main__":
    serve()
