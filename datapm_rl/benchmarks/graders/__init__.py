"""Grading rules, one per file: pure functions from an answer and its gold to what is right in it."""
