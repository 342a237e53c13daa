/* A raw packet queue pair beside Linux's own UDP: frames of a socket reach the queue pair by a flow rule, each byte is compared, and their
 * answers, written as whole frames, reach the socket.
 *
 * frames: answers datagrams to UDP port 5000 until none has come for a second. frames ADDRESS: sends to it by a socket. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 5000, ROUNDS = 200, DEPTH = 32, ROOM = 2048, HEADERS = 14 + 20 + 8, LONGEST = 1400 };

static void check(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "error: %s\n", what);
		exit(1);
	}
}

/* The length of a round's datagram, and its bytes: the number of the round and a pattern. */
static size_t datagram(uint32_t round, uint8_t *bytes)
{
	size_t length = 4 + round * 7 % (LONGEST - 3);
	memcpy(bytes, &round, 4);
	for (size_t at = 4; at < length; at++)
		bytes[at] = (uint8_t)(round + at * 3);
	return length;
}

static int bound(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	check(bind(fd, (struct sockaddr *)&any, sizeof any) == 0, "bind");
	return fd;
}

static void swap(uint8_t *one, uint8_t *other, size_t length)
{
	for (size_t at = 0; at < length; at++) {
		uint8_t byte = one[at];
		one[at] = other[at];
		other[at] = byte;
	}
}

/* Makes a frame its own answer. Sums of addresses and ports do not change by their order. */
static void turn_round(uint8_t *frame)
{
	swap(frame, frame + 6, 6);
	swap(frame + 26, frame + 30, 4);
	swap(frame + 34, frame + 36, 2);
	/* The sender left the checksum of UDP to its interface. 0 means that there is none. */
	memset(frame + 40, 0, 2);
}

static void receive(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t slot)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr + slot * ROOM, .length = ROOM, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	check(ibv_post_recv(qp, &wr, &bad) == 0, "ibv_post_recv");
}

/* Waits up to `seconds` for a completion. */
static int completion(struct ibv_cq *cq, struct ibv_wc *wc, time_t seconds)
{
	time_t end = time(NULL) + seconds + 1;
	int got;
	while ((got = ibv_poll_cq(cq, 1, wc)) == 0 && time(NULL) < end)
		;
	check(got >= 0 && (got == 0 || wc->status == IBV_WC_SUCCESS), "a completion fails");
	return got;
}

static struct ibv_qp *ready(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET };
	init.cap = (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0, "INIT");
	attr.qp_state = IBV_QPS_RTR;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "RTS");
	return qp;
}

static struct ibv_flow *rule(struct ibv_qp *qp)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_ipv4 ip;
		struct ibv_flow_spec_tcp_udp udp;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 2, .port = 1 },
		.ip = { .type = IBV_FLOW_SPEC_IPV4, .size = sizeof rule.ip },
		.udp = { .type = IBV_FLOW_SPEC_UDP, .size = sizeof rule.udp },
	};
	rule.udp.val.dst_port = htons(PORT);
	rule.udp.mask.dst_port = 0xffff;
	return ibv_create_flow(qp, &rule.attr);
}

static void answer(void)
{
	/* So that the kernel, which receives the same datagrams, answers none. */
	int kernels = bound();
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(devices && devices[0], "there is a device");
	struct ibv_context *context = ibv_open_device(devices[0]);
	check(context != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, calloc(DEPTH, ROOM), DEPTH * ROOM, IBV_ACCESS_LOCAL_WRITE);
	check(pd && cq && mr, "objects");
	struct ibv_qp *qp = ready(pd, cq);
	for (uint64_t slot = 0; slot < DEPTH; slot++)
		receive(qp, mr, slot);
	struct ibv_flow *flow = rule(qp);
	check(flow != NULL, "ibv_create_flow");
	uint32_t seen = 0;
	struct ibv_wc wc;
	while (completion(cq, &wc, seen == 0 ? 20 : 1)) {
		if (wc.opcode != IBV_WC_RECV) {
			receive(qp, mr, wc.wr_id);
			continue;
		}
		uint8_t *frame = (uint8_t *)mr->addr + wc.wr_id * ROOM, expected[LONGEST + 4];
		uint32_t round;
		memcpy(&round, frame + HEADERS, 4);
		size_t length = datagram(round, expected);
		/* A short frame is padded. */
		check(round < ROUNDS && wc.byte_len >= HEADERS + length, "length");
		check(memcmp(frame + HEADERS, expected, length) == 0, "bytes to the queue pair differ");
		seen = round + 1;
		turn_round(frame);
		struct ibv_sge sge = { .addr = (uintptr_t)frame, .length = wc.byte_len, .lkey = mr->lkey };
		struct ibv_send_wr wr = { .wr_id = wc.wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		wr.send_flags = IBV_SEND_SIGNALED;
		check(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
	}
	check(seen == ROUNDS, "all rounds came");
	check(ibv_destroy_flow(flow) == 0 && ibv_destroy_qp(qp) == 0, "destroy");
	close(kernels);
}

static void ask(const char *address)
{
	struct sockaddr_in peer = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct timeval patience = { .tv_usec = 200000 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	check(inet_pton(AF_INET, address, &peer.sin_addr) == 1, "address");
	check(connect(fd, (struct sockaddr *)&peer, sizeof peer) == 0, "connect");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint8_t sent[LONGEST + 4], received[ROOM];
		size_t length = datagram(round, sent);
		ssize_t got = -1;
		for (int tries = 0; tries < 50 && got < 0; tries++) {
			/* Until the other side is there, the kernel refuses. */
			if (send(fd, sent, length, 0) < 0)
				usleep(100000);
			got = recv(fd, received, sizeof received, 0);
			/* The answer to a repetition. */
			if (got >= 4 && memcmp(received, sent, 4) != 0)
				got = -1;
		}
		check(got == (ssize_t)length && memcmp(received, sent, length) == 0, "bytes to the socket differ, or none came");
	}
	close(fd);
}

int main(int count, char **words)
{
	if (count > 1)
		ask(words[1]);
	else
		answer();
	puts("all bytes equal");
	return 0;
}
