/*
 * Runs in the Soft-RoCE guest: one side of a test like `ib_write_bw`, on libibverbs, that also compares the data. It speaks stock
 * perftest's handshake (apps/src/perf/handshake/perftest/ says which) and knows the pattern that `--verify` sends
 * (apps/src/perf/pattern.rs), so each end compares what it received byte by byte, and counts what atomics added up to.
 *
 *   rxe-verify RC|UC|UD OPERATION BYTES COUNT MTU GID_INDEX [SERVER]
 *   rxe-verify RC WRITE 65536 50 4096 1 10.77.0.1
 *
 * The variable QPS is the number of queue pairs, 1 to 8. Each has its own bytes, COUNT requests each. With several, BYTES is a multiple of 64.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum operation { SEND, WRITE, READ, FETCH_ADD, CMP_SWAP };
static const char *const names[] = { "SEND", "WRITE", "READ", "FETCH_ADD", "CMP_SWAP" };
enum { PORT = 18515, KEY = 108, DEPTH = 16, PLACE = 4096, GRH = 40, QUEUE_KEY = 0x11111111, MOST = 8 };

static enum operation operation;
static enum ibv_qp_type type;
static size_t bytes;
static uint64_t count;
static volatile uint64_t received;
static int mtu, gid_index, client, stream, qps = 1;
static uint8_t *memory;
static struct ibv_cq *cq;
static struct ibv_qp *pairs[MOST];
static struct ibv_mr *region, *headers;
static struct ibv_pd *pd;
static char own_keys[MOST][KEY];

struct peer { unsigned qpn, psn, rkey, max_rd_atomic; uint64_t address; union ibv_gid gid; };

static void die(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	exit(1);
}

static uint64_t mix(uint64_t value)
{
	uint64_t a = value + 0x9e3779b97f4a7c15, b = (a ^ a >> 30) * 0xbf58476d1ce4e5b9, c = (b ^ b >> 27) * 0x94d049bb133111eb;
	return c ^ c >> 31;
}

/* Byte `at` of what the client, or the server, sends: the queue pairs' bytes one after another. */
static uint8_t pattern(size_t at, int from_client)
{
	static uint64_t word, index = -1;
	if (index != at / 8) {
		index = at / 8;
		word = mix(mix(0x5eedf00d ^ mix(bytes) ^ mix(at / bytes << 1 | from_client)) + at % bytes / 8);
	}
	return word >> 8 * (at % 8);
}

static void fill(int from_client) { for (size_t at = 0; at < qps * bytes; at++) memory[at] = pattern(at, from_client); }

/* The first byte of the memory that is not that of the pattern, or the end. */
static size_t first_wrong(int from_client)
{
	size_t at = 0;
	__sync_synchronize();
	while (at < qps * bytes && memory[at] == pattern(at, from_client)) at++;
	return at;
}

static void compare(int from_client)
{
	size_t at = first_wrong(from_client);
	if (at < qps * bytes) die("byte %zu of %zu is %02x and not %02x", at, qps * bytes, memory[at], pattern(at, from_client));
	printf("verified: %zu bytes\n", qps * bytes);
}

static void expect(uint64_t value)
{
	uint64_t found = *(volatile uint64_t *)memory;
	if (found != value) die("the counter is %llu and not %llu", (unsigned long long)found, (unsigned long long)value);
	printf("verified: counter %llu\n", (unsigned long long)found);
}

static void meet(const char *server)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	if (server) {
		inet_pton(AF_INET, server, &at.sin_addr);
		stream = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(stream, (void *)&at, sizeof at)) die("no server at %s", server);
		return;
	}
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1)) die("TCP port %d is taken", PORT);
	stream = accept(listener, NULL, NULL);
}

/* The client speaks first. */
static void exchange(const void *own, void *theirs, size_t length)
{
	if (client && write(stream, own, length) != (ssize_t)length) die("the other side is gone");
	if (recv(stream, theirs, length, MSG_WAITALL) != (ssize_t)length) die("the other side closed");
	if (!client && write(stream, own, length) != (ssize_t)length) die("the other side is gone");
}

static void step(int qp) { char theirs[KEY]; exchange(own_keys[qp], theirs, KEY); }

static enum ibv_mtu greet(void)
{
	char version[16] = "6.06", digit[2] = { '0', 0 }, theirs[16];
	uint32_t page = htonl(PLACE), line = htonl(64);
	exchange(version, theirs, sizeof version);
	exchange(&page, theirs, sizeof page);
	exchange(&line, theirs, sizeof line);
	for (int step = 256; step <= mtu; step *= 2) digit[0]++;
	exchange(digit, theirs, sizeof digit);
	return theirs[0] < digit[0] ? theirs[0] - '0' : digit[0] - '0';
}

