/*
 * Ranks of one host exchange data by MPI, in messages of 4 bytes to 1 MiB, and compare every byte.
 *
 * mpirun -np N ./collectives: exits with 0 if all is as it must be.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* The number at `at` in what `rank` sends. */
static int number(int rank, int at)
{
	return rank * 31 + at;
}

/* Sums, gathers and exchanges `count` numbers of each of `size` ranks; returns how many came out wrong. */
static int wrong_of(int rank, int size, int count)
{
	int *own = malloc(count * sizeof(*own)), *sum = malloc(count * sizeof(*sum));
	int *all = malloc(sizeof(*all) * count * size), *each = malloc(sizeof(*each) * count * size);
	int wrong = 0;
	if (!own || !sum || !all || !each)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int at = 0; at < count; at++)
		own[at] = number(rank, at);
	MPI_Allreduce(own, sum, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	MPI_Allgather(own, count, MPI_INT, all, count, MPI_INT, MPI_COMM_WORLD);
	for (int at = 0; at < count; at++) {
		int expected = 0;
		for (int from = 0; from < size; from++) {
			expected += number(from, at);
			wrong += all[from * count + at] != number(from, at);
		}
		wrong += sum[at] != expected;
	}
	for (int at = 0; at < count * size; at++)
		each[at] = number(rank, at);
	MPI_Alltoall(each, count, MPI_INT, all, count, MPI_INT, MPI_COMM_WORLD);
	for (int at = 0; at < count * size; at++)
		wrong += all[at] != number(at / count, rank * count + at % count);
	free(own);
	free(sum);
	free(all);
	free(each);
	return wrong;
}

int main(int argc, char **argv)
{
	int rank, size, wrong = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int count = 1; count <= 1 << 18; count *= 4)
		wrong += wrong_of(rank, size, count);
	printf("rank %d of %d: %d wrong\n", rank, size, wrong);
	MPI_Finalize();
	return wrong != 0;
}
