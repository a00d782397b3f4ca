"""Side-by-side measurements: python -m bench.NAME prints ratios from one run."""
