/*
 * How long waking a thread that sleeps in ibv_get_cq_event takes: from before the post at the other side until the call returns. Beside it the
 * same message by a UDP socket on the same way, and an eventfd between two threads. Both sides on one machine, which has one clock.
 *
 *   wakeup DEVICE             sleeps; prints what it took
 *   wakeup DEVICE SERVER      sends: one message, a pause, and again
 *
 * By hand: `ferroce run --namespaces 2 -- wakeup ferroce0 {peer}`; over memif by two `ferroce run --port memif:...`, SERVER localhost.
 * WAKEUP_PAUSE is the pause in us.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 1000, WARM_UP = 50, PORT = 18540 };

/* What one side sends to the other. */
struct place {
	uint32_t qpn;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint64_t memory[ROUNDS], took[ROUNDS];
static useconds_t pause_us = 3000;

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "wakeup: %s (%s)\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return 1000000000ull * time.tv_sec + time.tv_nsec;
}

static int by_time(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
	return (left > right) - (left < right);
}

/* Prints the distribution, and returns the median in us. */
static double show(const char *what)
{
	uint64_t *times = took + WARM_UP;
	int count = ROUNDS - WARM_UP;
	qsort(times, count, sizeof *times, by_time);
#define PERCENTILE(share) (times[(int)((count - 1) * (share))] / 1000.0)
	printf("%-28s %8.1f %8.1f %8.1f %8.1f %8.1f\n", what, PERCENTILE(0), PERCENTILE(0.5), PERCENTILE(0.9), PERCENTILE(0.99), PERCENTILE(1));
	return PERCENTILE(0.5);
}

