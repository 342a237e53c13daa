/*
 * The extended verbs, each called and its result looked at, on a port that talks to itself; on both libraries.
 *
 *   extended DEVICE GID_INDEX [plain]
 *
 * What the device says of itself by every call that says it; ibv_wr_* for each operation that Linux's Soft-RoCE has, their completions
 * read by ibv_start_poll; ibv_reg_mr_iova2, a memory window by ibv_wr_bind_mw, a shared queue by ibv_create_srq_ex, an answer by
 * ibv_create_ah_from_wc, a completion channel, and an asynchronous event. With `plain`, no inline data and lists by ibv_wr_*, and no
 * ibv_next_poll: rdma-core's driver for Soft-RoCE has them wrong.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 4096, QKEY = 0x1234, IOVA = 1 << 20 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq_ex *cq;
static struct ibv_mr *mr;
static char memory[2 * SIZE] __attribute__((aligned(SIZE)));
static union ibv_gid gid;
static int gid_index, whole;

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "extended: %s (%s)\n", what, strerror(errno));
	exit(1);
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	for (struct ibv_device **device = list; list && *device; device++)
		if (!strcmp(ibv_get_device_name(*device), name)) context = ibv_open_device(*device);
	ibv_free_device_list(list);
	need(!!context, "there is no such device");
}

/* Two calls that say the same say it alike. */
static void says(void)
{
	struct ibv_device_attr plain;
	struct ibv_device_attr_ex extended = { .comp_mask = 0 };
	struct ibv_port_attr port;
	struct ibv_gid_entry one, all[256];
	need(!ibv_query_device(context, &plain), "ibv_query_device");
	need(!ibv_query_device_ex(context, NULL, &extended), "ibv_query_device_ex");
	need(plain.max_qp == extended.orig_attr.max_qp && plain.node_guid == extended.orig_attr.node_guid && plain.max_qp > 0, "both say the same");
	need(!ibv_query_port(context, 1, &port) && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.state == IBV_PORT_ACTIVE, "ibv_query_port");
	need(!ibv_query_gid(context, 1, gid_index, &gid), "ibv_query_gid");
	need(!ibv_query_gid_ex(context, 1, gid_index, &one, 0), "ibv_query_gid_ex");
	need(!memcmp(&one.gid, &gid, sizeof gid) && one.gid_index == (unsigned)gid_index && one.port_num == 1 && one.gid_type == IBV_GID_TYPE_ROCE_V2, "the GID");
	ssize_t count = ibv_query_gid_table(context, all, 256, 0);
	int found = 0;
	for (ssize_t n = 0; n < count; n++) found += all[n].gid_index == one.gid_index && !memcmp(&all[n], &one, sizeof one);
	need(found == 1, "ibv_query_gid_table has it once");
	errno = 0;
	need(ibv_query_gid_table(context, all, 0, 0) == -EINVAL, "a table without room");
}

static struct ibv_qp_ex *make(enum ibv_qp_type type, struct ibv_srq *srq, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .srq = srq, .qp_type = type, .sq_sig_all = 0,
		.cap = { .max_send_wr = 16, .max_recv_wr = srq ? 0 : 16, .max_send_sge = 2, .max_recv_sge = srq ? 0 : 2, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd, .send_ops_flags = operations };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	need(!!qp, "ibv_create_qp_ex");
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(qp);
	need(!!extended, "ibv_qp_to_qp_ex");
	return extended;
}

