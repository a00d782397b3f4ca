"""Splitting by data file: no file, by content, is both in training and in the held-out part."""

from __future__ import annotations

import random

from datapm_rl.data.check import Checked
from datapm_rl.errors import UserError


def split_by_file(rows: list[Checked], share: float, seed: int) -> list[str]:
    """`train` or `heldout` for each row, in the order of `rows`; about `share` of the rows are held out.

    Rows that share a file, directly or through others, stay together. The same rows, share and seed give the same
    split. UserError: all rows hang together.
    """
    groups = _groups(rows)
    if len(groups) < 2:
        raise UserError("all tasks use the same data files: they cannot be split by file; add tasks on other files")
    order = list(groups)
    random.Random(seed).shuffle(order)
    wanted = min(max(1, round(share * len(rows))), len(rows) - 1)
    held: set[int] = set()
    for group in order:
        if len(held) + len(group) <= wanted:
            held.update(group)
    if not held:  # no group is that small
        smallest = min(order, key=len)
        held.update(smallest)
    return ["heldout" if index in held else "train" for index in range(len(rows))]


def _groups(rows: list[Checked]) -> list[list[int]]:
    """Indices of rows that share a file, directly or through others (union-find over files)."""
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    first: dict[str, int] = {}
    for index, row in enumerate(rows):
        for key in row.keys.values():
            parent[root(index)] = root(first.setdefault(key, index))
    groups: dict[int, list[int]] = {}
    for index in range(len(rows)):
        groups.setdefault(root(index), []).append(index)
    return list(groups.values())
