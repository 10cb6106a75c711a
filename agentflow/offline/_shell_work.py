"""Work in a shell: small projects made from the seed, and jobs on their files, each with the words that ask for it."""

import shlex
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from agentflow.trajectory import Step

_SERVICES = ("auth", "billing", "catalog", "mail", "search", "upload")
_MESSAGES = (
    "request finished",
    "queue is full",
    "cache was rebuilt",
    "timeout of the database",
    "disk is slow",
    "token expired",
)
_LEVELS = ("INFO", "INFO", "INFO", "WARN", "WARN", "ERROR", "ERROR", "DEBUG")
_CUSTOMERS = ("Adler", "Brandt", "Castro", "Dubois", "Eriksen", "Fontana", "Green", "Hansen")
_PRODUCTS = ("anchor", "barrel", "compass", "lantern", "net", "rope", "sail")
_REGIONS = ("east", "north", "south", "west")
_TOPICS = ("garden", "harbour", "kitchen", "library", "meeting", "travel", "workshop")
_VERBS = ("call", "check", "order", "paint", "repair", "send", "sort", "visit")
_OBJECTS = (
    "the boxes",
    "the gate",
    "the invoice",
    "the lamps",
    "the map",
    "the pump",
    "the shelves",
    "the tickets",
)


class ProjectJob(NamedTuple):
    """A command with the words that ask for it."""

    intent: str
    """Instruction that the command follows; it names every file and format."""
    command: str
    """The command; it prints a summary of its result."""
    needs: str = ""
    """File that an earlier job must have written."""


class _Project(NamedTuple):
    """Files to begin with, and jobs on them."""

    start: ProjectJob
    jobs: tuple[ProjectJob, ...]


def shell_jobs(seed: str, path: Sequence[Step]) -> Iterator[ProjectJob]:
    """Yield jobs for the next action: first a project, then work on its files.

    The order depends on the seed and the path, so that branches differ.
    """
    projects = _projects(seed)
    done = [str(step.action.arguments.get("command", "")) for step in path]
    project = next((each for each in projects if each.start.command in done), None)
    if project is None:
        yield from (each.start for each in projects)
        return
    jobs = [job for job in project.jobs if job.command not in done]
    Random(f"jobs {seed} {done}").shuffle(jobs)
    written = "\n".join(done[1:])
    # Work on the newest results comes first.
    yield from (job for job in jobs if job.needs and f"> {job.needs}" in written)
    yield from (job for job in jobs if not job.needs)


def _projects(seed: str) -> list[_Project]:
    random = Random(f"projects {seed}")
    projects = [_log(random), _orders(random), _notes(random)]
    random.shuffle(projects)
    return projects


def _file(path: str, lines: Sequence[str]) -> str:
    return f"cat > {path} <<'END'\n" + "\n".join(lines) + "\nEND"


def _job(intent: str, command: str, result: str, needs: str = "") -> ProjectJob:
    """Return a job that prints the size and checksum of its result."""
    name = shlex.quote(result)
    summary = f'echo "{result}: $(wc -l < {name}) lines, checksum $(cksum < {name} | cut -d" " -f1)"'
    return ProjectJob(intent, f"{command}\n{summary}", needs)


def _mode(path: str, mode: int) -> ProjectJob:
    return ProjectJob(
        f"Set the mode of {path} to {mode}.",
        f"chmod {mode} {path}\nfind {path} -printf '%p has the mode %m\\n'",
    )


