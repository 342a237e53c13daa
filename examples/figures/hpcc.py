#!/usr/bin/env python3
"""Draws figures 11 and 14 of the HPCC paper (SIGCOMM 2019) from results of `ferroce sim`.

Figure 11: slowdown by flow size in a fat tree of 320 hosts, with Hadoop's traffic at a load of 50 %.
Figure 14: fairness and queue of 16 flows to one host, for four values of W_ai.

Runs the scenarios whose results are not in the folder yet, reads their tables with pandas, and draws each figure together with the results
of the HPCC authors' simulator for the same flows. Prints the largest differences between the two simulators.

    python3 examples/figures/hpcc.py --out results
"""

import argparse
import subprocess
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

FABRIC = Path(__file__).resolve().parents[2] / "fabric"
SCENARIOS = FABRIC / "scenarios" / "reference"
AUTHORS = FABRIC / "tests" / "data"

# Figure 11: label, scenario, and run in the authors' table.
SCHEMES = [
    ("HPCC", "fat-tree", "fb50_hpcc_ms0"),
    ("DCTCP", "fat-tree-dctcp", "fb50_dctcp"),
    ("DCQCN", "fat-tree-dcqcn", "fb50_dcqcn"),
]
# Figure 14: W_ai in bytes, as the authors' table has it, and scenario.
INCREASES = [
    (5, "incast-16-10ms-wai5"),
    (25, "incast-16-10ms"),
    (150, "incast-16-10ms-wai150"),
    (300, "incast-16-10ms-wai300"),
]
# The 16 flows have converged after this time.
STEADY_US = 100


def results(args, scenario, table, flows=None):
    """Returns a table of a scenario's results. Runs the scenario first if it has none."""
    folder = args.out / scenario
    if not (folder / "summary.json").is_file() or (folder / "summary.json").stat().st_size == 0:
        command = [args.ferroce, "sim", SCENARIOS / f"{scenario}.toml", "--out", folder]
        subprocess.run(command + (["--flows", flows] if flows else []), check=True, stdout=subprocess.DEVNULL)
    return pd.read_csv(folder / table)


def slowdowns(fct, edges):
    """Returns the 95th percentile of the slowdown by flow size: one row per interval of `edges`."""
    slowdown = (fct.fct_ns / fct.standalone_fct_ns).clip(lower=1)
    return slowdown.groupby(pd.cut(fct.size_bytes, edges, right=False), observed=False).quantile(0.95)


def figure_11(args):
    """Draws the slowdown by flow size. Returns the largest relative difference from the authors' figures."""
    theirs = pd.read_csv(AUTHORS / "fattree" / "slowdown.csv")
    difference = 0
    fig, axes = plt.subplots(figsize=(7, 4))
    for (name, scenario, run), colour in zip(SCHEMES, ("C0", "C1", "C2")):
        reference = theirs[theirs.run == run].iloc[1:]  # The first row is of all sizes.
        edges = [*reference.size_lo, reference.size_hi.iloc[-1]]
        fct = results(args, scenario, "fct.csv", flows=AUTHORS / "fattree" / "flows_fb50.csv.gz")
        ours = slowdowns(fct, edges).to_numpy()
        places = range(len(ours))
        axes.plot(places, ours, color=colour, label=name)
        axes.plot(places, reference.p95, "x", color=colour, label=f"{name}, the authors'")
        difference = max(difference, abs(ours / reference.p95.to_numpy() - 1).max())
    axes.set_xticks(places, [f"{size:,.0f}" for size in edges[1:]], rotation=60)
    axes.set(xlabel="flows below this size, bytes", ylabel="slowdown, 95th percentile", ylim=0)
    axes.set_title("Figure 11: 320 hosts, FB_Hadoop at 50 %")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    fig.savefig(args.out / "figure-11.png", dpi=150, bbox_inches="tight")
    return difference


def converged(series):
    """Returns the flows' rates in Gb/s and the 95th percentile of the queue in bytes, after `STEADY_US`."""
    steady = series[series.t_us >= STEADY_US]
    first, last = steady.iloc[0], steady.iloc[-1]
    acked = [column for column in series.columns if column.startswith("acked_bytes_")]
    rates = (last[acked] - first[acked]) * 8e-3 / (last.t_us - first.t_us)
    return rates, steady.bottleneck_q_bytes.quantile(0.95)


def jain(rates):
    """Returns Jain's index of fairness."""
    return rates.sum() ** 2 / (len(rates) * (rates**2).sum())


def figure_14(args):
    """Draws fairness and queue for each W_ai. Returns the largest differences from the authors' Jain's index and queue, kB."""
    theirs = pd.read_csv(AUTHORS / "f14.csv")
    theirs = theirs[(theirs.max_stage == 5) & (theirs.window_from_us == STEADY_US)].set_index("w_ai_bytes")
    rows = {}
    for increase, scenario in INCREASES:
        rates, queue = converged(results(args, scenario, "series.csv"))
        rows[increase] = {"least": rates.min(), "most": rates.max(), "jain": jain(rates), "queue": queue / 1e3}
    ours = pd.DataFrame.from_dict(rows, orient="index")
    theirs = theirs.loc[ours.index]
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
    ours[["least", "most"]].plot.bar(ax=axes[0], ylabel="Gb/s of a flow", title="Rates")
    axes[0].plot(range(4), theirs.goodput_min, "kx", label="the authors'")
    axes[0].plot(range(4), theirs.goodput_max, "kx")
    ours.jain.plot.bar(ax=axes[1], ylabel="Jain's index", title="Fairness")
    axes[1].plot(range(4), theirs.jain, "kx")
    ours.queue.plot.bar(ax=axes[2], ylabel="kB, 95th percentile", title="Queue")
    axes[2].plot(range(4), theirs.q_p95, "kx")
    axes[0].legend()
    for axis in axes:
        axis.set_xlabel("W_ai, bytes")
    fig.suptitle("Figure 14: 16 flows to one host")
    fig.savefig(args.out / "figure-14.png", dpi=150, bbox_inches="tight")
    return (ours.jain - theirs.jain).abs().max(), (ours.queue - theirs.q_p95).abs().max()


def main():
    """Draws both figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results and the figures")
    parser.add_argument("--ferroce", default="ferroce", help="path of the program ferroce")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"figure 11: slowdowns within {figure_11(args):.1%} of the authors'")
    fairness, queue = figure_14(args)
    print(f"figure 14: Jain's index within {fairness:.3f}, queues within {queue:.1f} kB of the authors'")


if __name__ == "__main__":
    main()
