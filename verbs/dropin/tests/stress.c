/*
 * Several threads call verbs in any order, by a seed: they create, destroy, modify, post, poll, wait and query on shared objects. Nothing
 * may crash or hang, each call returns what its manual page allows, and at the end all objects can be destroyed.
 *
 *   stress DEVICE SEED STEPS THREADS     on a port that receives its own frames
 *
 * An object is destroyed only while no other thread uses it, as the manual pages ask for: each has a lock, which users share.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PDS = 2, /* the second seldom used */ CQS = 4, SRQS = 2, MRS = 4, AHS = 2, QPS = 8, SIZE = 1 << 16, PATIENCE = 240 };

/* An object that may be there. */
struct slot {
	pthread_rwlock_t lock;
	void *object;
};

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct slot pds[PDS], cqs[CQS], srqs[SRQS], mrs[MRS], ahs[AHS], qps[QPS];
static char *memory;
static unsigned steps;
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

/* xorshift: a thread's own numbers. */
static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
	return *seed >> 11;
}
static unsigned below(uint64_t *seed, unsigned limit) { return next(seed) % limit; }
/* Mostly all of them. */
static unsigned rights(uint64_t *seed) { return below(seed, 4) ? 15 : below(seed, 16); }

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

static void destroy_one(uint64_t *seed)
{
	unsigned kind = below(seed, sizeof kinds / sizeof *kinds);
	struct slot *slot = &kinds[kind].slots[below(seed, kinds[kind].count)];
	if (pthread_rwlock_trywrlock(&slot->lock)) return;
	if (slot->object) {
		int result = kinds[kind].destroy(slot->object);
		allowed(result, "destroys");
		if (!result) slot->object = NULL;
	}
	pthread_rwlock_unlock(&slot->lock);
}

static void create_qp(uint64_t *seed, struct ibv_pd *pd, struct slot *slot)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	struct slot *send = &cqs[below(seed, CQS)], *recv = &cqs[below(seed, CQS)], *srq = &srqs[below(seed, SRQS)];
	/* In the order of their places: a lock is not taken twice, and no two threads wait for each other. */
	struct slot *first = send < recv ? send : recv, *second = send < recv ? recv : send;
	struct ibv_qp_init_attr init = { .qp_type = types[below(seed, 4)], .sq_sig_all = below(seed, 2),
		.cap = { 1 + below(seed, 32), 1 + below(seed, 32), 1 + below(seed, 4), 1 + below(seed, 4), below(seed, 64) } };
	struct ibv_qp *qp = NULL;
	int with_srq = below(seed, 4) == 0;
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

static void create_one(uint64_t *seed)
{
	struct slot *pd = &pds[below(seed, 8) == 0], *slot;
	unsigned kind = below(seed, 6);
	if (kind == 0) {
		if (take_empty(pd)) fill(pd, ibv_alloc_pd(context));
		return;
	}
	if (kind == 1) {
		slot = &cqs[below(seed, CQS)];
		if (take_empty(slot)) fill(slot, ibv_create_cq(context, below(seed, 8) ? 512 : 1 + below(seed, 256), NULL, below(seed, 2) ? channel : NULL, 0));
		return;
	}
	if (!use(pd)) return;
	if (kind == 2 && take_empty(slot = &mrs[below(seed, MRS)]))
		fill(slot, ibv_reg_mr(pd->object, memory + 4096 * below(seed, 4), 4096 * (1 + below(seed, 8)), rights(seed)));
	if (kind == 3 && take_empty(slot = &srqs[below(seed, SRQS)])) {
		struct ibv_srq_init_attr init = { .attr = { 1 + below(seed, 64), 1 + below(seed, 4), 0 } };
		fill(slot, ibv_create_srq(pd->object, &init));
	}
	if (kind == 4 && take_empty(slot = &ahs[below(seed, AHS)])) {
		struct ibv_ah_attr way = { .is_global = 1, .port_num = 1 };
		need(!ibv_query_gid(context, 1, 0, &way.grh.dgid), "ibv_query_gid");
		fill(slot, ibv_create_ah(pd->object, &way));
	}
	if (kind == 5 && take_empty(slot = &qps[below(seed, QPS)])) create_qp(seed, pd->object, slot);
	leave(pd);
}

