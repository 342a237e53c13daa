/*
 * Several threads that make calls in any order on shared objects: what the programs of `ci/stress` have in common. Nothing may crash or
 * hang, each call returns what its manual page allows, and at the end all objects can be destroyed.
 *
 *   PROGRAM DEVICE SEED STEPS THREADS     on a port that receives its own frames
 *
 * Compiled with -DFUZZ, a program is a fuzz target, which takes every decision from the input instead.
 *
 * An object is destroyed only while no other thread uses it, as the manual pages ask for: each has a lock, which users share.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 240, THREADS = 64 };

/* An object that may be there. */
struct slot {
	pthread_rwlock_t lock;
	void *object;
};

struct choices;

static const struct program {
	/* Every kind of object, those that others depend on last. */
	struct kind {
		struct slot *slots;
		unsigned count;
		int (*destroy)(void *);
	} kinds[8];
	/* Makes what all threads share. */
	void (*begin)(const char *device);
	/* A thread's next call. */
	void (*step)(struct choices *);
	/* Whether a call may return an error number. */
	int (*may_return)(int error);
	/* Checks what holds without any object. */
	void (*check_end)(void);
	/* Prints what happened, and gives back what all threads shared. */
	void (*end)(void);
} program;

static atomic_ulong calls, created, events;

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "stress: %s (%s)\n", what, strerror(errno));
	abort();
}

/* What a call that returns an error number, or -1 with errno, may return. */
static void allowed(int result, const char *what)
{
	calls++;
	if (!result) return;
	errno = result == -1 ? errno : result;
	need(program.may_return(errno), what);
}

#ifdef FUZZ
/* A thread's part of the input: a byte decides, and two where 256 values are not enough. */
struct choices {
	const uint8_t *at, *end;
};
static unsigned byte(struct choices *choices) { return choices->at < choices->end ? *choices->at++ : 0; }
static uint64_t next(struct choices *choices) { return byte(choices) << 8 | byte(choices); }
static unsigned below(struct choices *choices, unsigned limit) { return (limit > 256 ? next(choices) : byte(choices)) % limit; }
static int more(struct choices *choices) { return choices->at < choices->end; }
#else
/* xorshift: a thread's own numbers. */
struct choices {
	uint64_t seed;
	unsigned steps;
};
static uint64_t next(struct choices *choices)
{
	uint64_t seed = choices->seed;
	seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
	return (choices->seed = seed) >> 11;
}
static unsigned below(struct choices *choices, unsigned limit) { return next(choices) % limit; }
static int more(struct choices *choices) { return choices->steps-- > 0; }
#endif

/* An object to use, or NULL: then nothing is held. */
static void *use(struct slot *slot)
{
	pthread_rwlock_rdlock(&slot->lock);
	if (slot->object) return slot->object;
	pthread_rwlock_unlock(&slot->lock);
	return NULL;
}
static void leave(struct slot *slot) { pthread_rwlock_unlock(&slot->lock); }

/* A place to fill, if no thread uses it and it is empty. */
static int take_empty(struct slot *slot)
{
	if (pthread_rwlock_trywrlock(&slot->lock)) return 0;
	if (!slot->object) return 1;
	pthread_rwlock_unlock(&slot->lock);
	return 0;
}
static void fill(struct slot *slot, void *object)
{
	if (object) created++;
	slot->object = object;
	pthread_rwlock_unlock(&slot->lock);
	calls++;
}

static unsigned kinds(void)
{
	unsigned count = 0;
	while (count < sizeof program.kinds / sizeof *program.kinds && program.kinds[count].count) count++;
	return count;
}

static void destroy_one(struct choices *choices)
{
	const struct kind *kind = &program.kinds[below(choices, kinds())];
	struct slot *slot = &kind->slots[below(choices, kind->count)];
	if (pthread_rwlock_trywrlock(&slot->lock)) return;
	if (slot->object) {
		int result = kind->destroy(slot->object);
		allowed(result, "destroys");
		if (!result) slot->object = NULL;
	}
	pthread_rwlock_unlock(&slot->lock);
}

static void *worker(void *choices)
{
	while (more(choices)) program.step(choices);
	return NULL;
}

static void prepare(const char *device)
{
	/* Memory that was given back holds no pointer that leads anywhere. */
	mallopt(M_PERTURB, 0x5a);
	for (unsigned kind = 0; kind < kinds(); kind++)
		for (unsigned n = 0; n < program.kinds[kind].count; n++) need(!pthread_rwlock_init(&program.kinds[kind].slots[n].lock, NULL), "pthread_rwlock_init");
	program.begin(device);
}

/* Runs a thread for each, and destroys what they leave. */
static void run(struct choices *choices, unsigned threads)
{
	pthread_t all[THREADS];
	for (unsigned n = 0; n < threads; n++) need(!pthread_create(&all[n], NULL, worker, &choices[n]), "pthread_create");
	for (unsigned n = 0; n < threads; n++) need(!pthread_join(all[n], NULL), "pthread_join");
	for (unsigned kind = 0; kind < kinds(); kind++)
		for (unsigned n = 0; n < program.kinds[kind].count; n++) {
			struct slot *slot = &program.kinds[kind].slots[n];
			if (slot->object) need(!program.kinds[kind].destroy(slot->object), "all is destroyed in the end");
			slot->object = NULL;
		}
	program.check_end();
}

/* The events of objects went with them, so a program that polls does not wait for one that is not there. */
static void need_silence(int one, int other)
{
	struct pollfd both[] = { { .fd = one, .events = POLLIN }, { .fd = other, .events = POLLIN } };
	need(!poll(both, 2, 0), "descriptors are readable only while there is an event");
}

#ifdef FUZZ
/* The input's first byte is the number of threads, which share the rest. They also drive the core: that is the fastest on few processors. */
int rust_fuzzer_test_input(const uint8_t *input, size_t length)
{
	static int prepared;
	struct choices choices[3];
	if (!prepared) {
		need(!setenv("FERROCE_PORT", "ring:fuzz", 1) && !setenv("FERROCE_IP", "10.0.0.1/24", 1), "setenv");
		need(!setenv("FERROCE_PROGRESS", "inline", 0) && !setenv("FERROCE_LOG", "off", 0), "setenv");
		prepare("ferroce0");
		prepared = 1;
	}
	if (!length) return 0;
	unsigned threads = 1 + input[0] % 3;
	size_t share = (length - 1) / threads;
	for (unsigned n = 0; n < threads; n++) choices[n] = (struct choices){ input + 1 + n * share, input + 1 + (n + 1) * share };
	run(choices, threads);
	return 0;
}
#else
int main(int count, char **words)
{
	struct choices choices[THREADS];
	need(count == 5, "PROGRAM DEVICE SEED STEPS THREADS");
	prepare(words[1]);
	uint64_t seed = strtoull(words[2], NULL, 0);
	unsigned steps = atoi(words[3]), threads = atoi(words[4]);
	need(threads >= 1 && threads <= THREADS, "1 to 64 threads");
	/* What hangs is ended, by SIGALRM. */
	alarm(PATIENCE);
	for (unsigned n = 0; n < threads; n++) choices[n] = (struct choices){ seed * 0x9e3779b97f4a7c15 + n + 1, steps };
	run(choices, threads);
	program.end();
	return 0;
}
#endif
