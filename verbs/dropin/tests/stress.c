/*
 * Several threads call verbs in any order, by a seed: they create, destroy, modify, post, poll, wait and query on shared objects. Nothing
 * may crash or hang, each call returns what its manual page allows, and at the end all objects can be destroyed.
 *
 *   stress DEVICE SEED STEPS THREADS     on a port that receives its own frames
 *
 * Compiled with -DFUZZ it is the fuzz target `verbs`, which takes every decision from the input instead.
 *
 * An object is destroyed only while no other thread uses it, as the manual pages ask for: each has a lock, which users share.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PDS = 2, /* the second seldom used */ CQS = 4, SRQS = 2, MRS = 4, AHS = 2, QPS = 8, SIZE = 1 << 16, PATIENCE = 240, THREADS = 64 };

/* An object that may be there. */
struct slot {
	pthread_rwlock_t lock;
	void *object;
};

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct slot pds[PDS], cqs[CQS], srqs[SRQS], mrs[MRS], ahs[AHS], qps[QPS];
static char *memory;
static atomic_ulong calls, completions, successes, events, created;

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "stress: %s (%s)\n", what, strerror(errno));
	abort();
}

/* What a verb that returns an error number, or -1 with errno, may return. */
static void allowed(int result, const char *what)
{
	int error = result == -1 ? errno : result;
	calls++;
	switch (error) {
	case 0: case EINVAL: case EBUSY: case ENOMEM: case EOPNOTSUPP: case EAGAIN: case EPERM: case ENOSPC: return;
	}
	errno = error;
	need(0, what);
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
/* Mostly all of them. */
static unsigned rights(struct choices *choices) { return below(choices, 4) ? 15 : below(choices, 16); }

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

static int destroy_pd(void *object) { return ibv_dealloc_pd(object); }
static int destroy_cq(void *object) { return ibv_destroy_cq(object); }
static int destroy_srq(void *object) { return ibv_destroy_srq(object); }
static int destroy_mr(void *object) { return ibv_dereg_mr(object); }
static int destroy_ah(void *object) { return ibv_destroy_ah(object); }
static int destroy_qp(void *object) { return ibv_destroy_qp(object); }

/* Every kind of object, those that others depend on last. */
static const struct { struct slot *slots; unsigned count; int (*destroy)(void *); } kinds[] = {
	{ qps, QPS, destroy_qp }, { ahs, AHS, destroy_ah }, { mrs, MRS, destroy_mr }, { srqs, SRQS, destroy_srq },
	{ cqs, CQS, destroy_cq }, { pds, PDS, destroy_pd },
};

static void destroy_one(struct choices *choices)
{
	unsigned kind = below(choices, sizeof kinds / sizeof *kinds);
	struct slot *slot = &kinds[kind].slots[below(choices, kinds[kind].count)];
	if (pthread_rwlock_trywrlock(&slot->lock)) return;
	if (slot->object) {
		int result = kinds[kind].destroy(slot->object);
		allowed(result, "destroys");
		if (!result) slot->object = NULL;
	}
	pthread_rwlock_unlock(&slot->lock);
}

static void create_qp(struct choices *choices, struct ibv_pd *pd, struct slot *slot)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	struct slot *send = &cqs[below(choices, CQS)], *recv = &cqs[below(choices, CQS)], *srq = &srqs[below(choices, SRQS)];
	/* In the order of their places: a lock is not taken twice, and no two threads wait for each other. */
	struct slot *first = send < recv ? send : recv, *second = send < recv ? recv : send;
	struct ibv_qp_init_attr init = { .qp_type = types[below(choices, 4)], .sq_sig_all = below(choices, 2),
		.cap = { 1 + below(choices, 32), 1 + below(choices, 32), 1 + below(choices, 4), 1 + below(choices, 4), below(choices, 64) } };
	struct ibv_qp *qp = NULL;
	int with_srq = below(choices, 4) == 0;
	if (use(first)) {
		if (first == second || use(second)) {
			init.send_cq = send->object, init.recv_cq = recv->object;
			if (!with_srq || (init.srq = use(srq))) {
				qp = ibv_create_qp(pd, &init);
				if (!qp) allowed(errno, "ibv_create_qp");
				if (with_srq) leave(srq);
			}
			if (first != second) leave(second);
		}
		leave(first);
	}
	fill(slot, qp);
}