static struct peer swap_keys(int qp, unsigned psn, const union ibv_gid *gid)
{
	struct peer peer;
	char theirs[KEY], *at = own_keys[qp];
	at += sprintf(at, "0000:0010:%06x:%06x:%08x:%016llx:", pairs[qp]->qp_num, psn, region->rkey,
		(unsigned long long)(uintptr_t)(memory + qp * bytes));
	for (int byte = 0; byte < 16; byte++) at += sprintf(at, "%02x:", gid->raw[byte]);
	sprintf(at, "00000000:");
	exchange(own_keys[qp], theirs, KEY);
	unsigned long long address;
	int length;
	if (sscanf(theirs, "%*x:%x:%x:%x:%x:%llx:%n", &peer.max_rd_atomic, &peer.qpn, &peer.psn, &peer.rkey, &address, &length) != 5)
		die("the other side's keys can't be read");
	peer.address = address;
	for (int byte = 0; byte < 16; byte++) peer.gid.raw[byte] = strtoul(theirs + length + 3 * byte, NULL, 16);
	return peer;
}

static void make(union ibv_gid *gid)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	if (!context) die("no RDMA device");
	static uint8_t header[GRH];
	pd = ibv_alloc_pd(context);
	headers = ibv_reg_mr(pd, header, GRH, IBV_ACCESS_LOCAL_WRITE);
	size_t room = qps * bytes < PLACE ? PLACE : qps * bytes;
	memory = aligned_alloc(PLACE, (room + PLACE - 1) / PLACE * PLACE);
	memset(memory, 0, room);
	region = ibv_reg_mr(pd, memory, room,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
	struct ibv_qp_init_attr how = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 512, .max_send_sge = 1, .max_recv_sge = 2 } };
	if (!region || !cq || ibv_query_gid(context, 1, gid_index, gid)) die("the device refuses");
	for (int qp = 0; qp < qps; qp++) if (!(pairs[qp] = ibv_create_qp(pd, &how))) die("the device refuses a queue pair");
}

static void start(struct ibv_qp *qp, const struct peer *peer, unsigned psn, enum ibv_mtu path_mtu)
{
	int reliable = type == IBV_QPT_RC;
	if (type == IBV_QPT_UD) {
		struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QUEUE_KEY, .sq_psn = psn };
		int wrong = ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
		state.qp_state = IBV_QPS_RTR;
		wrong |= ibv_modify_qp(qp, &state, IBV_QP_STATE);
		state.qp_state = IBV_QPS_RTS;
		if (wrong | ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_SQ_PSN)) die("the queue pair does not open");
		return;
	}
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (reliable ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0) };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = path_mtu, .dest_qp_num = peer->qpn, .rq_psn = peer->psn,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = peer->max_rd_atomic > 16 ? 16 : peer->max_rd_atomic };
	if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		(reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) ||
	    ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN |
		(reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)))
		die("the queue pair does not connect");
}

static void receive_into_memory(int qp)
{
	/* A datagram has 40 bytes of its network header in front of it. */
	struct ibv_sge places[2] =
		{ { (uintptr_t)headers->addr, GRH, headers->lkey }, { (uintptr_t)(memory + qp * bytes), bytes, region->lkey } };
	int skip = type != IBV_QPT_UD;
	struct ibv_recv_wr request = { .sg_list = places + skip, .num_sge = 2 - skip }, *bad;
	for (uint64_t posted = 0; posted < count; posted++) if (ibv_post_recv(pairs[qp], &request, &bad)) die("no room for receives");
}

/* Posts the next request of a queue pair. */
static void ask(int qp, const struct peer *peer)
{
	static const enum ibv_wr_opcode opcodes[] =
		{ IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP };
	static struct ibv_ah *way;
	struct ibv_sge place = { (uintptr_t)(memory + qp * bytes), bytes, region->lkey };
	struct ibv_send_wr request =
		{ .wr_id = qp, .sg_list = &place, .num_sge = bytes ? 1 : 0, .opcode = opcodes[operation] }, *bad;
	if (type == IBV_QPT_UD) {
		struct ibv_ah_attr to =
			{ .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64 } };
		if (!way) way = ibv_create_ah(pd, &to);
		request.wr.ud.ah = way;
		request.wr.ud.remote_qpn = peer->qpn;
		request.wr.ud.remote_qkey = QUEUE_KEY;
		if (!request.wr.ud.ah) die("no way to the other side");
	} else if (operation >= FETCH_ADD) {
		request.wr.atomic.remote_addr = peer->address;
		request.wr.atomic.rkey = peer->rkey;
		request.wr.atomic.compare_add = operation == FETCH_ADD;
		request.wr.atomic.swap = 1;
	} else {
		request.wr.rdma.remote_addr = peer->address;
		request.wr.rdma.rkey = peer->rkey;
	}
	if (ibv_post_send(pairs[qp], &request, &bad)) die("a request is refused");
}

