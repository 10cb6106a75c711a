"""Random statements for sessions, and observations of the state that they leave.

A statement may well fail (it may name a variable that isn't there): a failure is an observation as good as any
other, and the same wherever the same statements ran before.
"""

from typing import NamedTuple

from hypothesis import strategies as st

from runtimes import Language, RunResult


class Statement(NamedTuple):
    """Source text for one of the two sessions."""

    language: Language
    source: str


NAMES = ("a", "b")

PYTHON = (
    "{x} = {n}",
    "{x} = [{n}, {n} + 1]",
    "{x} = {y}",
    "{x}.append({n})",
    "{x} += {y}",
    "{x} = {{'{y}': {n}, 'deep': [{{'{x}': {{{n}}}}}]}}",
    "del {x}",
    "{x}",
    "_",
    "def f_{x}(value): return value * {n} + len('{y}')",
    "f_{x}({n})",
    "{x} = f_{y}",
    (
        "def count_{x}():\n    total = {n}\n    def add(step):\n        nonlocal total\n        total += step\n"
        "        return total\n    return add\nc_{x} = count_{x}()"
    ),
    "c_{x}({n})",
    "class K_{x}:\n    level = {n}\n    def __init__(self): self.items = []\n    def __len__(self): return self.level",
    "k_{x} = K_{y}(); k_{x}.items.append({n})",
    "K_{x}.level += {n}; len(k_{y})",
    (
        "def g_{x}():\n    for i in range(100):\n        try:\n            got = yield i * {n}\n        finally:\n"
        "            seen_{x} = i\n        i += got or 0\ni_{x} = g_{x}()"
    ),
    "next(i_{x})",
    "i_{x}.send({n})",
    "z_{x} = (i ** 2 for i in range({n}, 50)); next(z_{x})",
    "next(z_{x})",
    "import decimal; decimal.getcontext().prec = {n} + 1",
    "decimal.Decimal(1) / decimal.Decimal(7)",
    "import itertools; t_{x} = itertools.count({n})",
    "[next(t_{x}) for _ in range({n})]",
    "random.random()",
    "random.seed({n})",
    "import numpy; r_{x} = numpy.random.default_rng({n}); q_{x} = numpy.arange({n} + 5)",
    "r_{x}.integers(1000), q_{x}[{n}:].sum()",
    "import mmap; m_{x} = mmap.mmap(-1, 4096); m_{x}[{n}:{n} + 2] = b'{x}{y}'",
    "m_{x}[{n}] = {n}; m_{x}[:16]",
    "h_{x} = open('file_{x}', 'w+'); h_{x}.write('{y}' * 20)",
    "h_{x} = open('file_{x}', 'a+b', buffering=0); h_{x}.write(b'{y}{n}')",
    "h_{x} = open('file_{x}')",
    "h_{x}.write('{n}')",
    "h_{x}.read({n})",
    "h_{x}.seek({n})",
    "h_{x}.flush()",
    "h_{x}.truncate({n})",
    "h_{x}.close()",
    "h_{x}.tell()",
    "os.unlink('file_{x}')",
    "os.rename('file_{x}', 'file_{y}')",
    "os.symlink('file_{x}', 'link_{y}')",
    "os.link('file_{x}', 'file_{y}{n}')",
    "d_{x} = os.dup(h_{y}.fileno())",
    "os.lseek(d_{x}, {n}, 0), os.lseek(h_{y}.fileno(), 0, 1)",
    "u_{x} = tempfile.TemporaryFile('w+'); u_{x}.write('{y}' * {n})",
    "u_{x}.seek({n} // 2); u_{x}.read()",
    "fm_{x} = mmap.mmap(os.open('file_{x}', os.O_RDWR), 4)",
    "fm_{x}[1] = 48 + {n}; fm_{x}[:]",
    "os.makedirs('in_{x}/{y}', exist_ok=True)",
    "os.chdir('/home/agent/in_{x}')",
    "os.chdir('/home/agent')",
    "os.rmdir('/home/agent/in_{x}/{y}')",
    "os.umask({n})",
    "os.environ['E_{x}'] = '{y}{n}'",
    "os.environ.pop('E_{x}')",
    "sys.path.append('/{x}'); sys.path[-2:]",
    "sys.setrecursionlimit(1000 + {n})",
    "print('{x}', end=''); print({y}, file=sys.stderr)",
    "signal.signal(signal.SIGUSR1, lambda *_: print('caught {x}{n}'))",
    "signal.raise_signal(signal.SIGUSR1)",
    "1 / ({n} - {n})",
)

