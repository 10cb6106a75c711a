"""SQL engines: queries that read files, load code, reach other databases, or take memory."""

from collections.abc import Iterable
from pathlib import Path

from tests.attacks._table import Attack, attacks
from tests.mcp_servers.sql._asking import Asking, asking, entries, make_duckdb, make_sqlite
from tests.mcp_servers.sql.test_refusing import EVERYWHERE, REFUSED

CATEGORY = "data"
CONTAINED = "(refused|failed: .*); unchanged"

_SQLITE = [
    "SELECT readfile('$SECRET')", "SELECT writefile('$FOLDER/evil', 'x')", "SELECT edit('x')", "SELECT * FROM zipfile('$SECRET')", "SELECT * FROM fsdir('/')",
    "SELECT load_extension('$FOLDER/evil.so', 'main')", "SELECT * FROM sqlite_dbpage", "ATTACH 'file:$SECRET?mode=ro' AS other", "ATTACH '/proc/self/mem' AS other",
    "ATTACH '' AS other", "ATTACH ':memory:' AS other; SELECT 1", "SELECT 1; ATTACH '$FOLDER/evil' AS other", "SELECT 1; DROP TABLE pets", "SELECT 1; SELECT 2",
    "/* SELECT */ DROP TABLE pets", "-- SELECT\nDROP TABLE pets", "WITH x AS (SELECT 1) DELETE FROM pets", "WITH x AS (SELECT 1) INSERT INTO pets SELECT 9, 1, 'eel'",
    "INSERT INTO pets VALUES (9, 1, 'eel') RETURNING *", "EXPLAIN ANALYZE DELETE FROM pets", "CREATE TEMP TRIGGER t AFTER INSERT ON pets BEGIN DELETE FROM pets; END",
    "CREATE INDEX i ON pets (kind)", "ANALYZE", "VACUUM", "VACUUM INTO '$FOLDER/evil'", "PRAGMA journal_mode = OFF", "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA mmap_size = 1000000000000", "PRAGMA cache_size = -100000000", "PRAGMA soft_heap_limit = 0", "PRAGMA temp_store = FILE", "PRAGMA data_store_directory = '/'",
    "PRAGMA schema_version = 1", "PRAGMA application_id = 7", "PRAGMA incremental_vacuum", "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA optimize", "PRAGMA module_list",
    "PRAGMA key = 'x'", "COMMIT", "ROLLBACK", "END", "RELEASE here", "CREATE VIRTUAL TABLE temp.t USING csv(filename='$SECRET')",
    "CREATE VIRTUAL TABLE temp.t USING dbstat", "SELECT fts3_tokenizer('x', x'4141414141414141')", "SELECT zeroblob(100000000000)",
    "SELECT hex(zeroblob(2000000000))", "SELECT printf('%.*c', 2000000000, 'x')", "SELECT replace(hex(zeroblob(500000000)), '0', 'xxxxxxxxxx')",
    "SELECT group_concat(a.kind || b.kind) FROM pets a, pets b, pets c, pets d, pets e, pets f, pets g, pets h, pets i, pets j, pets k, pets l, pets m, pets n, pets o, pets p, pets q, pets r",
    "WITH RECURSIVE r(x) AS (SELECT 'x' UNION ALL SELECT x || x FROM r) SELECT max(length(x)) FROM r",
]  # fmt: skip
_DUCKDB = [
    "SELECT * FROM '$SECRET.csv'", "SELECT * FROM '$SECRET'", "SELECT * FROM read_csv_auto('$SECRET')", "SELECT * FROM read_blob('$SECRET')",
    "SELECT * FROM read_json_auto('$SECRET')", "SELECT * FROM read_parquet('$SECRET')", "SELECT * FROM read_parquet('http://127.0.0.1/x')",
    "SELECT * FROM read_csv('https://example.org/x.csv')", "SELECT * FROM read_csv('s3://bucket/x')", "SELECT * FROM sniff_csv('$SECRET')",
    "SELECT * FROM parquet_metadata('$SECRET')", "SELECT * FROM parquet_schema('$SECRET')", "SELECT * FROM glob('$FOLDER/*')", "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM query('SELECT * FROM read_text(''$SECRET'')')", "SUMMARIZE SELECT * FROM read_text('$SECRET')", "DESCRIBE SELECT * FROM read_csv('$SECRET')",
    "EXPLAIN ANALYZE SELECT * FROM read_text('$SECRET')", "COPY pets FROM '$SECRET'", "COPY pets TO '$FOLDER/evil.csv'", "COPY (SELECT 1) TO '$FOLDER/evil.parquet' (FORMAT parquet)",
    "COPY (SELECT 1) TO '/dev/stdout'", "EXPORT DATABASE '$FOLDER/evil'", "IMPORT DATABASE '$FOLDER'", "ATTACH '$FOLDER/evil.db'", "ATTACH '$FOLDER/people.sqlite' (TYPE sqlite)",
    "ATTACH 'host=127.0.0.1' AS p (TYPE postgres)", "INSTALL sqlite", "LOAD '$FOLDER/evil.duckdb_extension'", "FORCE INSTALL httpfs FROM 'http://127.0.0.1'",
    "SET allow_unsigned_extensions = true", "SET allow_community_extensions = true", "SET autoinstall_known_extensions = true", "SET custom_extension_repository = 'http://127.0.0.1'",
    "SET extension_directory = '$FOLDER'", "SET temp_directory = '$FOLDER'", "SET home_directory = '$FOLDER'", "SET secret_directory = '$FOLDER'", "SET log_query_path = '$FOLDER/evil'",
    "SET enable_profiling = 'json'", "SET profiling_output = '$FOLDER/evil'", "SET memory_limit = '1TB'", "SET max_memory = '1TB'", "SET worker_threads = 64",
    "SET lock_configuration = false", "SET allowed_paths = ['/']", "SET allowed_directories = ['/']", "SET disabled_filesystems = ''", "SET GLOBAL threads = 64",
    "PRAGMA enable_external_access", "PRAGMA database_size; DROP TABLE pets", "PRAGMA enable_logging", "PRAGMA import_database('$FOLDER')", "CALL enable_logging(storage = 'file', storage_path = '$FOLDER')",
    "CREATE TEMP TABLE t AS SELECT 1", "CREATE MACRO m() AS TABLE SELECT * FROM read_text('$SECRET')", "CREATE SECRET s (TYPE s3, KEY_ID 'x', SECRET 'x')", "DROP TABLE pets", "CHECKPOINT", "VACUUM",
    "FORCE CHECKPOINT", "DETACH people", "ROLLBACK", "COMMIT", "DEALLOCATE p", "EXECUTE p", "SELECT 1; DROP TABLE pets", "SELECT nextval('none')", "UPDATE pets SET kind = (SELECT content FROM read_text('$SECRET'))",
    "INSERT INTO pets SELECT 9, 1, content FROM read_text('$SECRET')", "SELECT repeat('x', 100000000000)", "SELECT list_aggregate(range(10000000000), 'sum')",
    "SELECT count(*) FROM (SELECT array_agg(a.range) FROM range(1000000) a, range(100000) b)", "SELECT string_agg(repeat('x', 100000)) FROM range(1000000)", "SELECT getenv('HOME')",
    "MERGE INTO pets USING people ON false WHEN NOT MATCHED THEN INSERT VALUES (9, 1, 'eel')",
]  # fmt: skip
_SLOW = ("zeroblob", "printf", "group_concat", "RECURSIVE", "repeat", "range(")


