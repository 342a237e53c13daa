/*
 * Runs in the Soft-RoCE guest and, on the drop-in library, on our side: mixes operations on one RC queue pair, sixteen outstanding, and
 * compares all data. Both sides derive the same sequence of operations from SEED, so each knows what the responder's memory holds after
 * each of them: the bytes that a READ must return, an atomic's original value, and the length and bytes of every SEND.
 *
 *   mixed OPERATIONS COUNT SEED GID_INDEX [SERVER]
 *   mixed SEND+READ 4000 1 1 10.77.0.1
 *
 * OPERATIONS are some of SEND, WRITE, READ, FETCH_ADD and CMP_SWAP, joined by +. Without SERVER it is the responder. The variable
 * READ_BYTES is the length of the longest READ, 8192 by default, and the same at both ends. SIGTERM ends the program with a line that
 * says how many operations were done.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum kind { SEND, WRITE, READ, FETCH_ADD, CMP_SWAP, KINDS };
static const char *const names[KINDS] = { "SEND", "WRITE", "READ", "FETCH_ADD", "CMP_SWAP" };
static const enum ibv_wr_opcode opcodes[KINDS] =
	{ IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP };
/* The responder's memory: WORDS for atomics in its first page, then SLOTS of LONGEST bytes each for READs and WRITEs. */
enum { PORT = 18516, DEPTH = 16, RECEIVES = 64, LONGEST = 8192, SLOTS = 32, WORDS = 8, PAGE = 4096, SIZE = PAGE + SLOTS * LONGEST };

struct operation {
	enum kind kind;
	uint64_t number, remote, compare_add, swap, original;
	unsigned length;
};
struct side { uint64_t address; uint32_t rkey, qpn; union ibv_gid gid; };

static enum kind mix[KINDS];
static unsigned kinds, longest_read = LONGEST;
static uint64_t count, seed, generated, done, of_kind[KINDS], last_read[SLOTS];
/* What the responder's memory holds after the `generated` first operations. */
static uint8_t model[SIZE];
static uint8_t *memory;
static int stream;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *region;

static void die(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	exit(1);
}

static void interrupted(int signal)
{
	char text[96];
	int length = snprintf(text, sizeof text, "ended by signal %d after %llu of %llu operations\n", signal,
		(unsigned long long)done, (unsigned long long)count);
	_exit(write(2, text, length) < 0 ? 2 : 1);
}

static uint64_t scramble(uint64_t value)
{
	uint64_t a = value + 0x9e3779b97f4a7c15, b = (a ^ a >> 30) * 0xbf58476d1ce4e5b9, c = (b ^ b >> 27) * 0x94d049bb133111eb;
	return c ^ c >> 31;
}

/* Random number `index` of an operation. */
static uint64_t random_of(uint64_t number, unsigned index) { return scramble(scramble(seed ^ number << 8) + index); }

/* The bytes of a SEND or a WRITE. */
static void fill(uint8_t *at, const struct operation *operation)
{
	uint64_t word = random_of(operation->number, 100);
	for (unsigned byte = 0; byte < operation->length; byte++) {
		if (byte % 8 == 0) word += 0x9e3779b97f4a7c15;
		at[byte] = word >> 8 * (byte % 8);
	}
}

/* What the responder's memory holds before the first operation. */
static void fill_model(void)
{
	for (unsigned slot = 0; slot < SLOTS; slot++)
		fill(model + PAGE + slot * LONGEST, &(struct operation){ .number = ~(uint64_t)slot, .length = LONGEST });
}

static void invert(uint8_t *at, unsigned length) { for (unsigned byte = 0; byte < length; byte++) at[byte] = ~at[byte]; }

static void compare(const uint8_t *found, const uint8_t *expected, size_t length, const char *what, uint64_t number)
{
	size_t wrong = 0, first = 0;
	for (size_t byte = length; byte-- > 0;) if (found[byte] != expected[byte]) wrong++, first = byte;
	if (wrong)
		die("%s %llu: %zu of %zu bytes are wrong; byte %zu is %02x and not %02x", what, (unsigned long long)number, wrong, length,
			first, found[first], expected[first]);
}

