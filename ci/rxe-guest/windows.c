/*
 * Memory windows between two hosts, on libibverbs: the server lends memory and the client uses it.
 *
 *   windows DEVICE GID_INDEX [SERVER]
 *
 * Round 1: a type 2 window is bound, written through, and taken back by the client's SEND with invalidate, which the server's
 * completion names. Meanwhile the region can't be deregistered. Round 2: a type 1 window, by ibv_bind_mw, is read through. Round
 * 3: a type 2 window is taken back by LOCAL_INV, and the client's WRITE is refused. Round 4, on another connection: a SEND with
 * invalidate by a key that is no window's is acknowledged, and fails the server alone. The region itself grants a peer no right.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 18520, SIZE = 8192, AT = 4096, LENGTH = 1000 };

struct words { uint64_t address; uint32_t qpn, psn, rkey; union ibv_gid gid; };

static int stream;
static uint8_t *memory;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void die(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, " (%s)\n", strerror(errno));
	exit(1);
}

static void check(int ok, const char *what)
{
	if (!ok) die("windows: %s", what);
}

/* Both sides send a word and receive the other's. */
static struct words exchange(struct words own)
{
	struct words theirs;
	check(write(stream, &own, sizeof own) == sizeof own, "the peer does not listen");
	check(recv(stream, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs, "the peer has gone");
	return theirs;
}

static void meet(const char *server)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	if (server) {
		check(inet_pton(AF_INET, server, &address.sin_addr) == 1, "the server is not an IPv4 address");
		for (int tries = 0; connect(listener, (void *)&address, sizeof address); tries++) {
			check(tries < 100, "the server does not answer");
			usleep(100000);
			close(listener);
			listener = socket(AF_INET, SOCK_STREAM, 0);
		}
		stream = listener;
		return;
	}
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	check(!bind(listener, (void *)&address, sizeof address) && !listen(listener, 1), "the port is taken");
	stream = accept(listener, NULL, NULL);
	check(stream >= 0, "no client came");
}

static void connect_to(struct words peer, int gid_index, uint32_t psn)
{
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	check(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attributes = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn,
		.rq_psn = peer.psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .sgid_index = gid_index, .hop_limit = 64 } } };
	check(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attributes = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = psn,
		.max_rd_atomic = 1 };
	check(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 20;
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc))) check(time(NULL) < end, "no completion in 20 s");
	check(found == 1, "poll");
	return wc;
}

static struct ibv_wc post(struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	wr.send_flags = IBV_SEND_SIGNALED;
	check(!ibv_post_send(qp, &wr, &bad), "post");
	return completion();
}

static void expect(struct ibv_wc wc, enum ibv_wc_status status, enum ibv_wc_opcode opcode, const char *what)
{
	if (wc.status != status || (status == IBV_WC_SUCCESS && wc.opcode != opcode))
		die("windows: %s: %s, opcode %d", what, ibv_wc_status_str(wc.status), wc.opcode);
}

static void open_connection(struct ibv_pd *pd, int gid_index)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	check((qp = ibv_create_qp(pd, &init)) != NULL, "queue pair");
	struct words own = { .qpn = qp->qp_num, .psn = 0x1234 };
	check(!ibv_query_gid(pd->context, 1, gid_index, &own.gid), "no such GID");
	struct words peer = exchange(own);
	connect_to(peer, gid_index, own.psn);
	exchange(own);
}

static void serve_wrong_key(void)
{
	struct ibv_recv_wr empty = { .wr_id = 8 }, *bad;
	check(!ibv_post_recv(qp, &empty, &bad), "receive");
	exchange((struct words) { 0 });
	expect(completion(), IBV_WC_REM_INV_REQ_ERR, 0, "SEND with invalidate by a key of nothing");
	exchange((struct words) { 0 });
	puts("SEND with invalidate by a key of nothing: ok");
}

static void send_wrong_key(void)
{
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND_WITH_INV };
	send.invalidate_rkey = 0xfedcba98;
	exchange((struct words) { 0 });
	expect(post(send), IBV_WC_SUCCESS, IBV_WC_SEND, "the acknowledgement of a SEND by a wrong key");
	exchange((struct words) { 0 });
}