def _table(engine: str, queries: Iterable[str]) -> list[Attack]:
    made: list[Attack] = []
    for query in queries:
        slow = any(word in query for word in _SLOW)
        made += attacks(
            CATEGORY, {f"{engine}: {query[:100]!r}": (f"{engine}: {query}", query, CONTAINED)}, soak=slow
        )
    return made


ATTACKS: list[Attack] = [*_table("sqlite", _SQLITE), *_table("duckdb", _DUCKDB)]
EXISTING: list[Attack] = [
    attack
    for engine in ("sqlite", "duckdb")
    for attack in attacks(
        CATEGORY,
        {
            f"{engine}: existing {query!r}": (f"{engine}: {query}", query, CONTAINED)
            for query in (*EVERYWHERE, *REFUSED[engine])
        },
        soak=True,
    )
]
"""Queries that the tests of the backend try, too."""


async def _outcome(given: Asking, engine: str, query: str) -> str:
    result = await given.call("execute", database=engine, query=query)
    if result.error is not None:
        return "refused" if result.error.kind.value == "denied" else f"failed: {result.error.kind.value}"
    if result.data["error"] is not None:
        return "refused"
    return f"answered: {result.data['rows']}"


async def observe(table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Run each query on a database that can only be read; return the outcomes by id."""
    secret = folder / "secret"
    secret.write_text("a,b\nhost secret,1\n", encoding="utf-8")
    secret.with_suffix(".csv").write_text("a,b\nhost secret,1\n", encoding="utf-8")
    databases = {
        "sqlite": str(make_sqlite(folder / "people.sqlite")),
        "duckdb": str(make_duckdb(folder / "people.duckdb")),
    }
    before = entries(folder)
    seen: dict[str, str] = {}
    async with asking(databases=databases, memory_bytes=128 << 20, timeout=10) as given:
        for attack in table:
            engine = attack.aim.partition(":")[0]
            query = attack.code.replace("$SECRET", str(secret)).replace("$FOLDER", str(folder))
            seen[attack.id] = await _outcome(given, engine, query)
        counts = [
            await given.rows("SELECT count(*), min(kind) FROM pets", database=engine) for engine in databases
        ]
    unchanged = counts == [[[3, "cat"]]] * 2 and entries(folder) == before
    state = "unchanged" if unchanged else f"changed: {counts} {entries(folder)}"
    return {id: f"{outcome}; {state}" for id, outcome in seen.items()}
