/*
 * Bad input to libibverbs and librdmacm: every call that must be refused, with the errno that it must return.
 *
 *   bad-input DEVICE GID_INDEX [rdma-core]
 *
 * What is said here of both was seen on rdma-core with Soft-RoCE, and is run there too (ci/programs-rxe). With `rdma-core` those calls
 * are left out if that library crashes, or if its answer is another: these are under `if (ours)`, with the reason.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int ours = 1, failed, tried;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char memory[8192];
static union ibv_gid gid;
static int gid_index;
/* Of GID 255: it lies beyond our table's end, and is an empty place of Soft-RoCE's. */
static int no_gid = EINVAL;

static void expect(const char *what, int got, int wanted)
{
	tried++;
	if (got == wanted) return;
	failed++;
	printf("%s: %s, not %s\n", what, got ? strerrorname_np(got) ?: "?" : "done", wanted ? strerrorname_np(wanted) : "done");
}

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "bad-input: %s (%s)\n", what, strerror(errno));
	exit(2);
}

/* The error of a call that returns an object, or -1 if it must not have returned one; of one that returns -1. */
static int of_object(const void *object) { return object ? 0 : errno; }
static int of_count(int result) { return result < 0 ? errno : 0; }

static struct ibv_qp_init_attr init(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr) { .send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32 } };
}

static struct ibv_qp *make_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr wanted = init(type);
	struct ibv_qp *made = ibv_create_qp(pd, &wanted);
	need(!!made, "ibv_create_qp");
	return made;
}

enum { INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC };

static struct ibv_qp_attr to(enum ibv_qp_state state)
{
	return (struct ibv_qp_attr) { .qp_state = state, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } } };
}

static int modify(struct ibv_qp_attr attributes, int mask) { return ibv_modify_qp(qp, &attributes, mask); }

static int reg(void *address, size_t length, int access)
{
	/* A function, not the macro that looks at constants. */
	struct ibv_mr *region = (ibv_reg_mr)(pd, address, length, access);
	int why = of_object(region);
	if (region) ibv_dereg_mr(region);
	return why;
}