BASH = (
    "{x}={n}",
    '{x}="$\'{y} \\"quoted\\" \\$x {n}\nsecond line"',
    "{x}+={n}",
    "{x}=({n} '{y} {x}' \"\")",
    "{x}[{n}]='{y}'",
    "unset '{x}[0]'",
    "declare -A m_{x}=([{y}]={n} ['a b']='c d')",
    "m_{x}[{n}]='$HOME'",
    "unset {x}",
    "declare -i j_{x}={n}",
    "j_{x}+={n}; echo $j_{x}",
    "declare -r o_{x}='{y} {n}'",
    "o_{x}=changed",
    "export e_{x}='{y}  {n}'",
    "export -n e_{x}",
    "declare -l l_{x}='SOME {y}'",
    "declare -u p_{x}='some {y}'",
    "declare -n n_{x}={y}",
    'n_{x}={n}; echo "$n_{x}"',
    "declare -x {x}",
    "declare -g g_{x}",
    'printf \'%s|\' "${{{x}[@]}}" "${{m_{y}[@]}}"',
    'f_{x}() {{ local inner=$1; echo "{y} $inner {n}"; return {n}; }}',
    "f_{x} '{y}'",
    "f_{x}() {{ case $1 in (a|b) cat <<END\n$1 is {n}\nEND\n;; *) echo ${{1:-none}} >&2;; esac; }}",
    "export -f f_{x}; bash -c 'f_{x} b'",
    "unset -f f_{x}",
    "alias l_{x}='echo {y} {n}'",
    "shopt -s expand_aliases",
    "l_{x}",
    "unalias l_{x}",
    "shopt -s extglob nullglob",
    "shopt -u nullglob",
    "shopt -s dotglob globstar; shopt -u sourcepath",
    "echo *",
    "f_{x}() {{ case $1 in @(a|b)) echo yes;; !({n})) echo no;; esac; }}",
    "set -u",
    "set +u",
    "set -o pipefail",
    "set -f; set -o noclobber",
    "set +f",
    "set -- '{x} {y}' {n} ''",
    'shift; echo "$# $1"',
    'echo "$?"',
    "false | true; echo $?",
    "(exit {n})",
    "trap 'echo caught {x}{n}' USR1",
    "kill -USR1 $$; :",
    "trap '' USR2; trap - USR1",
    "trap 'echo failed >&2' ERR",
    "mkdir -p in_{x}/{y}",
    "cd ~/in_{x}",
    "cd - ",
    "cd; pwd",
    "pushd ~/in_{x}",
    "popd",
    "umask 02{n}",
    "IFS=:; echo $PATH | head -c 5",
    "IFS=$' \\t\\n'",
    "read -r one two <<<'{x} {y} {n}'; echo \"$two\"",
    "echo '{y} {n}' > file_{x}",
    "echo '{y} {n}' >> file_{x}",
    "cat file_{x}",
    "rm file_{x}",
    "mv file_{x} file_{y}",
    "ln -s file_{x} link_{y}",
    "chmod 6{n}0 file_{x}",
    "mapfile -t lines_{x} < file_{y}",
    "PS4='{x}> '; HISTSIZE={n}",
    "OPTIND=1; getopts ab: option -a; echo $option $OPTIND",
    "complete -W '{x} {y}' command_{x}",
    "ulimit -S -n 3{n}0",
    "hash -p /bin/true true_{x}; true_{x}",
)


def _filled(language: Language, templates: tuple[str, ...]) -> st.SearchStrategy[Statement]:
    def fill(template: str, x: str, y: str, n: int) -> Statement:
        return Statement(language, template.format(x=x, y=y, n=n))

    names = st.sampled_from(NAMES)
    return st.builds(fill, st.sampled_from(templates), names, names, st.integers(0, 7))