static void to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	need(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attributes = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } } };
	need(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attributes = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	need(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* The next completion, which is left open: its values are read, then it is given back. */
static void completed(uint64_t number, enum ibv_wc_opcode opcode, const char *what)
{
	struct ibv_poll_cq_attr none = { 0 };
	time_t end = time(NULL) + 20;
	int found;
	while ((found = ibv_start_poll(cq, &none)) == ENOENT) need(time(NULL) < end, "no completion in 20 s");
	need(!found, "ibv_start_poll");
	if (cq->status != IBV_WC_SUCCESS || cq->wr_id != number || ibv_wc_read_opcode(cq) != opcode) {
		fprintf(stderr, "extended: %s: %s, number %lu, opcode %d\n", what, ibv_wc_status_str(cq->status), cq->wr_id, ibv_wc_read_opcode(cq));
		exit(1);
	}
}

static void done(void) { ibv_end_poll(cq); }

static void begins(struct ibv_qp_ex *qp, uint64_t number)
{
	ibv_wr_start(qp);
	qp->wr_id = number;
	qp->wr_flags = IBV_SEND_SIGNALED;
}

static void posted(struct ibv_qp_ex *qp, uint64_t number, enum ibv_wc_opcode opcode, const char *what)
{
	need(!ibv_wr_complete(qp), what);
	completed(number, opcode, what);
	done();
}

static void receive(struct ibv_qp *qp, struct ibv_srq *srq, uint64_t number)
{
	struct ibv_sge sge = { (uintptr_t)memory + SIZE, SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1 }, *bad;
	need(!(srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)), "a receive");
}

/* One completion each at both ends, in any order. */
static void both(uint64_t sent, uint64_t received, uint32_t immediate)
{
	struct ibv_poll_cq_attr none = { 0 };
	time_t end = time(NULL) + 20;
	for (int left = 2; left;) {
		int found = ibv_start_poll(cq, &none);
		if (found == ENOENT) { need(time(NULL) < end, "no completion in 20 s"); continue; }
		need(!found, "ibv_start_poll");
		do {
			if (cq->status != IBV_WC_SUCCESS || (cq->wr_id != sent && cq->wr_id != received)) {
				fprintf(stderr, "extended: %s, number %lu, not %lu or %lu\n", ibv_wc_status_str(cq->status), cq->wr_id, sent, received);
				exit(1);
			}
			if (cq->wr_id == received && immediate)
				need(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM && ibv_wc_read_imm_data(cq) == htobe32(immediate), "the immediate");
			left--;
		} while (whole && !ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
}

static void reliable(struct ibv_srq *srq)
{
	struct ibv_qp_ex *qp = make(IBV_QPT_RC, srq, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND
		| IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
	uintptr_t here = (uintptr_t)memory, there = here + SIZE;
	struct ibv_data_buf words[] = { { "exten", 5 }, { "ded", 4 } };
	struct ibv_sge parts[] = { { here, 3, mr->lkey }, { here + 3, 6, mr->lkey } };
	to_itself(&qp->qp_base);

	strcpy(memory, "extended");
	begins(qp, 1);
	ibv_wr_rdma_write(qp, mr->rkey, there);
	if (whole) ibv_wr_set_inline_data_list(qp, 2, words);
	else ibv_wr_set_sge(qp, mr->lkey, here, 9);
	posted(qp, 1, IBV_WC_RDMA_WRITE, "a WRITE of inline data");
	memset(memory, 0, SIZE);
	need(!strcmp(memory + SIZE, "extended"), "what was written");

	begins(qp, 2);
	ibv_wr_rdma_read(qp, mr->rkey, there);
	if (whole) ibv_wr_set_sge_list(qp, 2, parts);
	else ibv_wr_set_sge(qp, mr->lkey, here, 9);
	posted(qp, 2, IBV_WC_RDMA_READ, "a READ into two places");
	need(!strcmp(memory, "extended"), "what was read");

	uint64_t *counter = (uint64_t *)(memory + SIZE), *before = (uint64_t *)memory;
	*counter = 40;
	begins(qp, 3);
	ibv_wr_atomic_fetch_add(qp, mr->rkey, there, 2);
	ibv_wr_set_sge(qp, mr->lkey, here, 8);
	posted(qp, 3, IBV_WC_FETCH_ADD, "FETCH_ADD");
	need(*before == 40 && *counter == 42, "what was added");
	begins(qp, 4);
	ibv_wr_atomic_cmp_swp(qp, mr->rkey, there, 42, 7);
	ibv_wr_set_sge(qp, mr->lkey, here, 8);
	posted(qp, 4, IBV_WC_COMP_SWAP, "CMP_SWAP");
	need(*before == 42 && *counter == 7, "what was swapped");

	strcpy(memory, "by message");
	receive(&qp->qp_base, srq, 6);
	begins(qp, 5);
	ibv_wr_send_imm(qp, htobe32(0xfe110ce));
	ibv_wr_set_sge(qp, mr->lkey, here, 11);
	need(!ibv_wr_complete(qp), "a SEND");
	both(5, 6, 0xfe110ce);
	need(!strcmp(memory + SIZE, "by message"), "what was sent");
	receive(&qp->qp_base, srq, 8);
	begins(qp, 7);
	ibv_wr_rdma_write_imm(qp, mr->rkey, there, htobe32(77));
	if (whole) ibv_wr_set_inline_data(qp, "imm", 4);
	else ibv_wr_set_sge(qp, mr->lkey, here, 4);
	need(!ibv_wr_complete(qp), "a WRITE with immediate");
	both(7, 8, 77);

	/* What was begun and given up leaves nothing. */
	begins(qp, 9);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, mr->lkey, here, 1);
	ibv_wr_abort(qp);
	begins(qp, 10);
	ibv_wr_rdma_write(qp, mr->rkey, there);
	ibv_wr_set_sge(qp, mr->lkey, here, 1);
	posted(qp, 10, IBV_WC_RDMA_WRITE, "after ibv_wr_abort");
	need(!ibv_destroy_qp(&qp->qp_base), "ibv_destroy_qp");
}

/* Memory by other addresses than its own, and a window into it. */
static void memory_of_its_own(void)
{
	static char behind[SIZE] __attribute__((aligned(SIZE)));
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
	struct ibv_mr *moved = ibv_reg_mr_iova2(pd, behind, SIZE, IOVA, access);
	need(!!moved, "ibv_reg_mr_iova2");
	struct ibv_qp_ex *qp = make(IBV_QPT_RC, NULL, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV);
	to_itself(&qp->qp_base);
	strcpy(memory, "at an address of its own");
	begins(qp, 1);
	ibv_wr_rdma_write(qp, moved->rkey, IOVA + 100);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 25);
	posted(qp, 1, IBV_WC_RDMA_WRITE, "a WRITE to an address of its own");
	need(!strcmp(behind + 100, memory), "what was written there");

	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	need(!!window, "ibv_alloc_mw");
	struct ibv_mw_bind_info info = { .mr = moved, .addr = IOVA + 200, .length = 100, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	uint32_t rkey = ibv_inc_rkey(window->rkey);
	begins(qp, 2);
	ibv_wr_bind_mw(qp, window, rkey, &info);
	posted(qp, 2, IBV_WC_BIND_MW, "ibv_wr_bind_mw");
	begins(qp, 3);
	ibv_wr_rdma_write(qp, rkey, IOVA + 200);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 25);
	posted(qp, 3, IBV_WC_RDMA_WRITE, "a WRITE through a window");
	need(!strcmp(behind + 200, memory), "what was written through it");
	begins(qp, 4);
	ibv_wr_local_inv(qp, rkey);
	posted(qp, 4, IBV_WC_LOCAL_INV, "ibv_wr_local_inv");
	need(!ibv_dealloc_mw(window) && !ibv_destroy_qp(&qp->qp_base) && !ibv_dereg_mr(moved), "all goes");
}

/* A datagram, and the answer to its sender. */
static void datagrams(void)
{
	struct ibv_qp_ex *qp = make(IBV_QPT_UD, NULL, IBV_QP_EX_WITH_SEND);
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	need(!ibv_modify_qp(&qp->qp_base, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attributes.qp_state = IBV_QPS_RTR;
	need(!ibv_modify_qp(&qp->qp_base, &attributes, IBV_QP_STATE), "RTR");
	attributes.qp_state = IBV_QPS_RTS;
	need(!ibv_modify_qp(&qp->qp_base, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &path);
	need(!!ah, "ibv_create_ah");
	for (int answer = 0; answer < 2; answer++) {
		receive(&qp->qp_base, NULL, 2);
		strcpy(memory, answer ? "answer" : "question");
		begins(qp, 1);
		ibv_wr_send(qp);
		ibv_wr_set_ud_addr(qp, ah, qp->qp_base.qp_num, QKEY);
		ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 9);
		need(!ibv_wr_complete(qp), "a datagram");
		struct ibv_wc wc = { 0 };
		struct ibv_poll_cq_attr none = { 0 };
		time_t end = time(NULL) + 20;
		for (int left = 2; left;) {
			if (ibv_start_poll(cq, &none)) { need(time(NULL) < end, "no datagram in 20 s"); continue; }
			do {
				need(cq->status == IBV_WC_SUCCESS, "a datagram's completion");
				if (cq->wr_id == 2) {
					wc = (struct ibv_wc) { .wc_flags = ibv_wc_read_wc_flags(cq), .src_qp = ibv_wc_read_src_qp(cq), .byte_len = ibv_wc_read_byte_len(cq),
						.slid = ibv_wc_read_slid(cq), .sl = ibv_wc_read_sl(cq), .dlid_path_bits = ibv_wc_read_dlid_path_bits(cq) };
				}
				left--;
			} while (whole && !ibv_next_poll(cq));
			ibv_end_poll(cq);
		}
		need(wc.wc_flags & IBV_WC_GRH && wc.src_qp == qp->qp_base.qp_num && wc.byte_len == 40 + 9, "who sent it");
		need(!strcmp(memory + SIZE + 40, memory), "what it says");
		need(!ibv_destroy_ah(ah), "ibv_destroy_ah");
		ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)(memory + SIZE), 1);
		need(!!ah, "ibv_create_ah_from_wc");
	}
	need(!ibv_destroy_ah(ah) && !ibv_destroy_qp(&qp->qp_base), "all goes");
}

/* A channel rings for a completion queue that was armed, and an event comes if a shared queue runs low. */
static void events(void)
{
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 8, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC, .pd = pd };
	struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
	need(!!srq, "ibv_create_srq_ex");
	receive(NULL, srq, 100);
	receive(NULL, srq, 100);
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	need(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), "ibv_modify_srq");
	struct ibv_qp_ex *qp = make(IBV_QPT_RC, srq, IBV_QP_EX_WITH_SEND);
	to_itself(&qp->qp_base);
	need(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0), "ibv_req_notify_cq");
	begins(qp, 1);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 4);
	need(!ibv_wr_complete(qp), "a SEND to a shared queue");
	struct ibv_cq *rang;
	void *user;
	need(!ibv_get_cq_event(channel, &rang, &user) && rang == ibv_cq_ex_to_cq(cq) && user == &cq, "ibv_get_cq_event");
	ibv_ack_cq_events(rang, 1);
	both(1, 100, 0);
	struct pollfd watched = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	need(poll(&watched, 1, 20000) == 1 && !ibv_get_async_event(context, &event), "ibv_get_async_event");
	need(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq, "the event");
	ibv_ack_async_event(&event);
	need(!ibv_destroy_qp(&qp->qp_base) && !ibv_destroy_srq(srq), "all goes");
}

int main(int count, char **arguments)
{
	need(count >= 3, "extended DEVICE GID_INDEX [plain]");
	whole = count == 3;
	gid_index = atoi(arguments[2]);
	open_device(arguments[1]);
	says();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	struct ibv_cq_init_attr_ex wanted = { .cqe = 64, .cq_context = &cq, .channel = channel, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM
		| IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS };
	cq = ibv_create_cq_ex(context, &wanted);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	need(pd && channel && cq && mr, "the objects");
	reliable(NULL);
	memory_of_its_own();
	datagrams();
	events();
	need(!ibv_dereg_mr(mr) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd)
		&& !ibv_close_device(context), "all goes");
	puts("extended: each verb did as it says");
	return 0;
}