static void atomic(struct operation *operation)
{
	unsigned word = random_of(operation->number, 1) % WORDS;
	uint64_t *value = (uint64_t *)model + word, value_if_other = random_of(operation->number, 2);
	operation->remote = word * 8, operation->length = 8, operation->original = *value;
	if (operation->kind == FETCH_ADD) {
		operation->compare_add = value_if_other;
		*value += value_if_other;
		return;
	}
	/* Every fourth one finds another value and swaps nothing. */
	operation->compare_add = random_of(operation->number, 3) % 4 ? *value : value_if_other;
	operation->swap = random_of(operation->number, 4);
	if (operation->compare_add == *value) *value = operation->swap;
}

/* A WRITE leaves alone what a READ that may be outstanding reads: the responder may execute that READ again, after the WRITE. */
static unsigned slot_of(const struct operation *operation)
{
	unsigned slot = random_of(operation->number, 1) % SLOTS;
	if (operation->kind == READ) last_read[slot] = operation->number;
	else while (last_read[slot] && operation->number - last_read[slot] < DEPTH) slot = (slot + 1) % SLOTS;
	return slot;
}

/* The next operation, executed on `model`; false after the last. */
static int next(struct operation *operation)
{
	if (generated == count) return 0;
	*operation = (struct operation){ .number = ++generated };
	operation->kind = mix[random_of(operation->number, 0) % kinds];
	of_kind[operation->kind]++;
	if (operation->kind >= FETCH_ADD) {
		atomic(operation);
		return 1;
	}
	unsigned longest = operation->kind == READ ? longest_read : LONGEST;
	/* Every third one has one packet. */
	operation->length = 1 + random_of(operation->number, 2) % (random_of(operation->number, 3) % 3 ? longest : 1024);
	if (operation->kind == SEND) return 1;
	operation->remote = PAGE + slot_of(operation) * LONGEST + random_of(operation->number, 4) % (LONGEST - operation->length + 1);
	if (operation->kind == WRITE) fill(model + operation->remote, operation);
	return 1;
}

static void parse(char *text)
{
	for (char *word = strtok(text, "+"); word; word = strtok(NULL, "+")) {
		enum kind kind = SEND;
		while (kind < KINDS && strcmp(word, names[kind])) kind++;
		if (kind == KINDS || kinds == KINDS) die("operation %s: unknown, or one too many", word);
		mix[kinds++] = kind;
	}
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
	puts("Waiting for client");
	stream = accept(listener, NULL, NULL);
}

static void exchange(const void *own, void *theirs, size_t length)
{
	if (write(stream, own, length) != (ssize_t)length || recv(stream, theirs, length, MSG_WAITALL) != (ssize_t)length)
		die("the other side is gone");
}

static void step(void) { char theirs; exchange("", &theirs, 1); }

static void make(struct side *own, int gid_index, size_t size)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd) die("no RDMA device");
	memory = aligned_alloc(PAGE, size);
	memset(memory, 0, size);
	region = ibv_reg_mr(pd, memory, size,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	cq = ibv_create_cq(context, 2 * RECEIVES, NULL, NULL, 0);
	struct ibv_qp_init_attr how = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };
	if (!region || !cq || !(qp = ibv_create_qp(pd, &how)) || ibv_query_gid(context, 1, gid_index, &own->gid))
		die("the device refuses");
	own->address = (uintptr_t)memory, own->rkey = region->rkey, own->qpn = qp->qp_num;
}

static void start(const struct side *peer, int gid_index)
{
	unsigned psn = scramble(seed) & 0xffffff;
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn, .rq_psn = psn,
		.max_dest_rd_atomic = DEPTH, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = DEPTH };
	if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	    ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC))
		die("the queue pair does not connect");
}