static void serve(struct ibv_pd *pd)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	check(mr && one && two, "a region and two windows");
	struct ibv_mw_bind_info info = { .mr = mr, .addr = (uintptr_t)memory + AT, .length = LENGTH,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW };
	struct words lent = { .address = info.addr };
	struct ibv_recv_wr empty = { .wr_id = 7 }, *bad;

	check(!ibv_post_recv(qp, &empty, &bad), "receive");
	bind.bind_mw.mw = two;
	bind.bind_mw.rkey = lent.rkey = ibv_inc_rkey(two->rkey);
	bind.bind_mw.bind_info = info;
	expect(post(bind), IBV_WC_SUCCESS, IBV_WC_BIND_MW, "bind");
	/* Soft-RoCE knows a window by the key of its newest binding, and changes it for type 1 alone. */
	two->rkey = lent.rkey;
	check(ibv_dereg_mr(mr), "a region with a window was deregistered");
	exchange(lent);
	struct ibv_wc came = completion();
	expect(came, IBV_WC_SUCCESS, IBV_WC_RECV, "SEND with invalidate");
	/* Soft-RoCE passes on the kernel's own flag, 1 << 2, which is another one in libibverbs. */
	unsigned flags = came.wc_flags & (IBV_WC_WITH_INV | 1 << 2);
	if (!flags || came.invalidated_rkey != lent.rkey)
		die("windows: flags %#x, key %#x instead of %#x", came.wc_flags, came.invalidated_rkey, lent.rkey);
	for (int i = 0; i < SIZE; i++)
		check(memory[i] == (i >= AT && i < AT + LENGTH ? (uint8_t)(i * 7) : 0), "what was written through the window");
	puts("type 2, SEND with invalidate: ok");

	info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
	struct ibv_mw_bind by_verb = { .wr_id = 2, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	check(!ibv_bind_mw(qp, one, &by_verb), "ibv_bind_mw");
	expect(completion(), IBV_WC_SUCCESS, IBV_WC_BIND_MW, "bind of type 1");
	lent.rkey = one->rkey;
	exchange(lent);
	exchange(lent);
	puts("type 1, READ: ok");

	bind.bind_mw.rkey = lent.rkey = ibv_inc_rkey(bind.bind_mw.rkey);
	expect(post(bind), IBV_WC_SUCCESS, IBV_WC_BIND_MW, "bind again");
	struct ibv_send_wr invalidate = { .opcode = IBV_WR_LOCAL_INV };
	invalidate.invalidate_rkey = lent.rkey;
	expect(post(invalidate), IBV_WC_SUCCESS, IBV_WC_LOCAL_INV, "LOCAL_INV");
	exchange(lent);
	exchange(lent);
	for (int i = AT; i < AT + LENGTH; i++) check(memory[i] == (uint8_t)(i * 7), "a refused WRITE wrote");
	puts("type 2, LOCAL_INV: ok");
	check(!ibv_dealloc_mw(one) && !ibv_dealloc_mw(two), "windows");
	check(!ibv_dereg_mr(mr), "the region without windows");
}

static void borrow(struct ibv_pd *pd)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "a region");
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = LENGTH, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 };
	for (int i = 0; i < LENGTH; i++) memory[i] = (i + AT) * 7;
	struct words lent = exchange((struct words) { 0 });
	wr.wr.rdma.remote_addr = lent.address;
	wr.wr.rdma.rkey = lent.rkey;
	expect(post(wr), IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, "WRITE");
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND_WITH_INV };
	send.invalidate_rkey = lent.rkey;
	expect(post(send), IBV_WC_SUCCESS, IBV_WC_SEND, "SEND with invalidate");

	lent = exchange(lent);
	memset(memory, 0, SIZE);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.rkey = lent.rkey;
	expect(post(wr), IBV_WC_SUCCESS, IBV_WC_RDMA_READ, "READ");
	for (int i = 0; i < LENGTH; i++) check(memory[i] == (uint8_t)((i + AT) * 7), "what was read through the window");
	exchange(lent);

	lent = exchange(lent);
	memset(memory, 0x11, SIZE);
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.rkey = lent.rkey;
	expect(post(wr), IBV_WC_REM_ACCESS_ERR, 0, "WRITE by a key that was taken back");
	exchange(lent);
	check(!ibv_dereg_mr(mr), "the region");
}

int main(int count, char **words)
{
	check(count == 3 || count == 4, "windows DEVICE GID_INDEX [SERVER]");
	const char *server = count == 4 ? words[3] : NULL;
	int gid_index = atoi(words[2]), devices;
	struct ibv_device **list = ibv_get_device_list(&devices), **found = list;
	while (*found && strcmp(ibv_get_device_name(*found), words[1])) found++;
	check(*found != NULL, "no such device");
	struct ibv_context *context = ibv_open_device(*found);
	check(context != NULL, "open");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	check(pd && cq, "objects");
	check(!posix_memalign((void **)&memory, 4096, SIZE), "memory");
	memset(memory, 0, SIZE);
	setvbuf(stdout, NULL, _IOLBF, 0);
	meet(server);
	open_connection(pd, gid_index);
	if (server) borrow(pd); else serve(pd);
	check(!ibv_destroy_qp(qp), "the first connection");
	open_connection(pd, gid_index);
	if (server) send_wrong_key(); else serve_wrong_key();
	check(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "the end");
	ibv_free_device_list(list);
	return 0;
}