def _log(random: Random) -> _Project:
    path = f"logs/{random.choice(['app', 'server', 'worker'])}.log"
    days = [f"2031-0{random.randint(1, 9)}-{day:02}" for day in sorted(random.sample(range(1, 29), 3))]
    days.sort()
    services = sorted(random.sample(_SERVICES, 3))
    lines = [
        f"{day} {hour:02}:{random.randint(0, 59):02} {random.choice(_LEVELS)} {random.choice(services)} {random.choice(_MESSAGES)}"
        for day in days
        for hour in sorted(random.sample(range(24), random.randint(5, 8)))
    ]
    # Each level and service occurs.
    lines += [
        f"{days[-1]} 23:59 {level} {service} closing"
        for level, service in zip(("ERROR", "WARN", "INFO"), services, strict=True)
    ]
    start = _job(
        f"Begin with a log of {len(lines)} lines in {path}.", f"mkdir -p logs\n{_file(path, lines)}", path
    )
    script = f"#!/bin/sh\\ngrep -c ERROR {path}\\n"
    jobs = [
        _job(
            f"Count the lines of each level in {path} and write them to levels.txt, one `LEVEL COUNT` per line, sorted by level.",
            f"awk '{{n[$3]++}} END {{for (l in n) print l, n[l]}}' {path} | sort > levels.txt",
            "levels.txt",
        ),
        _job(
            "Append a last line `TOTAL COUNT` to levels.txt, with the sum of its counts.",
            "awk '{s += $2} END {print \"TOTAL\", s}' levels.txt > total.tmp && cat total.tmp >> levels.txt && rm total.tmp",
            "levels.txt",
            needs="levels.txt",
        ),
        _job(f"Copy the ERROR lines of {path}, in their order, to errors.log.", f"grep ' ERROR ' {path} > errors.log", "errors.log"),
        _job(
            "Write the number of lines of errors.log to error_count.txt, in the form `errors: COUNT`.",
            'echo "errors: $(wc -l < errors.log)" > error_count.txt',
            "error_count.txt",
            needs="errors.log",
        ),
        _job(
            "Compress errors.log with gzip to errors.log.gz and keep errors.log as it is.",
            "gzip -nk errors.log",
            "errors.log.gz",
            needs="errors.log",
        ),
        _job(
            f"Write services.csv with the header `service,lines` and a row for each service in {path} with its number of lines,"
            " sorted by service.",
            f"{{ echo service,lines; awk '{{n[$4]++}} END {{for (s in n) print s \",\" n[s]}}' {path} | sort; }} > services.csv",
            "services.csv",
        ),
        _job(
            f"Split {path} by day: the lines of each day go, in their order, to {', '.join(f'days/{day}.log' for day in days)}.",
            f"mkdir -p days\nawk '{{print > (\"days/\" $1 \".log\")}}' {path}",
            f"days/{days[0]}.log",
        ),
        _job(
            "Write summary.json with the keys `lines`, `errors` and `services`: the number of lines, of ERROR lines and of different"
            f" services in {path}.",
            f"printf '{{\"lines\": %d, \"errors\": %d, \"services\": %d}}\\n' $(wc -l < {path}) $(grep -c ' ERROR ' {path})"
            f" $(cut -d' ' -f4 {path} | sort -u | wc -l) > summary.json",
            "summary.json",
        ),
        _job(
            "Pack the directory logs, with its path, into the gzipped tar archive backup.tar.gz.", "tar czf backup.tar.gz logs", "backup.tar.gz"
        ),
        _job(f"Make latest.log a symbolic link to {path}.", f"ln -s {path} latest.log", "latest.log"),
        _mode(path, 640),
        _job(
            f"Write the executable script errors.sh, which prints the number of ERROR lines of {path}.",
            f"printf '{script}' > errors.sh\nchmod +x errors.sh",
            "errors.sh",
        ),
        *(
            _job(
                f"Copy the lines of the service {service} in {path}, in their order, to {service}.log.",
                f"awk '$4 == \"{service}\"' {path} > {service}.log",
                f"{service}.log",
            )
            for service in services
        ),
    ]  # fmt: skip
    return _Project(start, tuple(jobs))


