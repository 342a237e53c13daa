/*
 * Threads that call verbs with any count, length, flag and mask. Every list and structure ends at a page without access, so what is read or
 * written beyond it ends the program. In the end a device must still send. It is also the fuzz target `arguments`.
 */
#include "verbs_stress.h"
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>

enum { PDS = 1, CQS = 2, SRQS = 1, MRS = 2, QPS = 4, MWS = 1, AHS = 1, PAGE = 4096, SIZE = 1 << 16, MOST = 2, INLINE = 64 };

static struct slot pds[PDS], cqs[CQS], srqs[SRQS], mrs[MRS], qps[QPS], mws[MWS], ahs[AHS];
static char *memory;
static pthread_key_t page_key;

/* A program that passes what it should not gets any error number, but gets one. */
static int may_return(int error) { return error > 0 && error < 134; }

/* A thread's page, which is followed by one without access. It is unmapped when the thread ends. */
static char *page(void)
{
	char *start = pthread_getspecific(page_key);
	if (start) return start;
	start = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(start != MAP_FAILED && !mprotect(start + PAGE, PAGE, PROT_NONE) && !pthread_setspecific(page_key, start), "mmap");
	return start;
}
static void unmap(void *page) { munmap(page, 2 * PAGE); }
/* The last `length` bytes of the thread's page but `after`, from the input or 0. */
static void *last(struct choices *choices, size_t length, size_t after, int any)
{
	char *at = page() + PAGE - after - length;
	for (size_t n = 0; n < length; n++) at[n] = any ? below(choices, 256) : 0;
	return at;
}

static int64_t edge(struct choices *choices)
{
	static const int64_t edges[] = { 0, 1, 2, 3, 4, 16, 17, 64, 255, 256, 1024, 0x7fff, 0x8000, 0xffff, 0x10000, 1 << 18, INT_MAX - 1, INT_MAX, INT_MIN, -1 };
	unsigned choice = below(choices, sizeof edges / sizeof *edges + 4);
	return choice < sizeof edges / sizeof *edges ? edges[choice] : (int64_t)below(choices, 1 << 16);
}
static uint64_t far(struct choices *choices)
{
	const uint64_t edges[] = { 0, 1, PAGE - 1, PAGE, SIZE - 1, SIZE, SIZE + 1, (uintptr_t)memory, (uintptr_t)memory + SIZE - 1, (uintptr_t)memory + SIZE,
		UINT32_MAX, 1ull << 32, 1ull << 40, 1ull << 47, INT64_MAX, UINT64_MAX - 1, UINT64_MAX };
	return edges[below(choices, sizeof edges / sizeof *edges)];
}
/* A count that a verb accepts, mostly. */
static unsigned few(struct choices *choices) { return below(choices, 4) ? 1 + below(choices, 4) : (unsigned)edge(choices); }
static unsigned bits(struct choices *choices) { return below(choices, 4) ? 1u << below(choices, 32) : next(choices) << 16 | next(choices); }

static int destroy_mw(void *object) { return ibv_dealloc_mw(object); }

/* Connects a queue pair with itself. Returns whether it is in RTS. */
static int connect_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 15, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 4, .max_rd_atomic = 4, .min_rnr_timer = 1, .timeout = 8, .retry_cnt = 1, .rnr_retry = 1, .ah_attr = { .is_global = 1, .port_num = 1 } };
	need(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) return 0;
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) return 0;
	attr.qp_state = IBV_QPS_RTS;
	return !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	need(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
	return attr.qp_state;
}

/* A queue pair for requests that are to be wrong in one place: with extended sends, and connected. */
static struct ibv_qp *good_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .cap = { 16, 16, MOST, MOST, INLINE }, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	if (!qp) return allowed(errno, "ibv_create_qp_ex"), NULL;
	/* Requests of another thread may overflow the completion queue meanwhile. */
	need(connect_qp(qp) || state_of(qp) == IBV_QPS_ERR, "RTS");
	return qp;
}

