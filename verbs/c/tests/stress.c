/*
 * Threads that call verbs in any order: they create, destroy, modify, post, poll, wait and query. It is also the fuzz target `verbs`.
 */
#include "verbs_stress.h"
#include <fcntl.h>
#include <sys/mman.h>

enum { PDS = 2, /* the second seldom used */ CQS = 4, SRQS = 2, MRS = 4, AHS = 2, QPS = 8, SIZE = 1 << 16 };

static struct ibv_comp_channel *channel;
static struct slot pds[PDS], cqs[CQS], srqs[SRQS], mrs[MRS], ahs[AHS], qps[QPS];
static char *memory;
static atomic_ulong completions, successes;

static int may_return(int error)
{
	switch (error) {
	case EINVAL: case EBUSY: case ENOMEM: case EOPNOTSUPP: case EAGAIN: case EPERM: case ENOSPC: return 1;
	}
	return 0;
}

/* Mostly all of them. */
static unsigned rights(struct choices *choices) { return below(choices, 4) ? 15 : below(choices, 16); }

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

static void step(struct choices *choices)
{
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

/* Opens the device, and makes what all threads share. */
static void begin(const char *name)
{
	open_device(name);
	channel = ibv_create_comp_channel(context);
	need(!!channel, "ibv_create_comp_channel");
	need(!fcntl(channel->fd, F_SETFL, O_NONBLOCK) && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK), "fcntl");
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(memory != MAP_FAILED, "mmap");
}

static void check_end(void) { need_silence(channel->fd, context->async_fd); }

static void end(void)
{
	need(!ibv_destroy_comp_channel(channel) && !ibv_close_device(context), "the device is closed");
	printf("%lu calls, %lu objects, %lu events, %lu completions (%lu of success)\n", calls, created, events, completions, successes);
}

static const struct program program = {
	.kinds = { { qps, QPS, destroy_qp }, { ahs, AHS, destroy_ah }, { mrs, MRS, destroy_mr }, { srqs, SRQS, destroy_srq },
		{ cqs, CQS, destroy_cq }, { pds, PDS, destroy_pd } },
	.begin = begin, .step = step, .may_return = may_return, .check_end = check_end, .end = end,
};
