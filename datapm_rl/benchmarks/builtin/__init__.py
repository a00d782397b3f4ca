"""The builtin benchmark: closed-form questions over dirty copies of small real tables.

tables    the real tables, read from the files of permissive PyPI packages
variants  a dirty CSV of a table (header style, sentinels, blanks, text numbers, letter case), its clean truth known
questions questions over a variant, with gold and a reference program that really cleans the file
build     the splits, written as the same JSONL and folder of CSVs that a user writes for own data
"""

from datapm_rl.benchmarks.builtin.build import build

__all__ = ["build"]
