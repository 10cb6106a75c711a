"""Tables of the journal after the newest migration."""

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

METADATA = MetaData()

schema = Table("agentflow_schema", METADATA, Column("version", Integer, nullable=False))
"""One row: the number of applied migrations."""

runs = Table(
    "agentflow_runs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("settings", LargeBinary, nullable=False),
)
"""Runs by name, with the settings that determine their content."""

seeds = Table(
    "agentflow_seeds",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("place", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("done", Boolean, nullable=False),
    Column("owner", Text),
    Column("until", Double),
    Column("claims", Integer, nullable=False),
)
"""Seeds by index, with owner, lease and number of claims."""

entries = Table(
    "agentflow_entries",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("seed", Integer, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("ordinal", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""Entries of the seeds' pages."""

harvests = Table(
    "agentflow_harvests",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("seed", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""Results of finished seeds."""

blobs = Table(
    "agentflow_blobs",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("hash", Text, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""Images and other bytes."""

usage = Table(
    "agentflow_usage",
    METADATA,
    Column("run", Integer, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("role", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""Usage of each process, by role."""