def statements() -> st.SearchStrategy[Statement]:
    """Return a strategy for statements in either language."""
    return _filled("python", PYTHON) | _filled("bash", BASH)


PROLOGUE = Statement(
    "python",
    "import os, random, signal, sys, tempfile\nrandom.seed(0)\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
)
"""Remove the one difference between two sessions: the start of their random numbers."""

SEEN_BY_PYTHON = r"""
def _seen():
    import decimal, hashlib, io, mmap, re, types
    def plain(value):
        # Equal objects may lie at different addresses.
        return re.sub(" at 0x[0-9a-f]+", "", repr(value))
    def show(value, depth=0):
        if isinstance(value, io.IOBase):
            try:
                return "file", value.closed or (value.mode, value.tell(), os.get_inheritable(value.fileno()))
            except ValueError as error:
                return "file", str(error)
        if isinstance(value, mmap.mmap):
            return "map", value[:]
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            return "generator", frame and (frame.f_lineno, plain(dict(frame.f_locals)))
        if isinstance(value, types.FunctionType):
            cells = [show(cell.cell_contents) for cell in value.__closure__ or ()]
            return "function", hashlib.sha1(value.__code__.co_code).hexdigest(), plain(value.__code__.co_consts[-1:]) * (not cells), cells
        if isinstance(value, type):
            return "class", value.__name__, getattr(value, "level", None)
        if type(value).__name__.startswith("K_") and depth < 3:
            return "object", show(type(value)), value.items
        if type(value).__name__ == "Generator":
            return "numpy generator", repr(value.bit_generator.state)
        return type(value).__name__, plain(value)
    names = {n: show(v) for n, v in sorted(globals().items()) if not n.startswith("_") and type(v) is not types.ModuleType}
    modules = [n for n, v in sorted(globals().items()) if type(v) is types.ModuleType]
    random_state = hashlib.sha1(repr(random.getstate()).encode()).hexdigest()
    mask = os.umask(0); os.umask(mask)
    try:
        place = os.getcwd()
    except OSError as error:
        place = str(error)
    context = decimal.getcontext().prec
    return names, modules, random_state, mask, place, sorted(os.environ.items()), sys.path, sys.getrecursionlimit(), context
print(*_seen(), sep="\n")
for _n, _v in sorted(globals().items()):
    if hasattr(_v, "read") and hasattr(_v, "flush") and not _v.closed:
        try:
            _v.flush()
            print(_n, _v.tell(), _v.seek(0), _v.read())
        except (OSError, ValueError) as _error:
            print(_n, _error)
"""
"""Print all observable state of a Python session, and read its open files last."""

_CHANGES_BY_ITSELF = "_|E?UID|BASH[A-Z0-9_]*|COMP_WORDBREAKS|DIRSTACK|EPOCH[A-Z]*|FUNCNAME|GROUPS|HISTCMD|LINENO|PIPESTATUS|PPID|RANDOM|SECONDS|SRANDOM|__agentflow_.*"

SEEN_BY_BASH = rf"""
declare -p | grep -aEv '^declare [^ ]+ ({_CHANGES_BY_ITSELF})(=|$)'
declare -f
set -o; shopt; trap -p; alias -p; umask; pwd; dirs -p; complete -p
printf '<%s>' "$@" "$BASHOPTS" "$SHELLOPTS"; echo
env | sort | grep -aEv '^(_|BASHPID)='
ulimit -Sn; ulimit -Hn; ulimit -St
ls -laR --time-style=+ ~ | sed 's/^total .*//'
find ~ -type f -exec sha1sum {{}} + | sort -k2
"""
"""Print all observable state of a shell session and the workspace."""


def observed(result: RunResult) -> tuple[object, ...]:
    """Return the result of a run without memory addresses."""
    error = result.error and (result.error.type, result.error.message)
    return (
        result.outcome, result.stdout, result.stderr, result.exit_code, result.value, error, result.cwd,
        result.state_lost,
    )  # fmt: skip