static struct ibv_qp *any_qp(struct choices *choices, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex *init = last(choices, sizeof *init, 0, 0);
	*init = (struct ibv_qp_init_attr_ex){ .send_cq = cq, .recv_cq = cq, .qp_type = below(choices, 4) ? IBV_QPT_RC : below(choices, 256), .pd = pd,
		.cap = { few(choices), few(choices), few(choices), few(choices), edge(choices) }, .sq_sig_all = edge(choices) };
	if (below(choices, 2)) {
		init->comp_mask = IBV_QP_INIT_ATTR_PD | (below(choices, 2) ? bits(choices) : 0);
		init->comp_mask &= ~(IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_IND_TABLE);
		init->create_flags = bits(choices), init->send_ops_flags = bits(choices), init->source_qpn = edge(choices);
		return ibv_create_qp_ex(context, init);
	}
	struct ibv_qp_init_attr *plain = last(choices, sizeof *plain, 0, 0);
	*plain = (struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .cap = { few(choices), few(choices), few(choices), few(choices), edge(choices) },
		.qp_type = below(choices, 4) ? IBV_QPT_RC : below(choices, 256) };
	return ibv_create_qp(pd, plain);
}

static void create_cq(struct choices *choices)
{
	struct slot *slot = &cqs[below(choices, CQS)];
	if (!take_empty(slot)) return;
	if (below(choices, 2)) {
		fill(slot, ibv_create_cq(context, below(choices, 2) ? 64 : edge(choices), NULL, NULL, below(choices, 4) ? 0 : edge(choices)));
		return;
	}
	struct ibv_cq_init_attr_ex *init = last(choices, sizeof *init, 0, 0);
	*init = (struct ibv_cq_init_attr_ex){ .cqe = few(choices), .comp_vector = below(choices, 4) ? 0 : edge(choices), .wc_flags = bits(choices),
		.comp_mask = below(choices, 2) ? bits(choices) & ~IBV_CQ_INIT_ATTR_MASK_PD : 0, .flags = bits(choices) };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, init);
	fill(slot, cq ? ibv_cq_ex_to_cq(cq) : NULL);
}

static void create_mr(struct choices *choices, struct ibv_pd *pd, struct slot *slot)
{
	unsigned rights = below(choices, 2) ? 15 : bits(choices);
	if (below(choices, 2)) {
		fill(slot, ibv_reg_mr(pd, memory, SIZE, 15));
		return;
	}
	/* Memory that is registered is read by requests only within what is mapped: a length that is too great must be refused. */
	void *at = below(choices, 2) ? memory : (void *)(uintptr_t)far(choices);
	fill(slot, below(choices, 4) ? ibv_reg_mr(pd, at, far(choices), rights) : ibv_reg_mr_iova2(pd, at, far(choices), far(choices), rights));
}

static void create_one(struct choices *choices)
{
	struct slot *slot, *pd = &pds[0], *cq = &cqs[below(choices, CQS)];
	unsigned kind = below(choices, 7);
	if (kind == 0) {
		if (take_empty(pd)) fill(pd, ibv_alloc_pd(context));
		return;
	}
	if (kind == 1) return create_cq(choices);
	if (!use(pd)) return;
	if (kind == 2 && take_empty(slot = &mrs[below(choices, MRS)])) create_mr(choices, pd->object, slot);
	if (kind == 3 && take_empty(slot = &srqs[0])) {
		struct ibv_srq_init_attr *init = last(choices, sizeof *init, 0, 0);
		init->attr = (struct ibv_srq_attr){ few(choices), few(choices), edge(choices) };
		fill(slot, ibv_create_srq(pd->object, init));
	}
	if (kind == 4 && take_empty(slot = &ahs[0])) fill(slot, ibv_create_ah(pd->object, last(choices, sizeof(struct ibv_ah_attr), 0, 1)));
	if (kind == 5 && take_empty(slot = &mws[0])) fill(slot, ibv_alloc_mw(pd->object, below(choices, 2) ? IBV_MW_TYPE_1 : (unsigned)edge(choices)));
	if (kind == 6 && take_empty(slot = &qps[below(choices, QPS)])) {
		struct ibv_qp *qp = NULL;
		if (use(cq)) {
			qp = below(choices, 2) ? good_qp(pd->object, cq->object) : any_qp(choices, pd->object, cq->object);
			leave(cq);
		}
		fill(slot, qp);
	}
	leave(pd);
}