/* Posts all requests, DEPTH at a time on each queue pair, and returns the seconds that they took. */
static double run(const struct peer *peers)
{
	struct timespec from, to;
	uint64_t posted[MOST] = { 0 }, done[MOST] = { 0 }, all = 0;
	clock_gettime(CLOCK_MONOTONIC, &from);
	while (all < qps * count) {
		struct ibv_wc completion;
		for (int qp = 0; qp < qps; qp++)
			for (; posted[qp] < count && posted[qp] - done[qp] < DEPTH; posted[qp]++) ask(qp, &peers[qp]);
		if (!ibv_poll_cq(cq, 1, &completion)) continue;
		if (completion.status) die("request %llu: %s", (unsigned long long)all, ibv_wc_status_str(completion.status));
		done[completion.wr_id]++;
		all++;
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	return to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9;
}

/* A request of RC is executed when its sender has finished. One of UC or UD may still be on its way. */
static void await_arrival(void)
{
	while (type == IBV_QPT_UC && operation == WRITE && first_wrong(1) < qps * bytes) continue;
	while (operation == SEND && received < qps * count) {
		struct ibv_wc completion;
		if (!ibv_poll_cq(cq, 1, &completion)) continue;
		size_t length = bytes + (type == IBV_QPT_UD ? GRH : 0);
		if (completion.status) die("SEND %llu: %s", (unsigned long long)received, ibv_wc_status_str(completion.status));
		if (completion.byte_len != length) die("SEND %llu: %u bytes and not %zu", (unsigned long long)received, completion.byte_len, length);
		received++;
	}
}

/* What is lost never arrives: `timeout` ends the program. */
static void interrupted(int signal)
{
	char text[96];
	int length = snprintf(text, sizeof text, "ended by signal %d; %llu SENDs were received\n", signal, (unsigned long long)received);
	_exit(write(2, text, length) < 0 ? 2 : 1);
}

static void report(double seconds)
{
	double rate = client ? qps * count / seconds / 1e6 : 0, average = rate * 1e6 * bytes / (1 << 20);
	uint64_t fields[5] = { bytes, qps * count, 0, 0, 0 }, theirs;
	memcpy(&fields[2], &average, 8);
	memcpy(&fields[3], &average, 8);
	memcpy(&fields[4], &rate, 8);
	for (int field = 0; field < 5; field++) {
		uint64_t wire = htobe64(fields[field]);
		exchange(&wire, &theirs, sizeof wire);
	}
}

static void check(void)
{
	switch (operation) {
	case SEND: case WRITE: if (!client) compare(1); break;
	case READ: if (client) compare(0); break;
	/* The target has the sum; the initiator has the value before its last one. */
	case FETCH_ADD: expect(client ? count - 1 : count); break;
	case CMP_SWAP: expect(!client || count > 1); break;
	}
}

int main(int argc, char **argv)
{
	union ibv_gid gid;
	char theirs[KEY];
	if (argc < 7) die("usage: %s RC|UC|UD OPERATION BYTES COUNT MTU GID_INDEX [SERVER]", argv[0]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGTERM, interrupted);
	type = !strcmp(argv[1], "UC") ? IBV_QPT_UC : !strcmp(argv[1], "UD") ? IBV_QPT_UD : IBV_QPT_RC;
	while (operation < CMP_SWAP && strcmp(argv[2], names[operation])) operation++;
	bytes = strtoull(argv[3], NULL, 0), count = strtoull(argv[4], NULL, 0), mtu = atoi(argv[5]), gid_index = atoi(argv[6]);
	client = argc > 7;
	if (getenv("QPS")) qps = atoi(getenv("QPS"));
	if (qps < 1 || qps > MOST) die("QPS is not 1 to %d", MOST);
	unsigned psn = mix(time(NULL)) & 0xffffff;

	make(&gid);
	if (client ? operation <= WRITE : operation == READ) fill(client);
	meet(client ? argv[7] : NULL);
	enum ibv_mtu path_mtu = greet();
	struct peer peers[MOST];
	for (int qp = 0; qp < qps; qp++) peers[qp] = swap_keys(qp, psn, &gid);
	for (int qp = 0; qp < qps; qp++) {
		start(pairs[qp], &peers[qp], psn, path_mtu);
		if (!client && operation == SEND) receive_into_memory(qp);
	}
	/* Where all meet: once for each queue pair, and once more. SENDs have a step in front. */
	if (operation == SEND) step(0);
	for (int qp = 0; qp < qps; qp++) step(qp);
	step(0);
	double seconds = client ? run(peers) : 0;
	if (operation != SEND) { step(0); report(seconds); }
	step(0);
	if (!client) await_arrival();
	check();
	if (write(stream, "done", 5) != 5) die("the other side is gone");
	recv(stream, theirs, 5, MSG_WAITALL);
	return 0;
}
