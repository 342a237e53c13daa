#!/usr/bin/env python3
"""Writes the same fat tree and permutation for `ferroce sim` and for htsim (csg-htsim).

A fat tree of K ports per switch has K^3/4 hosts. Each host sends 2 MB to another, all at once. Writes into FOLDER:

    topology.txt, flow.txt, fat-tree.toml    for ferroce sim fat-tree.toml --flows flow.txt
    permutation.cm                           for htsim, whose program builds the same topology from the number of hosts

    python3 examples/figures/htsim.py 8 FOLDER
"""

import argparse
import random
from pathlib import Path

BYTES = 2_000_000
SCENARIO = """topology = "graph"
links = "topology.txt"
first_host = 0
host = "model"
mtu = 4096
congestion = "hpcc,line_rate=100G,base_rtt=12us,min_rate=1G,flows=2,max_stage=5"
flow = [{ source = 0, destination = 1, bytes = 1000 }]
"""


def links(k):
    """Returns both ends of each link. Hosts come first, then edge, aggregation and core switches."""
    half, hosts = k // 2, k**3 // 4
    aggregation = hosts + k * half
    core = aggregation + k * half
    all_links = [(host, hosts + host // half) for host in range(hosts)]
    places = [divmod(switch, half) for switch in range(k * half)]
    for switch, (pod, _) in enumerate(places):
        all_links += [(hosts + switch, aggregation + pod * half + other) for other in range(half)]
    for switch, (_, place) in enumerate(places):
        all_links += [(aggregation + switch, core + place * half + other) for other in range(half)]
    return all_links


def permutation(hosts):
    """Returns the destination of each host, the same in each run."""
    chance = random.Random(1)
    while True:
        to = list(range(hosts))
        chance.shuffle(to)
        if all(host != other for host, other in enumerate(to)):
            return to


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("k", type=int, help="ports of a switch, an even number")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    k, folder = arguments.k, arguments.folder
    hosts, switches, all_links = k**3 // 4, 5 * k * k // 4, links(k)
    pairs = list(enumerate(permutation(hosts)))

    def write(name, lines):
        (folder / name).write_text("\n".join(lines) + "\n")

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fat-tree.toml").write_text(SCENARIO)
    numbers = " ".join(str(hosts + switch) for switch in range(switches))
    write(
        "topology.txt",
        [f"{hosts + switches} {switches} {len(all_links)}", numbers]
        + [f"{a} {b} 100Gbps 0.001ms 0" for a, b in all_links],
    )
    write("flow.txt", [str(hosts)] + [f"{a} {b} 3 100 {BYTES} 0" for a, b in pairs])
    write(
        "permutation.cm",
        [f"Nodes {hosts}", f"Connections {hosts}"]
        + [f"{a}->{b} id {a + 1} start 0 size {BYTES}" for a, b in pairs],
    )


if __name__ == "__main__":
    main()