/* At most as many buffers as a request may have, and a count that may claim more. With `inlined`, the data of which that many bytes may be read. */
static struct ibv_sge *buffers(struct choices *choices, struct ibv_mr *mr, int *count, unsigned most, const uint32_t *inlined)
{
	*count = below(choices, 2) ? 1 + (int)below(choices, 2) : (int)edge(choices);
	unsigned there = *count < 0 || (unsigned)*count > most ? most : (unsigned)*count;
	uint32_t readable = inlined ? *inlined : 0;
	need(there * sizeof(struct ibv_sge) + readable <= PAGE, "a page is enough");
	struct ibv_sge *list = last(choices, there * sizeof *list, readable, 0);
	for (unsigned n = 0; n < there; n++) {
		uint32_t length = below(choices, 2) ? 8 : edge(choices);
		if (inlined) list[n] = (struct ibv_sge){ (uintptr_t)page() + PAGE - (length > readable ? 1 : length), length, edge(choices) };
		else list[n] = (struct ibv_sge){ below(choices, 2) ? (uintptr_t)memory : far(choices), length, mr && below(choices, 8) ? mr->lkey : bits(choices) };
	}
	return list;
}

static void post_send(struct choices *choices, struct ibv_qp *qp, struct ibv_mr *mr, const struct ibv_qp_cap *cap)
{
	struct ibv_send_wr wr[2] = { 0 }, *bad = NULL;
	unsigned chained = 1 + below(choices, 2);
	/* A request for datagrams has an address handle, which a pointer from the input would not be. */
	if (qp->qp_type != IBV_QPT_RC && qp->qp_type != IBV_QPT_UC) return;
	int flags = below(choices, 2) ? IBV_SEND_SIGNALED : bits(choices), count;
	for (unsigned n = 0; n < chained; n++) {
		wr[n].next = n + 1 < chained ? &wr[n + 1] : NULL;
		wr[n].opcode = below(choices, 2) ? IBV_WR_RDMA_WRITE : below(choices, 256);
		/* These name a window, or a header, by a pointer. */
		if (wr[n].opcode == IBV_WR_BIND_MW || wr[n].opcode == IBV_WR_TSO) wr[n].opcode = IBV_WR_SEND;
		wr[n].send_flags = flags;
		/* All requests of a chain have the same list. */
		wr[n].sg_list = n ? wr[0].sg_list : buffers(choices, mr, &count, cap->max_send_sge, flags & IBV_SEND_INLINE ? &cap->max_inline_data : NULL);
		wr[n].num_sge = count;
		wr[n].wr.rdma.remote_addr = below(choices, 2) ? (uintptr_t)memory : far(choices), wr[n].wr.rdma.rkey = mr ? mr->rkey : bits(choices);
	}
	int result = ibv_post_send(qp, wr, &bad);
	allowed(result, "ibv_post_send");
	need(!result || (bad >= wr && bad < wr + chained), "the request that was refused is named");
}

static void post_recv(struct choices *choices, struct ibv_qp *qp, struct ibv_srq *srq, struct ibv_mr *mr, unsigned most)
{
	struct ibv_recv_wr wr = { 0 }, *bad = NULL;
	wr.sg_list = buffers(choices, mr, &wr.num_sge, most, NULL);
	int result = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
	allowed(result, "ibv_post_recv");
	need(!result || bad == &wr, "the request that was refused is named");
}

/* A request in steps, with any number of buffers or inline pieces. */
static void post_steps(struct choices *choices, struct ibv_qp *qp, struct ibv_mr *mr, const struct ibv_qp_cap *cap)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	if (!ex) return;
	ibv_wr_start(ex);
	if (below(choices, 8)) below(choices, 2) ? ibv_wr_send(ex) : ibv_wr_rdma_write(ex, bits(choices), far(choices));
	unsigned way = below(choices, 3);
	int count;
	if (way == 0) {
		struct ibv_sge *list = buffers(choices, mr, &count, cap->max_send_sge, NULL);
		ibv_wr_set_sge_list(ex, count < 0 ? far(choices) | 1 << 20 : (size_t)count, list);
	} else if (way == 1) {
		uint32_t length = edge(choices);
		ibv_wr_set_inline_data(ex, page() + PAGE - (length > cap->max_inline_data ? 1 : length), length);
	} else {
		size_t pieces = below(choices, 2) ? 1 : far(choices) | 1 << 20;
		struct ibv_data_buf *piece = last(choices, sizeof *piece, 0, 0);
		*piece = (struct ibv_data_buf){ memory, below(choices, INLINE + 2) };
		ibv_wr_set_inline_data_list(ex, pieces, piece);
	}
	if (below(choices, 4)) allowed(ibv_wr_complete(ex), "ibv_wr_complete");
	else ibv_wr_abort(ex);
}

static void modify(struct choices *choices, struct ibv_qp *qp)
{
	struct ibv_qp_attr *attr = last(choices, sizeof *attr, 0, 1);
	if (below(choices, 2)) attr->qp_state = below(choices, 8);
	attr->port_num = below(choices, 4) ? 1 : attr->port_num;
	allowed(ibv_modify_qp(qp, attr, bits(choices) | (below(choices, 2) ? IBV_QP_STATE : 0)), "ibv_modify_qp");
}