static void make(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	for (struct ibv_device **device = list; list && *device; device++)
		if (!strcmp(ibv_get_device_name(*device), name)) context = ibv_open_device(*device);
	need(!!context, "there is no such device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 2 * ROUNDS, NULL, channel, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = ROUNDS, .max_send_sge = 1, .max_recv_sge = 1 } };
	qp = ibv_create_qp(pd, &init);
	need(pd && channel && cq && mr && qp, "the objects");
}

static void receive(int round)
{
	struct ibv_sge sge = { (uintptr_t)&memory[round], sizeof *memory, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = round, .sg_list = &sge, .num_sge = 1 }, *bad;
	need(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

/* The index of the first IPv4 address: an interface's first GID is its link-local one, which works on one link at most. */
static int ipv4_gid(union ibv_gid *gid)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	int index = 0;
	while (!ibv_query_gid(context, 1, index, gid)) {
		if (!memcmp(gid, mapped, sizeof mapped)) return index;
		index++;
	}
	need(0, "no IPv4 address: ibv_query_gid");
	return 0;
}

static void connect_to(int gid, struct place peer)
{
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	need(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attributes = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .sgid_index = gid, .hop_limit = 64 } } };
	need(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attributes = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	need(!ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* The other side, by TCP. */
static int meet(const char *server)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int yes = 1, met = socket(AF_INET, SOCK_STREAM, 0);
	if (server) {
		struct hostent *host = gethostbyname(server);
		need(!!host, "the server's address");
		memcpy(&address.sin_addr, host->h_addr_list[0], sizeof address.sin_addr);
		for (int tries = 0; tries < 100 && connect(met, (struct sockaddr *)&address, sizeof address); tries++) {
			close(met);
			usleep(50000);
			met = socket(AF_INET, SOCK_STREAM, 0);
		}
		return met;
	}
	setsockopt(met, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	need(!bind(met, (struct sockaddr *)&address, sizeof address) && !listen(met, 1), "a port to listen on");
	return accept(met, NULL, NULL);
}

static void swap(int met, const void *ours, void *theirs, size_t size)
{
	need(write(met, ours, size) == (ssize_t)size && recv(met, theirs, size, MSG_WAITALL) == (ssize_t)size, "the other side");
}

static void verbs_sleep(void)
{
	struct ibv_cq *rang;
	struct ibv_wc wc;
	void *user;
	for (int round = 0; round < ROUNDS;) {
		need(!ibv_get_cq_event(channel, &rang, &user), "ibv_get_cq_event");
		uint64_t woken = now();
		ibv_ack_cq_events(cq, 1);
		need(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
		for (; ibv_poll_cq(cq, 1, &wc) == 1; round++) {
			need(wc.status == IBV_WC_SUCCESS, "a message");
			/* What came while the first was looked at woke no thread. */
			uint64_t sent = memory[wc.wr_id];
			took[round] = sent < woken ? woken - sent : 0;
		}
	}
}

static void verbs_send(void)
{
	struct ibv_wc wc;
	int found;
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_sge sge = { (uintptr_t)memory, sizeof *memory, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		usleep(pause_us);
		memory[0] = now();
		need(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
		while (!(found = ibv_poll_cq(cq, 1, &wc)));
		need(found == 1 && wc.status == IBV_WC_SUCCESS, "a completion");
	}
}

static void socket_sleep(int udp)
{
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t stamp;
		need(recv(udp, &stamp, sizeof stamp, 0) == sizeof stamp, "recv");
		took[round] = now() - stamp;
	}
}

static void socket_send(int udp)
{
	for (int round = 0; round < ROUNDS; round++) {
		usleep(pause_us);
		uint64_t stamp = now();
		need(send(udp, &stamp, sizeof stamp, 0) == sizeof stamp, "send");
	}
}

static void *thread_send(void *bell)
{
	for (int round = 0; round < ROUNDS; round++) {
		usleep(pause_us);
		__atomic_store_n(&memory[round], now(), __ATOMIC_RELEASE);
		eventfd_write(*(int *)bell, 1);
	}
	return NULL;
}

static void thread_sleep(void)
{
	int bell = eventfd(0, EFD_SEMAPHORE);
	pthread_t thread;
	need(!pthread_create(&thread, NULL, thread_send, &bell), "pthread_create");
	for (int round = 0; round < ROUNDS; round++) {
		eventfd_t count;
		need(!eventfd_read(bell, &count), "eventfd_read");
		took[round] = now() - memory[round];
	}
	pthread_join(thread, NULL);
}

int main(int count, char **arguments)
{
	need(count == 2 || count == 3, "wakeup DEVICE [SERVER]");
	if (getenv("WAKEUP_PAUSE")) pause_us = atoi(getenv("WAKEUP_PAUSE"));
	setlinebuf(stdout);
	make(arguments[1]);
	int met = meet(count == 3 ? arguments[2] : NULL);
	struct place ours = { .qpn = qp->qp_num }, theirs;
	struct sockaddr_in address;
	socklen_t size = sizeof address;
	char ready = 0;
	int gid = ipv4_gid(&ours.gid);
	swap(met, &ours, &theirs, sizeof ours);
	connect_to(gid, theirs);
	if (count == 2) {
		for (int round = 0; round < ROUNDS; round++) receive(round);
		need(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	}
	/* On the same pair of addresses. */
	int udp = socket(AF_INET, SOCK_DGRAM, 0);
	getsockname(met, (struct sockaddr *)&address, &size);
	need(!bind(udp, (struct sockaddr *)&address, size), "a socket");
	getpeername(met, (struct sockaddr *)&address, &size);
	need(!connect(udp, (struct sockaddr *)&address, size), "its peer");
	swap(met, &ready, &ready, 1);
	if (count == 3) {
		verbs_send();
		swap(met, &ready, &ready, 1);
		socket_send(udp);
		return 0;
	}
	verbs_sleep();
	printf("%-28s %8s %8s %8s %8s %8s\n", "woken after, us", "least", "p50", "p90", "p99", "most");
	double verbs = show("ibv_get_cq_event");
	swap(met, &ready, &ready, 1);
	socket_sleep(udp);
	double socket = show("UDP socket");
	thread_sleep();
	show("eventfd, between two threads");
	printf("ibv_get_cq_event / UDP socket: %.2f\n", verbs / socket);
	return 0;
}
