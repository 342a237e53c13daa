"""Mooncake's transfer engine between two hosts: READ, WRITE and a batch of READs, each byte compared, then a killed peer.

transfers.py RANK DIRECTORY: host 0 offers its memory and is killed at the end. The hosts agree through files in DIRECTORY.
"""
import ctypes
import os
import random
import signal
import sys
import time

from mooncake.engine import TransferEngine

rank, directory = int(sys.argv[1]), sys.argv[2]
LENGTH = 16 << 20
os.makedirs(directory, exist_ok=True)


def says(name, text=''):
    with open(f'{directory}/{name}.new', 'w') as file:
        file.write(text)
    os.rename(f'{directory}/{name}.new', f'{directory}/{name}')


def hears(name):
    for _ in range(300):
        if os.path.exists(f'{directory}/{name}'):
            with open(f'{directory}/{name}') as file:
                return file.read()
        time.sleep(0.1)
    sys.exit(f'error: no {name} within 30 s')


def pattern(of):
    return random.Random(of).randbytes(LENGTH)


own = f'10.79.0.{rank + 1}'
engine = TransferEngine()
assert engine.initialize(own, 'P2PHANDSHAKE', 'rdma', '') == 0, 'the engine does not start'
memory = (ctypes.c_char * LENGTH).from_buffer(bytearray(pattern(rank)))
here = ctypes.addressof(memory)
assert engine.register_memory(here, LENGTH) == 0, 'the memory is not registered'

if rank == 0:
    says('address', f'{own}:{engine.get_rpc_port()} {here}')
    hears('written')
    assert memory.raw == pattern(1), 'bytes that were written differ'
    says('equal')
    hears('transfers')
    os.kill(os.getpid(), signal.SIGKILL)

peer, there = hears('address').split()
there = int(there)
assert engine.transfer_sync_read(peer, here, there, LENGTH) == 0, 'READ fails'
assert memory.raw == pattern(0), 'bytes that were read differ'
memory.raw = pattern(1)
assert engine.transfer_sync_write(peer, here, there, LENGTH) == 0, 'WRITE fails'
says('written')
hears('equal')
# Odd lengths at odd offsets; the bytes between them stay.
ctypes.memset(here, 0, LENGTH)
offsets = [at * 65_521 + at for at in range(255)]
sources, targets = [there + at for at in offsets], [here + at for at in offsets]
assert engine.batch_transfer_sync_read(peer, targets, sources, [1001] * len(offsets)) == 0, 'a batch of READs fails'
expected, source = bytearray(LENGTH), pattern(1)
for at in offsets:
    expected[at:at + 1001] = source[at:at + 1001]
assert memory.raw == expected, 'bytes of a batch differ'
says('transfers')
# The peer dies without a word: transfers fail, and the engine survives that.
while engine.transfer_sync_write(peer, here, there, LENGTH) == 0:
    pass
assert engine.unregister_memory(here) == 0, 'the memory stays registered'
print('all bytes equal; transfers to a killed peer fail')
