"""A year of a shop's orders, made up from a fixed seed, with something wrong in its books.

Refunds are booked twice in one region in one month: the same booking, once more a few days later. Three things
stand in the way of seeing it: a recall that made far more refunds elsewhere, a sale that doubled the orders in a
third place, and honest refunds in two equal instalments everywhere, which only look like duplicates.
"""

from __future__ import annotations

import calendar
import datetime as dt
import os
import random
import sqlite3
from pathlib import Path
from typing import NamedTuple

SEED = 2025
YEAR = 2025
ORDERS = 40_000

REGIONS = ("Aldermoor", "Brackwater", "Corvale", "Dunmarsh", "Eastfell", "Fernholt")
PRODUCTS = (
    ("Kettle", 4_990),
    ("Toaster", 3_950),
    ("Lamp", 2_490),
    ("Fan", 5_990),
    ("Radio", 7_450),
    ("Scale", 1_990),
    ("Blender", 6_490),
    ("Heater", 8_990),
)

RECALL = ("Brackwater", 6, "Kettle")
SALE = ("Corvale", 11)
DOUBLED = ("Dunmarsh", 9)

_SCHEMA = """
create table regions (region_id integer primary key, name text not null);
create table customers (customer_id integer primary key, region_id integer not null, segment text not null);
create table products (product_id integer primary key, name text not null, price_cents integer not null);
create table orders (order_id integer primary key, customer_id integer not null, ordered_on text not null,
                     channel text not null);
create table order_lines (order_id integer not null, line_no integer not null, product_id integer not null,
                          quantity integer not null, line_cents integer not null, primary key (order_id, line_no));
create table refunds (refund_id integer primary key, order_id integer not null, booking_ref text not null,
                      refunded_on text not null, amount_cents integer not null, reason text not null);
create index refunds_order on refunds (order_id);
"""


class Finding(NamedTuple):
    """What is wrong in the books: the answer to the quickstart's question."""

    region: str
    month: str
    """`YYYY-MM`."""
    excess_cents: int
    """How much too much was refunded, according to the books."""


class _Order(NamedTuple):
    order_id: int
    region: int
    day: dt.date
    products: frozenset[str]
    cents: int


class _Books:
    """All rows, in the making."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - made-up orders, not cryptography
        self.customers: list[tuple[int, int, str]] = []
        self.orders: list[tuple[int, int, str, str]] = []
        self.lines: list[tuple[int, int, int, int, int]] = []
        self.refunds: list[tuple[int, str, str, int, str]] = []
        self.excess_cents = 0

    def fill(self) -> None:
        for customer_id in range(1, 4_001):
            region = self.random.choices(range(len(REGIONS)), weights=(5, 4, 4, 3, 3, 2))[0]
            self.customers.append((customer_id, region, self.random.choice(("home", "home", "office"))))
        for order_id in range(1, ORDERS + 1):
            self._refund(self._order(order_id))
        # Refunds are numbered in the order in which they were booked, so that numbers give nothing away.
        self.refunds.sort(key=lambda refund: (refund[2], refund[1]))

    def _order(self, order_id: int) -> _Order:
        customer_id, region, _ = self.random.choice(self.customers)
        day = dt.date(YEAR, 1, 1) + dt.timedelta(days=self.random.randrange(365))
        if (REGIONS[region], day.month + 1) == SALE and self.random.random() < 0.5:  # noqa: PLR2004 - half of October's
            day = day.replace(month=SALE[1], day=min(day.day, 30))
        self.orders.append((order_id, customer_id, day.isoformat(), self.random.choice(("web", "shop", "phone"))))
        bought: set[str] = set()
        cents = 0
        for line_no in range(1, self.random.choice((2, 3, 3, 4))):
            product_id = self.random.randrange(len(PRODUCTS))
            name, price = PRODUCTS[product_id]
            quantity = self.random.choice((1, 1, 1, 2))
            self.lines.append((order_id, line_no, product_id, quantity, quantity * price))
            bought.add(name)
            cents += quantity * price
        return _Order(order_id, region, day, frozenset(bought), cents)

    def _refund(self, order: _Order) -> None:
        region, month, product = RECALL
        if (REGIONS[order.region], order.day.month) == (region, month) and product in order.products:
            self._book(order, order.cents, "recall")
        elif self.random.random() < 0.04:  # noqa: PLR2004 - four in a hundred
            reason = self.random.choice(("damaged", "late", "wrong item", "changed mind"))
            if self.random.random() < 0.1:  # noqa: PLR2004 - one refund in ten comes in two equal halves
                self._book(order, order.cents // 2, reason)
                self._book(order, order.cents // 2, reason)
            else:
                self._book(order, order.cents, reason)

    def _book(self, order: _Order, cents: int, reason: str) -> None:
        day = min(order.day + dt.timedelta(days=self.random.randrange(10)), dt.date(YEAR, 12, 31))
        reference = f"B{self.random.randrange(16**8):08x}"
        self.refunds.append((order.order_id, reference, day.isoformat(), cents, reason))
        if (REGIONS[order.region], day.month) == DOUBLED and self.random.random() < 0.8:  # noqa: PLR2004 - four in five
            last = calendar.monthrange(YEAR, day.month)[1]
            later = day.replace(day=min(day.day + self.random.randrange(1, 4), last))
            self.refunds.append((order.order_id, reference, later.isoformat(), cents, reason))
            self.excess_cents += cents


def build(path: Path) -> Finding:
    """Write the database, replacing one that is there, and say what is wrong in it.

    It appears whole or not at all: whoever reads the old one meanwhile goes on with that.
    """
    books = _Books(SEED)
    books.fill()
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    unfinished.unlink(missing_ok=True)
    _write(unfinished, books)
    unfinished.replace(path)
    return Finding(DOUBLED[0], f"{YEAR}-{DOUBLED[1]:02d}", books.excess_cents)


def _write(path: Path, books: _Books) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        # The file can be made again at any time: it need not survive a power loss.
        connection.executescript(f"pragma synchronous = off; {_SCHEMA} begin;")
        connection.executemany("insert into regions values (?, ?)", enumerate(REGIONS))
        connection.executemany("insert into customers values (?, ?, ?)", books.customers)
        connection.executemany(
            "insert into products values (?, ?, ?)", [(number, *product) for number, product in enumerate(PRODUCTS)]
        )
        connection.executemany("insert into orders values (?, ?, ?, ?)", books.orders)
        connection.executemany("insert into order_lines values (?, ?, ?, ?, ?)", books.lines)
        connection.executemany(
            "insert into refunds (order_id, booking_ref, refunded_on, amount_cents, reason) values (?, ?, ?, ?, ?)",
            books.refunds,
        )
        connection.execute("commit")
    finally:
        connection.close()