def _orders(random: Random) -> _Project:
    path = random.choice(["orders.csv", "sales.csv"])
    stem = path.removesuffix(".csv")
    customers = random.sample(_CUSTOMERS, 5)
    rows = [
        f"{number},{random.choice(customers)},{random.choice(_PRODUCTS)},{random.randint(1, 9)},{random.randint(2, 40)},{region}"
        for number, region in enumerate((*_REGIONS, *random.choices(_REGIONS, k=10)), 1)
    ]
    header = "id,customer,product,quantity,price,region"
    least = random.randint(4, 7)
    start = _job(f"Begin with a table of {len(rows)} orders in {path}.", _file(path, [header, *rows]), path)
    jobs = [
        _job(
            f"Write totals.csv with the header `region,total` and a row for each region in {path}, sorted by region; the total is the"
            " sum of quantity times price.",
            f"{{ echo region,total; tail -n +2 {path} | awk -F, '{{t[$6] += $4 * $5}} END {{for (r in t) print r \",\" t[r]}}' | sort; }} > totals.csv",
            "totals.csv",
        ),
        _job(
            "Write the region with the highest total in totals.csv to best_region.txt, and nothing else.",
            "tail -n +2 totals.csv | sort -t, -k2,2nr -k1,1 | head -1 | cut -d, -f1 > best_region.txt",
            "best_region.txt",
            needs="totals.csv",
        ),
        _job(
            f"Copy the header of {path} and all rows with a quantity of at least {least}, in their order, to large.csv.",
            f"awk -F, 'NR == 1 || $4 >= {least}' {path} > large.csv",
            "large.csv",
        ),
        _job(
            "Write the number of rows of large.csv, without its header, to large_count.txt, in the form `large: COUNT`.",
            'echo "large: $(tail -n +2 large.csv | wc -l)" > large_count.txt',
            "large_count.txt",
            needs="large.csv",
        ),
        _job(
            f"List the different customers of {path} in customers.txt, one per line, sorted by name.",
            f"tail -n +2 {path} | cut -d, -f2 | sort -u > customers.txt",
            "customers.txt",
        ),
        _job(
            "Number the lines of customers.txt in customers_numbered.txt, each line in the form `NUMBER. NAME`.",
            "awk '{print NR \". \" $0}' customers.txt > customers_numbered.txt",
            "customers_numbered.txt",
            needs="customers.txt",
        ),
        _job(
            f"Convert {path} to {stem}.tsv, with tabs instead of commas.", f"tr ',' '\\t' < {path} > {stem}.tsv", f"{stem}.tsv"
        ),
        _job(
            f"Write stats.json with the keys `orders` and `quantity`: the number of orders in {path} and the sum of their quantities.",
            f"tail -n +2 {path} | awk -F, '{{q += $4}} END {{printf \"{{\\\"orders\\\": %d, \\\"quantity\\\": %d}}\\n\", NR, q}}' > stats.json",
            "stats.json",
        ),
        _job(
            f"Rename {path} to {stem}-2031.csv and make {path} a symbolic link to it.",
            f"mv {path} {stem}-2031.csv\nln -s {stem}-2031.csv {path}",
            f"{stem}-2031.csv",
        ),
        _mode(path, 440),
        _job(
            f"Write the executable script revenue.sh, which prints the sum of quantity times price over all orders in {path}.",
            f"cat > revenue.sh <<'END'\n#!/bin/sh\ntail -n +2 {path} | awk -F, '{{s += $4 * $5}} END {{print s}}'\nEND\nchmod +x revenue.sh",
            "revenue.sh",
        ),
        *(
            _job(
                f"Copy the header of {path} and the rows of the region {region}, in their order, to {region}.csv.",
                f"awk -F, 'NR == 1 || $6 == \"{region}\"' {path} > {region}.csv",
                f"{region}.csv",
            )
            for region in _REGIONS
        ),
        _job(
            f"Pack {path} into the tar archive {stem}.tar, without compression.", f"tar cf {stem}.tar {path}", f"{stem}.tar"
        ),
    ]  # fmt: skip
    return _Project(start, tuple(jobs))


