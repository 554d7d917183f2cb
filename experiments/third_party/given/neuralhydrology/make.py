"""Two rivers: rain and warmth by the day for three years, and a flow that follows them."""

from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

draw = np.random.default_rng(0)
days = pd.date_range("2000-01-01", "2002-12-31", name="date")
series, attributes = Path("data/time_series"), Path("data/attributes")
series.mkdir(parents=True)
attributes.mkdir()
rows = []
for basin in ("one", "two"):
    rain = draw.gamma(0.6, 5.0, len(days))
    warmth = 10 + 9 * np.sin(2 * np.pi * np.arange(len(days)) / 365) + draw.normal(0, 2, len(days))
    flow = np.convolve(rain, np.exp(-np.arange(15) / 4), mode="full")[: len(days)] * 0.2 + 0.1
    columns = {"rain": rain, "warmth": warmth, "flow": flow}
    data = {name: ("date", values.astype("float32")) for name, values in columns.items()}
    xr.Dataset(data, coords={"date": days}).to_netcdf(series / f"{basin}.nc")
    rows.append({"basin": basin, "height": draw.uniform(100, 900), "slope": draw.uniform(0, 20)})
pd.DataFrame(rows).to_csv(attributes / "attributes.csv", index=False)
Path("basins.txt").write_text("one\ntwo\n")