static void memory_regions(void)
{
	char *readonly = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *nothing = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(nothing, 4096);
	expect("a peer may write, but not the owner", reg(memory, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	expect("atomics without local writes", reg(memory, 64, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	expect("no such right", reg(memory, 64, 1 << 30), EINVAL);
	/* Devices refuse it, Soft-RoCE doesn't. */
	if (ours) expect("an empty region", reg(memory, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	expect("a region round the end of memory", reg(memory, ~(size_t)0 - 1, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	expect("memory that is not there", reg(nothing, 64, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	expect("memory that can't be written", reg(readonly, 64, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	munmap(readonly, 4096);
}

static int make_cq(int depth, int vector)
{
	struct ibv_cq *made = ibv_create_cq(context, depth, NULL, NULL, vector);
	int why = of_object(made);
	if (made) ibv_destroy_cq(made);
	return why;
}

static void completion_queues(void)
{
	struct ibv_device_attr limits;
	need(!ibv_query_device(context, &limits), "ibv_query_device");
	expect("a completion queue of none", make_cq(0, 0), EINVAL);
	expect("of less than none", make_cq(-1, 0), EINVAL);
	expect("of too many", make_cq(limits.max_cqe + 1, 0), EINVAL);
	expect("a vector beyond the last", make_cq(16, context->num_comp_vectors), EINVAL);
	expect("a negative vector", make_cq(16, -1), EINVAL);
	expect("resized to none", ibv_resize_cq(cq, 0), EINVAL);
	expect("resized to too many", ibv_resize_cq(cq, limits.max_cqe + 1), EINVAL);
	struct ibv_cq_init_attr_ex extended = { .cqe = 16, .wc_flags = 1ull << 40 };
	expect("an extended one with unknown fields", of_object(ibv_create_cq_ex(context, &extended)), EOPNOTSUPP);
	extended = (struct ibv_cq_init_attr_ex) { .cqe = 16, .comp_mask = 1 << 30 };
	expect("an extended one with unknown attributes", of_object(ibv_create_cq_ex(context, &extended)), EOPNOTSUPP);
}

static int make(struct ibv_qp_init_attr wanted)
{
	struct ibv_qp *made = ibv_create_qp(pd, &wanted);
	int why = of_object(made);
	if (made) ibv_destroy_qp(made);
	return why;
}

static void queue_pairs(void)
{
	struct ibv_device_attr limits;
	need(!ibv_query_device(context, &limits), "ibv_query_device");
	struct ibv_qp_init_attr wanted = init(77);
	expect("an unknown type", make(wanted), EINVAL);
	wanted = init(IBV_QPT_RC);
	wanted.cap.max_send_sge = limits.max_sge + 1;
	expect("too many buffers to send from", make(wanted), EINVAL);
	wanted = init(IBV_QPT_RC);
	wanted.cap.max_recv_sge = limits.max_sge + 1;
	expect("too many buffers to receive into", make(wanted), EINVAL);
	wanted = init(IBV_QPT_RC);
	wanted.cap.max_send_wr = limits.max_qp_wr + 1;
	expect("a send queue that is too long", make(wanted), EINVAL);
	wanted = init(IBV_QPT_RC);
	wanted.cap.max_recv_wr = limits.max_qp_wr + 1;
	expect("a receive queue that is too long", make(wanted), EINVAL);
	wanted = init(IBV_QPT_RC);
	wanted.cap.max_inline_data = 1 << 20;
	expect("too much inline", make(wanted), EINVAL);
	if (ours) {
		/* rdma-core crashes. */
		wanted = init(IBV_QPT_RC);
		wanted.send_cq = NULL;
		expect("no completion queue to send by", make(wanted), EINVAL);
		wanted = init(IBV_QPT_RC);
		wanted.recv_cq = NULL;
		expect("no completion queue to receive by", make(wanted), EINVAL);
	}
	struct ibv_qp_init_attr_ex extended = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .comp_mask = 1 << 30,
		.cap = init(IBV_QPT_RC).cap };
	expect("an extended one with unknown attributes", of_object(ibv_create_qp_ex(context, &extended)), EOPNOTSUPP);
}

static void states(void)
{
	struct ibv_qp_attr attributes = to(IBV_QPS_INIT);
	expect("RESET to RTR", modify(to(IBV_QPS_RTR), RTR), EINVAL);
	expect("RESET to RTS", modify(to(IBV_QPS_RTS), RTS), EINVAL);
	expect("RESET to SQD", modify(to(IBV_QPS_SQD), IBV_QP_STATE), EINVAL);
	expect("an unknown state", modify(to(77), IBV_QP_STATE), EINVAL);
	expect("INIT without rights", modify(attributes, INIT & ~IBV_QP_ACCESS_FLAGS), EINVAL);
	expect("INIT without a port", modify(attributes, INIT & ~IBV_QP_PORT), EINVAL);
	expect("INIT without a partition", modify(attributes, INIT & ~IBV_QP_PKEY_INDEX), EINVAL);
	expect("INIT with a timeout", modify(attributes, INIT | IBV_QP_TIMEOUT), EINVAL);
	expect("INIT with a Q_Key, of RC", modify(attributes, INIT | IBV_QP_QKEY), EINVAL);
	expect("unknown attributes", modify(attributes, INIT | 1 << 30), EOPNOTSUPP);
	attributes.port_num = 2;
	expect("a port that isn't there", modify(attributes, INIT), EINVAL);
	if (ours) {
		/* Soft-RoCE takes it. */
		attributes = to(IBV_QPS_INIT);
		attributes.pkey_index = 9999;
		expect("a partition that isn't there", modify(attributes, INIT), EINVAL);
	}
	attributes = to(IBV_QPS_INIT);
	attributes.cur_qp_state = IBV_QPS_RTS;
	expect("it is not in the state that is said", modify(attributes, INIT | IBV_QP_CUR_STATE), EINVAL);
	expect("INIT", modify(to(IBV_QPS_INIT), INIT), 0);

	expect("INIT to RTS", modify(to(IBV_QPS_RTS), RTS), EINVAL);
	attributes = to(IBV_QPS_RTR);
	for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
		if (bit & RTR & ~IBV_QP_STATE) expect("RTR with one attribute less", modify(attributes, RTR & ~bit), EINVAL);
	expect("RTR with a retry count", modify(attributes, RTR | IBV_QP_RETRY_CNT), EINVAL);
	attributes.ah_attr.is_global = 0;
	expect("a path without a GID", modify(attributes, RTR), EINVAL);
	attributes = to(IBV_QPS_RTR);
	attributes.ah_attr.grh.sgid_index = 255;
	expect("a GID that isn't there", modify(attributes, RTR), no_gid);
	attributes = to(IBV_QPS_RTR);
	attributes.path_mtu = 9;
	expect("an MTU that isn't one", modify(attributes, RTR), EINVAL);
	if (ours) {
		/* Soft-RoCE takes it. */
		attributes = to(IBV_QPS_RTR);
		attributes.max_dest_rd_atomic = 255;
		expect("more READs than a device answers", modify(attributes, RTR), EINVAL);
	}
	expect("RTR", modify(to(IBV_QPS_RTR), RTR), 0);

	attributes = to(IBV_QPS_RTS);
	for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
		if (bit & RTS & ~IBV_QP_STATE) expect("RTS with one attribute less", modify(attributes, RTS & ~bit), EINVAL);
	expect("RTS with a path", modify(attributes, RTS | IBV_QP_AV), EINVAL);
	attributes.max_rd_atomic = 255;
	expect("more READs than a device has outstanding", modify(attributes, RTS), EINVAL);
	expect("RTS", modify(to(IBV_QPS_RTS), RTS), 0);
	expect("RTS to INIT", modify(to(IBV_QPS_INIT), INIT), EINVAL);
	expect("RTS to RTR", modify(to(IBV_QPS_RTR), RTR), EINVAL);
}

static struct ibv_sge sge[8];

static struct ibv_send_wr sending(enum ibv_wr_opcode opcode, int buffers)
{
	for (int n = 0; n < 8; n++) sge[n] = (struct ibv_sge) { (uintptr_t)memory + 8 * n, 8, mr->lkey };
	return (struct ibv_send_wr) { .wr_id = 7, .sg_list = sge, .num_sge = buffers, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)memory + 4096, mr->rkey } };
}

static int post(struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad = NULL;
	int why = ibv_post_send(qp, &wr, &bad);
	if (why && bad != &wr) expect("the bad request is named", EINVAL, 0);
	return why;
}

static struct ibv_wc poll_one(void)
{
	struct ibv_wc wc;
	for (;;) {
		int found = ibv_poll_cq(cq, 1, &wc);
		need(found >= 0, "ibv_poll_cq");
		if (found) return wc;
	}
}

static void posts_in_reset(void)
{
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad = NULL;
	/* Soft-RoCE's library puts both into its rings, whatever the state. */
	if (!ours) return;
	expect("a send in RESET", post(sending(IBV_WR_SEND, 1)), EINVAL);
	expect("a receive in RESET", ibv_post_recv(qp, &receive, &bad), EINVAL);
	expect("which is named", bad == &receive ? 0 : EINVAL, 0);
}

static void posts(void)
{
	struct ibv_send_wr wr = sending(IBV_WR_SEND, 3), second, *bad = NULL;
	struct ibv_recv_wr receive = { .sg_list = sge, .num_sge = 3 }, *bad_receive = NULL;
	expect("too many buffers to send from", post(wr), EINVAL);
	expect("too many buffers to receive into", ibv_post_recv(qp, &receive, &bad_receive), EINVAL);
	expect("which is named", bad_receive == &receive ? 0 : EINVAL, 0);
	wr = sending(IBV_WR_SEND, 1);
	wr.send_flags |= IBV_SEND_INLINE;
	sge[0].length = 4096;
	expect("too much inline", post(wr), EINVAL);
	wr = sending(IBV_WR_ATOMIC_FETCH_AND_ADD, 1);
	wr.wr.atomic = (typeof(wr.wr.atomic)) { .remote_addr = (uintptr_t)memory + 4, .rkey = mr->rkey };
	expect("an atomic that is not aligned", post(wr), EINVAL);
	wr = sending(IBV_WR_ATOMIC_FETCH_AND_ADD, 1);
	wr.wr.atomic = (typeof(wr.wr.atomic)) { .remote_addr = (uintptr_t)memory, .rkey = mr->rkey };
	sge[0].length = 4;
	expect("an atomic of four bytes", post(wr), EINVAL);
	if (ours) {
		/* Soft-RoCE finds these out when it sends. */
		expect("an unknown operation", post(sending(99, 1)), EINVAL);
		wr = sending(IBV_WR_SEND, 1);
		wr.sg_list = NULL;
		expect("buffers that are nowhere", post(wr), EINVAL);
	}
	/* A WRITE, and behind it what is refused: the first is done. */
	wr = sending(IBV_WR_RDMA_WRITE, 1);
	second = sending(IBV_WR_RDMA_WRITE, 3);
	wr.next = &second;
	expect("the second of a list", ibv_post_send(qp, &wr, &bad), EINVAL);
	expect("which is named", bad == &second ? 0 : EINVAL, 0);
	expect("the first is done", poll_one().status, IBV_WC_SUCCESS);
}

static void attached(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *rings = ibv_create_cq(context, 1, NULL, channel, 0);
	struct ibv_srq_init_attr wanted = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &wanted);
	struct ibv_qp_init_attr receives = init(IBV_QPT_RC);
	receives.srq = srq;
	struct ibv_qp *from_srq = ibv_create_qp(pd, &receives);
	need(channel && rings && srq && from_srq, "objects that depend on each other");
	expect("a domain with objects", ibv_dealloc_pd(pd), EBUSY);
	expect("a completion queue with queue pairs", ibv_destroy_cq(cq), EBUSY);
	expect("a shared queue with queue pairs", ibv_destroy_srq(srq), EBUSY);
	expect("a channel with completion queues", ibv_destroy_comp_channel(channel), EBUSY);
	struct ibv_srq_attr limit = { .srq_limit = 1 << 20 };
	expect("a limit above the queue", ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), EINVAL);
	/* Soft-RoCE passes over them. */
	if (ours) expect("unknown attributes", ibv_modify_srq(srq, &limit, 1 << 20), EINVAL);
	struct ibv_sge two[2] = { { (uintptr_t)memory, 8, mr->lkey }, { (uintptr_t)memory, 8, mr->lkey } };
	struct ibv_recv_wr receive = { .sg_list = two, .num_sge = 2 }, *bad = NULL;
	expect("too many buffers for a shared queue", ibv_post_srq_recv(srq, &receive, &bad), EINVAL);
	expect("which is named", bad == &receive ? 0 : EINVAL, 0);
	need(!ibv_destroy_qp(from_srq) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(rings) && !ibv_destroy_comp_channel(channel), "all go");
	wanted.attr.max_wr = 1 << 30;
	expect("a shared queue that is too long", of_object(ibv_create_srq(pd, &wanted)), EINVAL);
	wanted.attr = (struct ibv_srq_attr) { .max_wr = 4, .max_sge = 1 << 20 };
	expect("a shared queue with too many buffers", of_object(ibv_create_srq(pd, &wanted)), EINVAL);
	wanted.attr = (struct ibv_srq_attr) { .max_wr = 0, .max_sge = 1 };
	expect("a shared queue of none", of_object(ibv_create_srq(pd, &wanted)), EINVAL);
}

static void queries(void)
{
	struct ibv_port_attr port;
	union ibv_gid entry;
	struct ibv_gid_entry whole;
	expect("a port 0", ibv_query_port(context, 0, &port), EINVAL);
	expect("a port 2", ibv_query_port(context, 2, &port), EINVAL);
	expect("a GID of a port 2", of_count(ibv_query_gid(context, 2, 0, &entry)) ? 0 : EINVAL, 0);
	expect("a GID that isn't there", of_count(ibv_query_gid(context, 1, 9999, &entry)) ? 0 : EINVAL, 0);
	expect("a GID entry of a port 2", ibv_query_gid_ex(context, 2, 0, &whole, 0), EINVAL);
	expect("a GID entry that isn't there", ibv_query_gid_ex(context, 1, 9999, &whole, 0), EINVAL);
	expect("a GID entry with flags", ibv_query_gid_ex(context, 1, 0, &whole, 1), EINVAL);
	expect("a partition that isn't there", ibv_get_pkey_index(context, 1, htobe16(0x1234)), -1);
	struct ibv_ah_attr to = { .is_global = 0, .port_num = 1 };
	expect("an address without a GID", of_object(ibv_create_ah(pd, &to)), EINVAL);
	to = (struct ibv_ah_attr) { .is_global = 1, .port_num = 2, .grh = { .dgid = gid, .sgid_index = gid_index } };
	expect("an address by a port 2", of_object(ibv_create_ah(pd, &to)), EINVAL);
	to = (struct ibv_ah_attr) { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 255 } };
	expect("an address from a GID that isn't there", of_object(ibv_create_ah(pd, &to)), no_gid);
}

/* rdma-core reads what was freed: it may crash, or ask the kernel, which knows no such handle. */
static void gone(void)
{
	struct ibv_pd *dead_pd = ibv_alloc_pd(context);
	struct ibv_cq *dead_cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp *dead_qp = make_qp(IBV_QPT_RC), *own = qp;
	struct ibv_mr *dead_mr = (ibv_reg_mr)(pd, memory, 64, 0);
	struct ibv_comp_channel *dead_channel = ibv_create_comp_channel(context);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *dead_srq = ibv_create_srq(pd, &shared);
	struct ibv_ah_attr address = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index } };
	struct ibv_ah *dead_ah = ibv_create_ah(pd, &address);
	need(dead_pd && dead_cq && dead_qp && dead_mr && dead_channel && dead_srq && dead_ah, "objects to destroy");
	for (int again = 0; again < 2; again++) {
		int wanted = again ? ENOENT : 0;
		expect("a domain", ibv_dealloc_pd(dead_pd), wanted);
		expect("a queue pair", ibv_destroy_qp(dead_qp), wanted);
		expect("a completion queue", ibv_destroy_cq(dead_cq), wanted);
		expect("a region", ibv_dereg_mr(dead_mr), wanted);
		expect("a channel", ibv_destroy_comp_channel(dead_channel), wanted);
		expect("a shared queue", ibv_destroy_srq(dead_srq), wanted);
		expect("an address", ibv_destroy_ah(dead_ah), wanted);
	}
	struct ibv_qp_init_attr wanted = init(IBV_QPT_RC);
	struct ibv_qp_attr attributes;
	expect("a region of a domain that is gone", of_object((ibv_reg_mr)(dead_pd, memory, 64, 0)), EINVAL);
	expect("a queue pair of a domain that is gone", of_object(ibv_create_qp(dead_pd, &wanted)), EINVAL);
	wanted.send_cq = dead_cq;
	expect("a queue pair with a queue that is gone", make(wanted), EINVAL);
	wanted = init(IBV_QPT_RC);
	wanted.srq = dead_srq;
	expect("a queue pair with a shared queue that is gone", make(wanted), EINVAL);
	expect("a queue with a channel that is gone", of_object(ibv_create_cq(context, 4, NULL, dead_channel, 0)), EINVAL);
	qp = dead_qp;
	expect("a queue pair that is gone is modified", ibv_modify_qp(dead_qp, &attributes, 0), EINVAL);
	expect("a queue pair that is gone is asked", ibv_query_qp(dead_qp, &attributes, 0, &wanted), EINVAL);
	expect("a queue that is gone is resized", ibv_resize_cq(dead_cq, 8), EINVAL);
	qp = own;
	/* Pointers of one kind in the place of another. */
	expect("a queue as a domain", ibv_dealloc_pd((void *)cq), ENOENT);
	expect("the program's own memory as a queue pair", ibv_destroy_qp((void *)memory), ENOENT);
	struct ibv_device *foreign = (void *)memory;
	expect("the program's own memory as a device", of_object(ibv_open_device(foreign)), ENODEV);
}

/* rdma-core crashes. */
static void null(void)
{
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr wanted = init(IBV_QPT_RC);
	expect("no device", of_object(ibv_open_device(NULL)), ENODEV);
	expect("no context", ibv_close_device(NULL), EINVAL);
	expect("no context for a domain", of_object(ibv_alloc_pd(NULL)), EINVAL);
	expect("no domain", ibv_dealloc_pd(NULL), EINVAL);
	expect("no domain for a region", of_object((ibv_reg_mr)(NULL, memory, 64, 0)), EINVAL);
	expect("no region", ibv_dereg_mr(NULL), EINVAL);
	expect("no context for a queue", of_object(ibv_create_cq(NULL, 1, NULL, NULL, 0)), EINVAL);
	expect("no completion queue", ibv_destroy_cq(NULL), EINVAL);
	expect("no domain for a queue pair", of_object(ibv_create_qp(NULL, &wanted)), EINVAL);
	expect("no attributes for a queue pair", of_object(ibv_create_qp(pd, NULL)), EINVAL);
	expect("no queue pair", ibv_destroy_qp(NULL), EINVAL);
	expect("no queue pair to modify", ibv_modify_qp(NULL, &attributes, 0), EINVAL);
	expect("no attributes to modify", ibv_modify_qp(qp, NULL, INIT), EINVAL);
	expect("nowhere to answer", ibv_query_qp(qp, NULL, 0, NULL), EINVAL);
	expect("nowhere to say what a device is", ibv_query_device(context, NULL), EINVAL);
	expect("nowhere to say what a port is", ibv_query_port(context, 1, NULL), EINVAL);
	expect("no context for a channel", of_object(ibv_create_comp_channel(NULL)), EINVAL);
	expect("no channel", ibv_destroy_comp_channel(NULL), EINVAL);
	expect("no domain for an address", of_object(ibv_create_ah(NULL, NULL)), EINVAL);
	expect("no address", ibv_destroy_ah(NULL), EINVAL);
	expect("no shared queue", ibv_destroy_srq(NULL), EINVAL);
	expect("room for no completion", ibv_poll_cq(cq, 1, NULL) < 0 ? 0 : EINVAL, 0);
	ibv_free_device_list(NULL);
	ibv_ack_cq_events(NULL, 1);
	ibv_ack_async_event(NULL);
}

static struct sockaddr_in address(const char *ip, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &address.sin_addr);
	return address;
}

/* librdmacm: what is asked of an identifier that isn't there yet. */
static void connections(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *other;
	struct rdma_cm_event *event;
	struct rdma_conn_param nothing = { 0 };
	struct ibv_qp_init_attr wanted = init(IBV_QPT_RC);
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(7471) }, foreign = address("203.0.113.9", 7471);
	memcpy(&here.sin_addr, gid.raw + 12, 4);
	struct sockaddr *ours_is = (struct sockaddr *)&here, *theirs_is = (struct sockaddr *)&foreign;
	need(channel && !fcntl(channel->fd, F_SETFL, O_NONBLOCK), "a channel that doesn't block");
	need(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_create_id(channel, &other, NULL, RDMA_PS_TCP), "rdma_create_id");
	expect("no event", of_count(rdma_get_cm_event(channel, &event)), EAGAIN);
	if (ours) {
		/* rdma-core crashes. */
		expect("a route without an address", of_count(rdma_resolve_route(id, 100)), EINVAL);
		expect("a connection without a route", of_count(rdma_connect(id, &nothing)), EINVAL);
		expect("nothing to accept", of_count(rdma_accept(id, &nothing)), EINVAL);
	}
	expect("nothing to refuse", of_count(rdma_reject(id, NULL, 0)), EINVAL);
	expect("nothing to end", of_count(rdma_disconnect(id)), EINVAL);
	expect("an option of an unknown level", of_count(rdma_set_option(id, 77, 0, &here, 1)), ENOSYS);
	expect("an unknown option", of_count(rdma_set_option(id, RDMA_OPTION_ID, 77, &here, 1)), ENOSYS);
	expect("an option that is too short", of_count(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &here, 1)), EINVAL);
	expect("another's address", of_count(rdma_bind_addr(id, theirs_is)), EADDRNOTAVAIL);
	expect("bound", of_count(rdma_bind_addr(id, ours_is)), 0);
	expect("bound again", of_count(rdma_bind_addr(id, ours_is)), EINVAL);
	expect("a port that is taken", of_count(rdma_bind_addr(other, ours_is)), EADDRINUSE);
	expect("listening", of_count(rdma_listen(id, 1)), 0);
	if (ours) expect("connecting while it listens", of_count(rdma_connect(id, &nothing)), EINVAL);
	expect("listening on any port", of_count(rdma_listen(other, 1)), 0);
	expect("which is one", ntohs(rdma_get_src_port(other)) ? 0 : EINVAL, 0);
	need(!rdma_destroy_id(other) && !rdma_create_id(channel, &other, NULL, RDMA_PS_TCP), "another identifier");
	here.sin_port = 0;
	need(!rdma_resolve_addr(other, NULL, ours_is, 1000), "rdma_resolve_addr");
	wanted.send_cq = wanted.recv_cq = NULL;
	struct ibv_pd *dead = ibv_alloc_pd(context);
	need(dead && !ibv_dealloc_pd(dead), "a domain that goes");
	if (ours) {
		/* rdma-core crashes. */
		expect("a queue pair in a domain that is gone", of_count(rdma_create_qp(other, dead, &wanted)), EINVAL);
		expect("no identifier to bind", of_count(rdma_bind_addr(NULL, ours_is)), EINVAL);
		expect("no address to bind to", of_count(rdma_bind_addr(id, NULL)), EINVAL);
		expect("no identifier to connect", of_count(rdma_connect(NULL, &nothing)), EINVAL);
		expect("no identifier to destroy", of_count(rdma_destroy_id(NULL)), EINVAL);
		expect("no event to acknowledge", of_count(rdma_ack_cm_event(NULL)), EINVAL);
	}
	need(!rdma_destroy_id(other) && !rdma_destroy_id(id), "rdma_destroy_id");
	rdma_destroy_event_channel(channel);
}

/* Verbs that this library lacks; not tried on Soft-RoCE yet. */
static void missing(void)
{
	struct ibv_counters_init_attr counted = { 0 };
	struct ibv_flow_action_esp_attr secured = { 0 };
	struct ibv_qp_rate_limit_attr limit = { .rate_limit = 1000 };
	struct ibv_modify_cq_attr moderated = { .attr_mask = IBV_CQ_ATTR_MODERATE };

	expect("ibv_create_counters", of_object(ibv_create_counters(context, &counted)), EOPNOTSUPP);
	expect("ibv_create_flow_action_esp", of_object(ibv_create_flow_action_esp(context, &secured)), EOPNOTSUPP);
	expect("ibv_modify_qp_rate_limit", ibv_modify_qp_rate_limit(qp, &limit), EOPNOTSUPP);
	expect("ibv_modify_cq", ibv_modify_cq(cq, &moderated), EOPNOTSUPP);
	expect("ibv_alloc_null_mr", of_object(ibv_alloc_null_mr(pd)), EOPNOTSUPP);
	expect("ibv_reg_dmabuf_mr", of_object(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE)), EOPNOTSUPP);
	expect("ibv_import_device", of_object(ibv_import_device(-1)), EOPNOTSUPP);
	expect("ibv_import_pd", of_object(ibv_import_pd(context, 0)), EOPNOTSUPP);
	expect("ibv_import_mr", of_object(ibv_import_mr(pd, 0)), EOPNOTSUPP);
	expect("ibv_import_dm", of_object(ibv_import_dm(context, 0)), EOPNOTSUPP);
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(!!list, "ibv_get_device_list");
	for (struct ibv_device **device = list; *device; device++)
		if (!strcmp(ibv_get_device_name(*device), name)) context = ibv_open_device(*device);
	ibv_free_device_list(list);
	need(!!context, "there is no such device");
	need(!ibv_query_gid(context, 1, gid_index, &gid), "there is no such GID");
}

int main(int count, char **arguments)
{
	if (count < 3) {
		fprintf(stderr, "bad-input DEVICE GID_INDEX [rdma-core]\n");
		return 2;
	}
	gid_index = atoi(arguments[2]);
	ours = count < 4;
	no_gid = ours ? EINVAL : ENODATA;
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_device(arguments[1]);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	need(pd && cq && mr, "objects");
	qp = make_qp(IBV_QPT_RC);
	memory_regions();
	completion_queues();
	queue_pairs();
	posts_in_reset();
	states();
	posts();
	attached();
	queries();
	connections();
	if (ours) {
		missing();
		gone();
		null();
	}
	need(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "all go");
	if (ours) expect("a context that is closed", ibv_close_device(context), ENOENT);
	printf("%d calls, %d answered otherwise\n", tried, failed);
	return failed != 0;
}
