"""Seeded databases and data files of shops, and generators that answer from templates."""

import csv
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from agentflow.offline import answer as offline_answer
from agentflow.questions import Recalled, RecallRequest
from agentflow.trace import (
    ActionOutcome,
    IndependentSolution,
    IndependentSolutionRequest,
    InstructionRequest,
    Node,
    Observation,
    ProposedSolutions,
    Reply,
    Request,
    Seed,
    SolutionsRequest,
    TaskInstruction,
    Text,
    Tree,
    Usage,
    node_id,
    tree_id,
)

T = TypeVar("T")
CITIES = ("Brenn", "Vessel Bay", "Port Vannick", "Holm")
KINDS = ("lamp", "rope", "sail", "net")

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, city TEXT);
CREATE TABLE products (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, price REAL CHECK (price > 0));
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers (id),
    product_id INTEGER NOT NULL REFERENCES products (id), amount INTEGER
);
"""


def shop_rows(seed: int) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each table of a shop."""
    chance = random.Random(seed)
    customers = [(number, f"Keeper {number}", chance.choice(CITIES)) for number in range(1, 13)]
    products = [(number, chance.choice(KINDS), chance.randint(3, 90) + 0.5) for number in range(1, 10)]
    orders = [
        (number, chance.randint(1, 10), chance.randint(1, 9), chance.randint(1, 40))
        for number in range(1, 61)
    ]
    return {"customers": customers, "products": products, "orders": orders}


def shop_database(path: Path, seed: int = 1) -> Path:
    """Create a SQLite file with the tables of a shop."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(SCHEMA)
        for table, rows in shop_rows(seed).items():
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    return path


def shop_script(seed: int = 1) -> str:
    """Return SQL that creates the tables of a shop, in the dialect of all engines."""
    inserts = [
        f"INSERT INTO {table} VALUES {', '.join(map(str, rows))};" for table, rows in shop_rows(seed).items()
    ]
    return "\n".join([SCHEMA, *inserts])


def shop_files(folder: Path, seed: int = 1) -> Path:
    """Create a directory with CSV files of a shop."""
    folder.mkdir(mode=0o755, exist_ok=True)
    rows = shop_rows(seed)
    customers = {number: (name, city) for number, name, city in rows["customers"]}
    products = {number: (kind, price) for number, kind, price in rows["products"]}
    with (folder / "orders.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["order_id", "city", "kind", "price", "pieces"])
        for number, customer, product, amount in rows["orders"]:
            writer.writerow([number, customers[customer][1], *products[product], amount])
    with (folder / "customers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "city", "visits"])
        writer.writerows((name, city, 3 * number % 17) for number, (name, city) in customers.items())
    return folder


def seed_tree(content: str = "Sales of the shop", *nodes: Node, **kwargs: str) -> Tree:
    """Return a tree with these nodes."""
    seed = Seed(index=0, id="seed_001", content=content, kwargs=dict(kwargs))
    own = tree_id("run", seed)
    root = Node(id=node_id(own, ()), outcome=ActionOutcome(Observation((Text(content),))))
    return Tree(id=own, seed=seed, nodes=(root, *nodes))


class OfflineTasks:
    """The offline engine as generator of tasks; counts its calls."""

    def __init__(self, *, knows: str = "") -> None:
        self.requests: list[Request[Any]] = []
        self._knows = knows

    @property
    def generator(self) -> Self:
        """This object, which also writes."""
        return self

    @property
    def reader(self) -> Self:
        """This object, which also reads."""
        return self

    async def propose(self, request: SolutionsRequest) -> Reply[ProposedSolutions]:
        """Propose solutions."""
        return self._reply(request, ProposedSolutions)

    async def instruct(self, request: InstructionRequest) -> Reply[TaskInstruction]:
        """Write an instruction."""
        return self._reply(request, TaskInstruction)

    async def solve_again(self, request: IndependentSolutionRequest) -> Reply[IndependentSolution]:
        """Solve an instruction."""
        return self._reply(request, IndependentSolution)

    async def recall(self, request: RecallRequest) -> Reply[Recalled]:
        """Answer without data."""
        self.requests.append(request)
        return Reply(Recalled(self._knows, is_certain=bool(self._knows)), usage=Usage(1, 10, 1))

    def _reply(self, request: Request[Any], kind: type[T]) -> Reply[T]:
        self.requests.append(request)
        return Reply(
            msgspec.convert(offline_answer(request), kind, from_attributes=True), usage=Usage(1, 10, 1)
        )
