"""Checks of a machine before a run: `python -m datapm_rl.doctor sandbox`."""