/* Towards RTS, connected to itself or to another; or anywhere else. */
static void modify(uint64_t *seed, struct ibv_qp *qp)
{
	static const enum ibv_qp_state any[] = { IBV_QPS_RESET, IBV_QPS_SQD, IBV_QPS_ERR, IBV_QPS_RTS };
	struct ibv_qp_attr attr = { .port_num = 1, .qp_access_flags = rights(seed), .qkey = 7, .path_mtu = 1 + below(seed, 5), .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = below(seed, 17), .max_rd_atomic = below(seed, 17), .min_rnr_timer = 1, .timeout = 1 + below(seed, 8),
		.retry_cnt = below(seed, 8), .rnr_retry = below(seed, 8), .ah_attr = { .is_global = 1, .port_num = 1 } };
	struct slot *other = &qps[below(seed, QPS)];
	int ud = qp->qp_type == IBV_QPT_UD, rc = qp->qp_type == IBV_QPT_RC;
	need(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	if (below(seed, 4) == 0 && !pthread_rwlock_tryrdlock(&other->lock)) {
		if (other->object) attr.dest_qp_num = ((struct ibv_qp *)other->object)->qp_num;
		leave(other);
	}
	if (below(seed, 8) == 0) {
		attr.qp_state = any[below(seed, 4)];
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

static void post(uint64_t *seed, struct ibv_qp *qp)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct slot *region = &mrs[below(seed, MRS)], *way = &ahs[below(seed, AHS)];
	struct ibv_mr *mr = use(region), none = { .addr = memory, .length = 4096, .lkey = next(seed), .rkey = next(seed) };
	struct ibv_sge sge = { (uintptr_t)(mr ? mr : &none)->addr + 8 * below(seed, 64), below(seed, 2) ? below(seed, 3000) : 8, (mr ? mr : &none)->lkey };
	struct ibv_send_wr wr = { .wr_id = next(seed), .sg_list = &sge, .num_sge = below(seed, 8) > 0, .opcode = opcodes[below(seed, 7)], .send_flags = below(seed, 16) }, *bad;
	struct ibv_recv_wr recv = { .wr_id = next(seed), .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	if (qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = use(way), wr.wr.ud.remote_qpn = qp->qp_num, wr.wr.ud.remote_qkey = 7;
	} else if (wr.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)(mr ? mr : &none)->addr, wr.wr.atomic.rkey = (mr ? mr : &none)->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)(mr ? mr : &none)->addr, wr.wr.rdma.rkey = (mr ? mr : &none)->rkey;
	}
	if (below(seed, 3)) {
		if (qp->qp_type != IBV_QPT_UD || wr.wr.ud.ah) allowed(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	} else if (qp->srq) {
		allowed(ibv_post_srq_recv(qp->srq, &recv, &bad_recv), "ibv_post_srq_recv");
	} else {
		allowed(ibv_post_recv(qp, &recv, &bad_recv), "ibv_post_recv");
	}
	if (qp->qp_type == IBV_QPT_UD && wr.wr.ud.ah) leave(way);
	if (mr) leave(region);
}

static void poll_one(uint64_t *seed, struct slot *slot)
{
	struct ibv_wc wc[8];
	int found = ibv_poll_cq(slot->object, 1 + below(seed, 8), wc);
	calls++;
	/* An overflow is reported as an error. */
	for (int n = 0; n < found; n++) {
		need(wc[n].status <= IBV_WC_GENERAL_ERR, "a status that there is");
		completions++;
		successes += wc[n].status == IBV_WC_SUCCESS;
	}
	if (below(seed, 4) == 0) allowed(ibv_req_notify_cq(slot->object, below(seed, 2)), "ibv_req_notify_cq");
	if (below(seed, 64) == 0) allowed(ibv_resize_cq(slot->object, 256 + below(seed, 512)), "ibv_resize_cq");
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

static void query(uint64_t *seed, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	allowed(ibv_query_qp(qp, &attr, below(seed, 1 << 20), &init), "ibv_query_qp");
}

static void *worker(void *argument)
{
	uint64_t seed = (uintptr_t)argument;
	for (unsigned step = 0; step < steps; step++) {
		struct slot *qp = &qps[below(&seed, QPS)], *cq = &cqs[below(&seed, CQS)], *srq = &srqs[below(&seed, SRQS)];
		unsigned choice = below(&seed, 100);
		if (choice < 8) create_one(&seed);
		else if (choice < 11) destroy_one(&seed);
		else if (choice < 20) { if (use(qp)) { modify(&seed, qp->object); leave(qp); } }
		else if (choice < 60) { if (use(qp)) { post(&seed, qp->object); leave(qp); } }
		else if (choice < 90) { if (use(cq)) { poll_one(&seed, cq); leave(cq); } }
		else if (choice < 95) hear();
		else if (choice < 98) { if (use(qp)) { query(&seed, qp->object); leave(qp); } }
		else if (use(srq)) {
			struct ibv_srq_attr attr = { .srq_limit = below(&seed, 8) };
			allowed(ibv_modify_srq(srq->object, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq");
			leave(srq);
		}
	}
	return NULL;
}

int main(int count, char **words)
{
	need(count == 5, "stress DEVICE SEED STEPS THREADS");
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(!!list, "ibv_get_device_list");
	for (struct ibv_device **device = list; *device; device++)
		if (!strcmp(ibv_get_device_name(*device), words[1])) context = ibv_open_device(*device);
	ibv_free_device_list(list);
	need(!!context, "ibv_open_device");
	channel = ibv_create_comp_channel(context);
	need(!!channel, "ibv_create_comp_channel");
	need(!fcntl(channel->fd, F_SETFL, O_NONBLOCK) && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK), "fcntl");
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(memory != MAP_FAILED, "mmap");
	for (unsigned kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
		for (unsigned n = 0; n < kinds[kind].count; n++) need(!pthread_rwlock_init(&kinds[kind].slots[n].lock, NULL), "pthread_rwlock_init");
	uint64_t seed = strtoull(words[2], NULL, 0);
	unsigned threads = atoi(words[4]);
	steps = atoi(words[3]);
	pthread_t all[64];
	need(threads >= 1 && threads <= 64, "1 to 64 threads");
	/* What hangs is ended, by SIGALRM. */
	alarm(PATIENCE);
	for (unsigned n = 0; n < threads; n++)
		need(!pthread_create(&all[n], NULL, worker, (void *)(uintptr_t)(seed * 0x9e3779b97f4a7c15 + n + 1)), "pthread_create");
	for (unsigned n = 0; n < threads; n++) need(!pthread_join(all[n], NULL), "pthread_join");
	hear();
	for (unsigned kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
		for (unsigned n = 0; n < kinds[kind].count; n++)
			if (kinds[kind].slots[n].object) need(!kinds[kind].destroy(kinds[kind].slots[n].object), "all is destroyed in the end");
	need(!ibv_destroy_comp_channel(channel) && !ibv_close_device(context), "the device is closed");
	printf("%lu calls, %lu objects, %lu completions (%lu of success), %lu events\n", calls, created, completions, successes, events);
	return 0;
}