static void query(struct choices *choices)
{
	union ibv_gid *gid = last(choices, sizeof *gid, 0, 0);
	allowed(ibv_query_gid(context, edge(choices), edge(choices), gid), "ibv_query_gid");
	struct ibv_port_attr *port = last(choices, sizeof *port, 0, 0);
	allowed(ibv_query_port(context, edge(choices), port), "ibv_query_port");
	uint16_t *key = last(choices, sizeof *key, 0, 0);
	allowed(ibv_query_pkey(context, edge(choices), edge(choices), key), "ibv_query_pkey");
	struct ibv_gid_entry *entry = last(choices, sizeof *entry, 0, 0);
	allowed(ibv_query_gid_ex(context, edge(choices), edge(choices), entry, below(choices, 2) ? 0 : bits(choices)), "ibv_query_gid_ex");
	struct ibv_device_attr_ex *device = last(choices, sizeof *device, 0, 0);
	struct ibv_query_device_ex_input *input = last(choices, sizeof *input, sizeof *device, 1);
	allowed(ibv_query_device_ex(context, below(choices, 2) ? input : NULL, device), "ibv_query_device_ex");
	unsigned there = below(choices, 3);
	entry = last(choices, there * sizeof *entry, 0, 0);
	need(ibv_query_gid_table(context, entry, there, 0) <= (ssize_t)there, "ibv_query_gid_table");
}

static void change_mr(struct choices *choices, struct ibv_mr *mr)
{
	if (below(choices, 2)) {
		/* As many as there are: the list has no limit. */
		int count = below(choices, 3);
		struct ibv_sge *list = last(choices, count * sizeof *list, 0, 0);
		for (int n = 0; n < count; n++) list[n] = (struct ibv_sge){ far(choices), edge(choices), below(choices, 2) ? mr->lkey : bits(choices) };
		allowed(ibv_advise_mr(mr->pd, edge(choices), edge(choices), list, count), "ibv_advise_mr");
		return;
	}
	int result = ibv_rereg_mr(mr, bits(choices) & ~IBV_REREG_MR_CHANGE_PD, NULL, memory, below(choices, 2) ? SIZE : far(choices), bits(choices));
	need(result >= IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW && result <= 0, "ibv_rereg_mr");
	calls++;
}

static void change_cq(struct choices *choices, struct ibv_cq *cq)
{
	int count = below(choices, 2) ? (int)below(choices, 9) : -(int)below(choices, 3);
	struct ibv_wc *list = last(choices, (count < 0 ? 0 : count) * sizeof *list, 0, 0);
	need(ibv_poll_cq(cq, below(choices, 8) ? count : INT_MIN, list) <= 8, "ibv_poll_cq");
	if (below(choices, 4) == 0) allowed(ibv_resize_cq(cq, edge(choices)), "ibv_resize_cq");
	if (below(choices, 8) == 0) {
		struct ibv_modify_cq_attr *attr = last(choices, sizeof *attr, 0, 1);
		allowed(ibv_modify_cq(cq, attr), "ibv_modify_cq");
	}
}

static void change_srq(struct choices *choices, struct ibv_srq *srq)
{
	struct ibv_srq_attr *attr = last(choices, sizeof *attr, 0, 0);
	*attr = (struct ibv_srq_attr){ edge(choices), edge(choices), edge(choices) };
	allowed(ibv_modify_srq(srq, attr, bits(choices)), "ibv_modify_srq");
	allowed(ibv_query_srq(srq, attr), "ibv_query_srq");
}

static void bind(struct choices *choices, struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct slot *window = &mws[0];
	if (!mr || !use(window)) return;
	struct ibv_mw_bind wanted = { .wr_id = 1, .send_flags = bits(choices),
		.bind_info = { .mr = mr, .addr = far(choices), .length = far(choices), .mw_access_flags = bits(choices) } };
	allowed(ibv_bind_mw(qp, window->object, &wanted), "ibv_bind_mw");
	leave(window);
}