static void create_one(struct choices *choices)
{
	struct slot *pd = &pds[below(choices, 8) == 0], *slot;
	unsigned kind = below(choices, 6);
	if (kind == 0) {
		if (take_empty(pd)) fill(pd, ibv_alloc_pd(context));
		return;
	}
	if (kind == 1) {
		slot = &cqs[below(choices, CQS)];
		if (take_empty(slot)) fill(slot, ibv_create_cq(context, below(choices, 8) ? 512 : 1 + below(choices, 256), NULL, below(choices, 2) ? channel : NULL, 0));
		return;
	}
	if (!use(pd)) return;
	if (kind == 2 && take_empty(slot = &mrs[below(choices, MRS)]))
		fill(slot, ibv_reg_mr(pd->object, memory + 4096 * below(choices, 4), 4096 * (1 + below(choices, 8)), rights(choices)));
	if (kind == 3 && take_empty(slot = &srqs[below(choices, SRQS)])) {
		struct ibv_srq_init_attr init = { .attr = { 1 + below(choices, 64), 1 + below(choices, 4), 0 } };
		fill(slot, ibv_create_srq(pd->object, &init));
	}
	if (kind == 4 && take_empty(slot = &ahs[below(choices, AHS)])) {
		struct ibv_ah_attr way = { .is_global = 1, .port_num = 1 };
		need(!ibv_query_gid(context, 1, 0, &way.grh.dgid), "ibv_query_gid");
		fill(slot, ibv_create_ah(pd->object, &way));
	}
	if (kind == 5 && take_empty(slot = &qps[below(choices, QPS)])) create_qp(choices, pd->object, slot);
	leave(pd);
}

