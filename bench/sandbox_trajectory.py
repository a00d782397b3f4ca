"""The trajectory that `bench.sandbox` plays: ten pandas steps of an analysis over a table of 20,000 rows."""

from __future__ import annotations

import csv
import random
from datetime import date, timedelta
from pathlib import Path

ROWS = 20_000

STEPS = [
    """import numpy as np
import pandas as pd
df = pd.read_csv("sales.csv", parse_dates=["day"])
print(df.shape, df["revenue"].isna().sum())
print(df.head().to_string())""",
    """df["revenue"] = df["revenue"].fillna(df["revenue"].median())
df["unit_price"] = df["revenue"] / df["units"]
print(df.describe().round(3).to_string())""",
    """by_region = df.groupby("region").agg(revenue=("revenue", "sum"), units=("units", "mean"), n=("day", "size"))
print(by_region.sort_values("revenue", ascending=False).round(2).to_string())""",
    """targets = pd.DataFrame({"region": ["north", "south", "east", "west"], "target": [1.1, 0.9, 1.0, 1.2]})
df = df.merge(targets, on="region", how="left")
df["weighted"] = df["revenue"] * df["target"]
print(df["weighted"].sum().round(2))""",
    """corr = df[["units", "revenue", "discount", "weighted"]].corr()
print(corr.round(4).to_string())""",
    """pivot = df.pivot_table(index="product", columns="region", values="revenue", aggfunc="mean")
print(pivot.round(2).to_string())""",
    """df = df.sort_values(["day", "product", "units"], kind="stable").reset_index(drop=True)
df["rolling"] = df["revenue"].rolling(50).mean()
print(df["rolling"].tail().round(3).tolist())""",
    """counts = df["product"].value_counts()
busy = df[df["product"].isin(counts.head(5).index)]
print(sorted(counts.head(5).tolist()), len(busy))""",
    """monthly = df.set_index("day")["revenue"].resample("MS").sum()
growth = monthly.pct_change()
print(growth.describe().round(4).to_string())""",
    """slope, intercept = np.polyfit(np.arange(len(monthly)), monthly.to_numpy(), 1)
outliers = df[(df["unit_price"] - df["unit_price"].mean()).abs() > 3 * df["unit_price"].std()]
monthly.to_csv("monthly.csv")
print(round(float(slope), 3), len(outliers))""",
]


def big_state(megabytes: int) -> str:
    """Code that makes a state of that size."""
    return f"import numpy as np\nstate = np.ones({megabytes * 125_000})"


def write_table(folder: Path) -> None:
    """sales.csv, the same each time."""
    rng = random.Random(0)
    start = date(2022, 1, 1)
    with open(folder / "sales.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["day", "region", "product", "units", "discount", "revenue"])
        for _ in range(ROWS):
            units, discount = rng.randint(1, 40), round(rng.uniform(0, 0.3), 2)
            revenue = round(units * rng.lognormvariate(2.5, 0.4) * (1 - discount), 2)
            writer.writerow(
                [
                    start + timedelta(days=rng.randrange(1000)),
                    rng.choice(["north", "south", "east", "west"]),
                    f"p{rng.randrange(30):02}",
                    units,
                    discount,
                    "" if rng.random() < 0.02 else revenue,
                ]
            )