static void use_qp(struct choices *choices, struct slot *qp)
{
	struct slot *region = &mrs[below(choices, MRS)], *shared = &srqs[0];
	if (!use(qp)) return;
	struct ibv_mr *mr = use(region);
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr first;
	need(!ibv_query_qp(qp->object, &now, IBV_QP_CAP, &first), "ibv_query_qp");
	unsigned choice = below(choices, 10);
	if (choice < 4) post_send(choices, qp->object, mr, &now.cap);
	else if (choice < 5) post_recv(choices, qp->object, NULL, mr, now.cap.max_recv_sge);
	else if (choice < 7) post_steps(choices, qp->object, mr, &now.cap);
	else if (choice < 8) modify(choices, qp->object);
	else if (choice < 9) bind(choices, qp->object, mr);
	else {
		struct ibv_qp_attr *attr = last(choices, sizeof *attr, 0, 0);
		struct ibv_qp_init_attr *init = last(choices, sizeof *init, sizeof *attr, 0);
		allowed(ibv_query_qp(qp->object, attr, bits(choices), init), "ibv_query_qp");
		allowed(ibv_attach_mcast(qp->object, last(choices, sizeof(union ibv_gid), 0, 1), edge(choices)), "ibv_attach_mcast");
		allowed(ibv_detach_mcast(qp->object, last(choices, sizeof(union ibv_gid), 0, 1), edge(choices)), "ibv_detach_mcast");
	}
	if (below(choices, 8) == 0 && use(shared)) {
		struct ibv_srq_attr limits;
		need(!ibv_query_srq(shared->object, &limits), "ibv_query_srq");
		post_recv(choices, NULL, shared->object, mr, limits.max_sge);
		leave(shared);
	}
	if (mr) leave(region);
	leave(qp);
}

static void take_event(void)
{
	struct ibv_async_event event;
	calls++;
	if (ibv_get_async_event(context, &event)) return;
	need(event.event_type != IBV_EVENT_DEVICE_FATAL, "the device lives");
	ibv_ack_async_event(&event);
	events++;
}

static void step(struct choices *choices)
{
	struct slot *mr = &mrs[below(choices, MRS)], *cq = &cqs[below(choices, CQS)], *srq = &srqs[0];
	unsigned choice = below(choices, 100);
	if (choice < 20) create_one(choices);
	else if (choice < 25) destroy_one(choices);
	else if (choice < 70) use_qp(choices, &qps[below(choices, QPS)]);
	else if (choice < 80) { if (use(cq)) { change_cq(choices, cq->object); leave(cq); } }
	else if (choice < 88) { if (use(mr)) { change_mr(choices, mr->object); leave(mr); } }
	else if (choice < 94) { if (use(srq)) { change_srq(choices, srq->object); leave(srq); } }
	else if (choice < 97) take_event();
	else query(choices);
}

/* Opens the device, and makes what all threads share. */
static void begin(const char *name)
{
	open_device(name);
	need(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK) && !pthread_key_create(&page_key, unmap), "fcntl");
	/* What lies behind is not to be registered, and written by a request. */
	memory = mmap(NULL, SIZE + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(memory != MAP_FAILED && !mprotect(memory + SIZE, PAGE, PROT_NONE), "mmap");
}

/* A WRITE between two places of a new queue pair's memory succeeds: whatever was refused has spoilt nothing. */
static void check_end(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, memory, SIZE, 15) : NULL;
	struct ibv_qp *qp = mr && cq ? good_qp(pd, cq) : NULL;
	need(qp && state_of(qp) == IBV_QPS_RTS, "new objects are created");
	struct ibv_sge from = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 64, wr.wr.rdma.rkey = mr->rkey;
	memcpy(memory, "argument", 8);
	memset(memory + 64, 0, 8);
	struct ibv_wc wc;
	int found;
	need(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	while (!(found = ibv_poll_cq(cq, 1, &wc))) {}
	need(found == 1 && wc.status == IBV_WC_SUCCESS && !memcmp(memory + 64, "argument", 8), "a WRITE succeeds");
	need(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "all is destroyed in the end");
	need_silence(context->async_fd, context->async_fd);
}

static void end(void)
{
	need(!ibv_close_device(context), "the device is closed");
	printf("%lu calls, %lu objects, %lu events\n", calls, created, events);
}

static const struct program program = {
	.kinds = { { mws, MWS, destroy_mw }, { qps, QPS, destroy_qp }, { ahs, AHS, destroy_ah }, { mrs, MRS, destroy_mr }, { srqs, SRQS, destroy_srq },
		{ cqs, CQS, destroy_cq }, { pds, PDS, destroy_pd } },
	.begin = begin, .step = step, .may_return = may_return, .check_end = check_end, .end = end,
};