/* The next completion; ends the program if it is an error, or if the other side ended. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	for (unsigned idle = 1; !ibv_poll_cq(cq, 1, &wc); idle++) {
		char byte;
		if (idle % 4096 == 0 && !recv(stream, &byte, 1, MSG_PEEK | MSG_DONTWAIT)) die("the other side is gone");
	}
	if (wc.status) die("after %llu operations: %s", (unsigned long long)done, ibv_wc_status_str(wc.status));
	return wc;
}

static uint8_t *place(uint64_t number) { return memory + number % DEPTH * LONGEST; }

/* Posts an operation. What a READ or an atomic must return is in `expected`; its place has other bytes until the response is there. */
static void post(const struct operation *operation, const struct side *peer, uint8_t *expected)
{
	uint8_t *at = place(operation->number);
	struct ibv_sge sge = { (uintptr_t)at, operation->length, region->lkey };
	struct ibv_send_wr request = { .wr_id = operation->number, .sg_list = &sge, .num_sge = 1, .opcode = opcodes[operation->kind] }, *bad;
	if (operation->kind <= WRITE) {
		fill(at, operation);
	} else {
		memcpy(expected, operation->kind == READ ? model + operation->remote : (const uint8_t *)&operation->original, operation->length);
		memcpy(at, expected, operation->length);
		invert(at, operation->length);
	}
	if (operation->kind >= FETCH_ADD) {
		request.wr.atomic.remote_addr = peer->address + operation->remote;
		request.wr.atomic.rkey = peer->rkey;
		request.wr.atomic.compare_add = operation->compare_add;
		request.wr.atomic.swap = operation->swap;
	} else {
		request.wr.rdma.remote_addr = peer->address + operation->remote;
		request.wr.rdma.rkey = peer->rkey;
	}
	if (ibv_post_send(qp, &request, &bad)) die("request %llu is refused", (unsigned long long)operation->number);
}

static void request_all(const struct side *peer)
{
	static struct operation outstanding[DEPTH];
	static uint8_t expected[DEPTH][LONGEST];
	struct operation operation;
	while (done < count) {
		while (generated - done < DEPTH && next(&operation)) {
			post(&operation, peer, expected[operation.number % DEPTH]);
			outstanding[operation.number % DEPTH] = operation;
		}
		uint64_t number = completion().wr_id;
		if (number != ++done) die("request %llu completed, and not %llu", (unsigned long long)number, (unsigned long long)done);
		const struct operation *ended = &outstanding[number % DEPTH];
		if (ended->kind >= READ) compare(place(number), expected[number % DEPTH], ended->length, names[ended->kind], number);
	}
}

static void receive(uint64_t index)
{
	struct ibv_sge sge = { (uintptr_t)(memory + SIZE + index * LONGEST), LONGEST, region->lkey };
	struct ibv_recv_wr request = { .wr_id = index, .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(qp, &request, &bad)) die("no room for receives");
}

/* Every SEND in its turn. */
static void receive_all(void)
{
	static uint8_t expected[LONGEST];
	struct operation operation;
	for (; next(&operation); done = operation.number) {
		if (operation.kind != SEND) continue;
		struct ibv_wc wc = completion();
		uint8_t *found = memory + SIZE + wc.wr_id * LONGEST;
		if (wc.byte_len != operation.length)
			die("SEND %llu has %u bytes and not %u", (unsigned long long)operation.number, wc.byte_len, operation.length);
		fill(expected, &operation);
		compare(found, expected, operation.length, "SEND", operation.number);
		invert(found, operation.length);
		receive(wc.wr_id);
	}
}

int main(int argc, char **argv)
{
	if (argc < 5) die("usage: %s OPERATIONS COUNT SEED GID_INDEX [SERVER]", argv[0]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGTERM, interrupted);
	if (getenv("READ_BYTES")) longest_read = atoi(getenv("READ_BYTES"));
	if (longest_read < 1024 || longest_read > LONGEST) die("READ_BYTES is not 1024 to %d", LONGEST);
	parse(argv[1]);
	count = strtoull(argv[2], NULL, 0), seed = strtoull(argv[3], NULL, 0);
	int gid_index = atoi(argv[4]), client = argc > 5;
	struct side own, peer;
	fill_model();
	make(&own, gid_index, client ? DEPTH * LONGEST : SIZE + RECEIVES * LONGEST);
	if (!client) memcpy(memory, model, SIZE);
	meet(client ? argv[5] : NULL);
	exchange(&own, &peer, sizeof own);
	start(&peer, gid_index);
	if (!client) for (unsigned index = 0; index < RECEIVES; index++) receive(index);
	step();
	if (client) request_all(&peer);
	else receive_all();
	step();
	struct ibv_wc extra;
	if (ibv_poll_cq(cq, 1, &extra)) die("a completion too many");
	if (!client) compare(memory, model, SIZE, "memory after operation", count);
	printf("verified: %llu operations:", (unsigned long long)count);
	for (enum kind kind = SEND; kind < KINDS; kind++) if (of_kind[kind]) printf(" %llu %s", (unsigned long long)of_kind[kind], names[kind]);
	puts("");
	step();
	return 0;
}
