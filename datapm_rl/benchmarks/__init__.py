"""Benchmarks: task files (`task_file`), grading rules by name (`grading`, `graders/`), the builtin benchmark."""

from datapm_rl.benchmarks.grading import Grade, grade

__all__ = ["Grade", "grade"]