/* Towards RTS, connected to itself or to another; or anywhere else. */
static void modify(struct choices *choices, struct ibv_qp *qp)
{
	static const enum ibv_qp_state any[] = { IBV_QPS_RESET, IBV_QPS_SQD, IBV_QPS_ERR, IBV_QPS_RTS };
	struct ibv_qp_attr attr = { .port_num = 1, .qp_access_flags = rights(choices), .qkey = 7, .path_mtu = 1 + below(choices, 5), .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = below(choices, 17), .max_rd_atomic = below(choices, 17), .min_rnr_timer = 1, .timeout = 1 + below(choices, 8),
		.retry_cnt = below(choices, 8), .rnr_retry = below(choices, 8), .ah_attr = { .is_global = 1, .port_num = 1 } };
	struct slot *other = &qps[below(choices, QPS)];
	int ud = qp->qp_type == IBV_QPT_UD, rc = qp->qp_type == IBV_QPT_RC;
	need(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	if (below(choices, 4) == 0 && !pthread_rwlock_tryrdlock(&other->lock)) {
		if (other->object) attr.dest_qp_num = ((struct ibv_qp *)other->object)->qp_num;
		leave(other);
	}
	if (below(choices, 8) == 0) {
		attr.qp_state = any[below(choices, 4)];
		allowed(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ibv_modify_qp");
		return;
	}
	attr.qp_state = IBV_QPS_INIT;
	allowed(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	allowed(ibv_modify_qp(qp, &attr, IBV_QP_STATE | (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
		| (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	allowed(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN
		| (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)), "RTS");
}

static void post(struct choices *choices, struct ibv_qp *qp)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct slot *region = &mrs[below(choices, MRS)], *way = &ahs[below(choices, AHS)];
	struct ibv_mr *mr = use(region), none = { .addr = memory, .length = 4096, .lkey = next(choices), .rkey = next(choices) };
	struct ibv_sge sge = { (uintptr_t)(mr ? mr : &none)->addr + 8 * below(choices, 64), below(choices, 2) ? below(choices, 3000) : 8, (mr ? mr : &none)->lkey };
	struct ibv_send_wr wr = { .wr_id = next(choices), .sg_list = &sge, .num_sge = below(choices, 8) > 0, .opcode = opcodes[below(choices, 7)], .send_flags = below(choices, 16) }, *bad;
	struct ibv_recv_wr recv = { .wr_id = next(choices), .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	if (qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = use(way), wr.wr.ud.remote_qpn = qp->qp_num, wr.wr.ud.remote_qkey = 7;
	} else if (wr.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)(mr ? mr : &none)->addr, wr.wr.atomic.rkey = (mr ? mr : &none)->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)(mr ? mr : &none)->addr, wr.wr.rdma.rkey = (mr ? mr : &none)->rkey;
	}
	if (below(choices, 3)) {
		if (qp->qp_type != IBV_QPT_UD || wr.wr.ud.ah) allowed(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	} else if (qp->srq) {
		allowed(ibv_post_srq_recv(qp->srq, &recv, &bad_recv), "ibv_post_srq_recv");
	} else {
		allowed(ibv_post_recv(qp, &recv, &bad_recv), "ibv_post_recv");
	}
	if (qp->qp_type == IBV_QPT_UD && wr.wr.ud.ah) leave(way);
	if (mr) leave(region);
}

static void poll_one(struct choices *choices, struct slot *slot)
{
	struct ibv_wc wc[8];
	int found = ibv_poll_cq(slot->object, 1 + below(choices, 8), wc);
	calls++;
	/* An overflow is reported as an error. */
	for (int n = 0; n < found; n++) {
		need(wc[n].status <= IBV_WC_GENERAL_ERR, "a status that there is");
		completions++;
		successes += wc[n].status == IBV_WC_SUCCESS;
	}
	if (below(choices, 4) == 0) allowed(ibv_req_notify_cq(slot->object, below(choices, 2)), "ibv_req_notify_cq");
	if (below(choices, 64) == 0) allowed(ibv_resize_cq(slot->object, 256 + below(choices, 512)), "ibv_resize_cq");
}

static void hear(void)
{
	struct ibv_async_event event;
	struct ibv_cq *cq;
	void *user;
	if (!ibv_get_cq_event(channel, &cq, &user)) {
		ibv_ack_cq_events(cq, 1);
		events++;
	}
	if (!ibv_get_async_event(context, &event)) {
		need(event.event_type != IBV_EVENT_DEVICE_FATAL, "the device lives");
		ibv_ack_async_event(&event);
		events++;
	}
	calls += 2;
}

static void query(struct choices *choices, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	allowed(ibv_query_qp(qp, &attr, below(choices, 1 << 20), &init), "ibv_query_qp");
}

static void *worker(void *argument)
{
	struct choices *choices = argument;
	while (more(choices)) {
		struct slot *qp = &qps[below(choices, QPS)], *cq = &cqs[below(choices, CQS)], *srq = &srqs[below(choices, SRQS)];
		unsigned choice = below(choices, 100);
		if (choice < 8) create_one(choices);
		else if (choice < 11) destroy_one(choices);
		else if (choice < 20) { if (use(qp)) { modify(choices, qp->object); leave(qp); } }
		else if (choice < 60) { if (use(qp)) { post(choices, qp->object); leave(qp); } }
		else if (choice < 90) { if (use(cq)) { poll_one(choices, cq); leave(cq); } }
		else if (choice < 95) hear();
		else if (choice < 98) { if (use(qp)) { query(choices, qp->object); leave(qp); } }
		else if (use(srq)) {
			struct ibv_srq_attr attr = { .srq_limit = below(choices, 8) };
			allowed(ibv_modify_srq(srq->object, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq");
			leave(srq);
		}
	}
	return NULL;
}

/* Opens the device, and makes what all threads share. */
static void begin(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(!!list, "ibv_get_device_list");
	for (struct ibv_device **device = list; *device; device++)
		if (!strcmp(ibv_get_device_name(*device), name)) context = ibv_open_device(*device);
	ibv_free_device_list(list);
	need(!!context, "ibv_open_device");
	channel = ibv_create_comp_channel(context);
	need(!!channel, "ibv_create_comp_channel");
	need(!fcntl(channel->fd, F_SETFL, O_NONBLOCK) && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK), "fcntl");
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(memory != MAP_FAILED, "mmap");
	for (unsigned kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
		for (unsigned n = 0; n < kinds[kind].count; n++) need(!pthread_rwlock_init(&kinds[kind].slots[n].lock, NULL), "pthread_rwlock_init");
}

/* Runs a thread for each, and destroys what they leave. */
static void run(struct choices *choices, unsigned threads)
{
	pthread_t all[THREADS];
	for (unsigned n = 0; n < threads; n++) need(!pthread_create(&all[n], NULL, worker, &choices[n]), "pthread_create");
	for (unsigned n = 0; n < threads; n++) need(!pthread_join(all[n], NULL), "pthread_join");
	for (unsigned kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
		for (unsigned n = 0; n < kinds[kind].count; n++) {
			struct slot *slot = &kinds[kind].slots[n];
			if (slot->object) need(!kinds[kind].destroy(slot->object), "all is destroyed in the end");
			slot->object = NULL;
		}
	/* The events of objects went with them, so a program that polls does not wait for one that is not there. */
	struct pollfd both[] = { { .fd = channel->fd, .events = POLLIN }, { .fd = context->async_fd, .events = POLLIN } };
	need(!poll(both, 2, 0), "descriptors are readable only while there is an event");
}

#ifdef FUZZ
/* The input's first byte is the number of threads, which share the rest. They also drive the core: that is the fastest on few processors. */
int rust_fuzzer_test_input(const uint8_t *input, size_t length)
{
	struct choices choices[3];
	if (!context) {
		need(!setenv("FERROCE_PORT", "ring:fuzz", 1) && !setenv("FERROCE_IP", "10.0.0.1/24", 1), "setenv");
		need(!setenv("FERROCE_PROGRESS", "inline", 0) && !setenv("FERROCE_LOG", "off", 0), "setenv");
		begin("ferroce0");
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
	need(count == 5, "stress DEVICE SEED STEPS THREADS");
	begin(words[1]);
	uint64_t seed = strtoull(words[2], NULL, 0);
	unsigned steps = atoi(words[3]), threads = atoi(words[4]);
	need(threads >= 1 && threads <= THREADS, "1 to 64 threads");
	/* What hangs is ended, by SIGALRM. */
	alarm(PATIENCE);
	for (unsigned n = 0; n < threads; n++) choices[n] = (struct choices){ seed * 0x9e3779b97f4a7c15 + n + 1, steps };
	run(choices, threads);
	need(!ibv_destroy_comp_channel(channel) && !ibv_close_device(context), "the device is closed");
	printf("%lu calls, %lu objects, %lu completions (%lu of success), %lu events\n", calls, created, completions, successes, events);
	return 0;
}
#endif
