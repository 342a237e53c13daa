"""Sends heaps of spead2 in raw packets from host 1 to a multicast group that host 0 has joined, and compares each byte.

stream.py RANK FILE: host 0 creates FILE when it is ready to receive."""
import os
import sys
import time

import numpy
import spead2
import spead2.recv
import spead2.send

HEAPS, SIZE, GROUP = 64, 65536, ("239.255.88.88", 8888)
rank, ready = int(sys.argv[1]), sys.argv[2]
own = f"10.79.0.{rank + 1}"


def payload(number):
    return numpy.random.default_rng(number).integers(0, 256, SIZE, dtype=numpy.uint8)


def receive():
    ring = spead2.recv.RingStreamConfig(heaps=HEAPS + 1)
    stream = spead2.recv.Stream(spead2.ThreadPool(), spead2.recv.StreamConfig(), ring)
    stream.add_udp_ibv_reader(spead2.recv.UdpIbvConfig(endpoints=[GROUP], interface_address=own))
    open(ready, "w").close()
    group, received = spead2.ItemGroup(), 0
    for heap in stream:
        items = group.update(heap)
        if "bytes" in items:
            number = int(items["number"].value)
            assert (items["bytes"].value == payload(number)).all(), f"error: heap {number} differs"
            received += 1
    assert received == HEAPS, f"error: {received} of {HEAPS} heaps"


def send():
    while not os.path.exists(ready):
        time.sleep(0.05)
    config = spead2.send.StreamConfig(rate=20e6, max_packet_size=1400)
    ibv = spead2.send.UdpIbvConfig(endpoints=[GROUP], interface_address=own, ttl=1)
    stream = spead2.send.UdpIbvStream(spead2.ThreadPool(), config, ibv)
    group = spead2.send.ItemGroup()
    group.add_item(None, "number", "of the heap", shape=(), format=[("u", 32)])
    group.add_item(None, "bytes", "", shape=(SIZE,), dtype=numpy.uint8)
    for number in range(HEAPS):
        group["number"].value, group["bytes"].value = number, payload(number)
        stream.send_heap(group.get_heap())
    stream.send_heap(group.get_end())


if rank == 0:
    receive()
else:
    send()