def _notes(random: Random) -> _Project:
    topics = sorted(random.sample(_TOPICS, 4))
    texts = {
        topic: [
            f"{'OPEN ' if random.random() < 0.4 else ''}{random.choice(_VERBS)} {random.choice(_OBJECTS)}"
            for _ in range(random.randint(3, 6))
        ]
        for topic in topics
    }
    for topic in topics[:2]:
        texts[topic].append(f"OPEN {random.choice(_VERBS)} {topic} sign")
    written = "\n".join(_file(f"notes/{topic}.txt", lines) for topic, lines in texts.items())
    empty = f"notes/{random.choice(('draft', 'scratch', 'untitled'))}.txt"
    start = _job(
        f"Begin with {len(topics)} notes and an empty file in the directory notes.",
        f"mkdir -p notes\n{written}\n: > {empty}",
        f"notes/{topics[0]}.txt",
    )
    one, other = random.sample(topics, 2)
    jobs = [
        _job(
            "Write index.csv with the header `file,lines` and a row for each file in the directory notes, by its name without the"
            " directory, sorted by name, with its number of lines.",
            "{ echo file,lines; for f in notes/*.txt; do echo \"$(basename $f),$(wc -l < $f)\"; done; } > index.csv",
            "index.csv",
        ),
        _job(
            "Collect all lines of the files in the directory notes that begin with OPEN in todo.txt, one `FILE: TEXT` per line; FILE is the"
            " name without directory and suffix, TEXT the line without OPEN. Go through the files by name.",
            "for f in notes/*.txt; do sed -n \"s/^OPEN /$(basename $f .txt): /p\" $f; done > todo.txt",
            "todo.txt",
        ),
        _job(
            "Write the number of lines of todo.txt to open.txt, in the form `open: COUNT`.",
            'echo "open: $(wc -l < todo.txt)" > open.txt',
            "open.txt",
            needs="todo.txt",
        ),
        _job(
            "Sort the lines of todo.txt alphabetically into todo_sorted.txt, without repetitions.",
            "LC_ALL=C sort -u todo.txt > todo_sorted.txt",
            "todo_sorted.txt",
            needs="todo.txt",
        ),
        _job(
            "Join all files in the directory notes, by name, into all.txt; before the lines of each file stands a line `== FILE ==` with its"
            " name without the directory.",
            "for f in notes/*.txt; do echo \"== $(basename $f) ==\"; cat $f; done > all.txt",
            "all.txt",
        ),
        _job(
            "Write the number of words in all.txt to words.txt, in the form `words: COUNT`.",
            'echo "words: $(wc -w < all.txt)" > words.txt',
            "words.txt",
            needs="all.txt",
        ),
        ProjectJob(
            f"Delete {empty}, which is empty.", f"rm {empty}\necho \"removed: $(ls notes | wc -l) files left, checksum $(ls notes | cksum)\""
        ),
        _job(
            f"Move notes/{one}.txt to archive/{one}.txt; create the directory.",
            f"mkdir -p archive\nmv notes/{one}.txt archive/{one}.txt",
            f"archive/{one}.txt",
        ),
        _job(
            f"Replace OPEN by DONE everywhere in notes/{other}.txt, without any other change, and save the result as {other}.done.txt.",
            f"sed 's/OPEN/DONE/g' notes/{other}.txt > {other}.done.txt",
            f"{other}.done.txt",
        ),
        _job(
            f"Write the lines of notes/{one}.txt in reverse order to {one}.reversed.txt.",
            f"tac notes/{one}.txt > {one}.reversed.txt",
            f"{one}.reversed.txt",
        ),
        _job("Pack the directory notes, with its path, into the gzipped tar archive notes.tar.gz.", "tar czf notes.tar.gz notes", "notes.tar.gz"),
        _mode(f"notes/{other}.txt", 600),
        _job(
            "Write the executable script open.sh, which prints the number of lines with OPEN in all files in the directory notes together.",
            "printf '#!/bin/sh\\ncat notes/*.txt | grep -c OPEN\\n' > open.sh\nchmod +x open.sh",
            "open.sh",
        ),
        ProjectJob(
            "Make the directory notes a git repository on the branch `main`, and commit all its files with the message `Add notes`.",
            "cd notes && git init -q -b main && git add -A && git -c user.name=Ada -c user.email=ada@example.org commit -qm 'Add notes';"
            " git log --format='committed: %s'; git ls-files | cksum; cd ..",
        ),
    ]  # fmt: skip
    return _Project(start, tuple(jobs))
