"""Ranks of mpi4py exchange objects and buffers of several sizes, and compare every byte."""
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()
after, before = (rank + 1) % ranks, (rank - 1) % ranks


def pattern(of, length):
    return bytearray((of * 37 + at * 7) % 251 for at in range(length))


for length in (0, 1, 1000, 100_000, 1_000_000):
    received = bytearray(length)
    world.Sendrecv([pattern(rank, length), MPI.BYTE], after, 1, [received, MPI.BYTE], before, 1)
    assert received == pattern(before, length), f'{length} bytes from rank {before} differ'
    one = world.bcast({'length': length, 'bytes': pattern(0, length)} if rank == 0 else None)
    assert one == {'length': length, 'bytes': pattern(0, length)}, f'an object of {length} bytes differs'
assert world.allgather((rank, 'x' * rank)) == [(of, 'x' * of) for of in range(ranks)]
assert world.allreduce(rank + 1) == ranks * (ranks + 1) // 2

# One-sided: each rank puts its bytes into the next one's window, and gets them from the one before.
length = 65536
mine = pattern(rank, length)  # a put reads it until the fence
window = MPI.Win.Allocate(length, comm=world)
window.Fence()
window.Put([mine, MPI.BYTE], after)
window.Fence()
assert bytearray(window.tomemory()) == pattern(before, length), 'bytes that were put differ'
fetched = bytearray(length)
window.Get([fetched, MPI.BYTE], after)
window.Fence()
assert fetched == mine, 'bytes that were got differ'
window.Free()
print(f'rank {rank} of {ranks}: all data equal', flush=True)
