/*
 * The interface of an open device changes: its addresses, its MTU, its link, its name, and its existence. The device follows as Linux's
 * Soft-RoCE does.
 *
 *   interface INTERFACE idle|busy PROCESS
 *
 * As root, in a network namespace that may be changed, with INTERFACE up at an MTU of 4300 and without other addresses than 10.93.0.1.
 * With `idle`, the interface is deleted at last. With `busy`, a queue pair writes to another of the same device all the time, until the
 * interface moves to the network namespace of PROCESS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits are long: on a busy machine the kernel may take seconds to report a carrier. */
enum { TIMEOUT_MS = 20000, SIZE = 4096, PORT = 7480 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq, *other_cq;
static struct ibv_qp *qps[2];
static struct ibv_mr *mr;
static char memory[2 * SIZE];
static const char *interface;
static int written;

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "error: %s (%s)\n", what, strerror(errno));
	exit(1);
}

/* Runs `ip` with these words; %s is the interface. */
static void ip(const char *words)
{
	char command[256] = "ip ";
	snprintf(command + 3, sizeof command - 3, words, interface);
	need(!system(command), command);
}

/* Waits for an event of this type. Others may come before: PORT_ERR of a link that goes down, GID_CHANGE of its IPv6 addresses. */
static void event(enum ibv_event_type wanted)
{
	struct pollfd readable = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	do {
		if (poll(&readable, 1, TIMEOUT_MS) != 1 || ibv_get_async_event(context, &event)) need(0, ibv_event_type_str(wanted));
		ibv_ack_async_event(&event);
		printf("%s\n", ibv_event_type_str(event.event_type));
	} while (event.event_type != wanted);
}

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
	if (inet_pton(AF_INET, address, gid.raw + 12) == 1) return gid;
	need(inet_pton(AF_INET6, address, gid.raw) == 1, address);
	return gid;
}

/* The GID table has this address at this index. */
static void has(int index, const char *address)
{
	union ibv_gid gid, wanted = address ? gid_of(address) : (union ibv_gid) { .raw = { 0 } };
	struct ibv_gid_entry entry;
	char what[128];
	snprintf(what, sizeof what, "GID %d is %s", index, address ? address : "a hole");
	need(!ibv_query_gid(context, 1, index, &gid) && !memcmp(&gid, &wanted, sizeof gid), what);
	need(ibv_query_gid_ex(context, 1, index, &entry, 0) == (address ? 0 : ENODATA), what);
}

static int mtu(void)
{
	struct ibv_port_attr port;
	need(!ibv_query_port(context, 1, &port), "ibv_query_port");
	return 128 << port.active_mtu;
}

/* Soft-RoCE gives no event when the MTU changes, so this waits for the attribute. */
static void until_mtu(int wanted)
{
	for (int tries = 0; mtu() != wanted; tries++) {
		need(tries < TIMEOUT_MS, "active_mtu follows the interface");
		poll(NULL, 0, 1);
	}
}

static struct ibv_qp *make(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr how = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp = ibv_create_qp(pd, &how);
	need(!!qp, "ibv_create_qp");
	need(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	return qp;
}

/* Moves a queue pair to RTR. */
static int to_rtr(struct ibv_qp *qp, int peer, enum ibv_mtu mtu)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid_of("10.93.0.1"), .sgid_index = 1, .hop_limit = 64 } } };
	return ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static void connect_to(struct ibv_qp *qp, int peer)
{
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	need(!to_rtr(qp, peer, IBV_MTU_1024), "RTR");
	need(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* Writes until a completion is not a success; that must be a flushed one, or the device refuses. */
static void *writes(void *unused)
{
	struct ibv_sge sge = { (uintptr_t)memory, SIZE, mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)memory + SIZE, mr->rkey } };
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	while (!ibv_post_send(qps[0], &wr, &bad)) {
		int found;
		while (!(found = ibv_poll_cq(cq, 1, &wc))) continue;
		if (found < 0) break;
		if (wc.status != IBV_WC_SUCCESS) {
			need(wc.status == IBV_WC_WR_FLUSH_ERR, ibv_wc_status_str(wc.status));
			break;
		}
		__atomic_add_fetch(&written, 1, __ATOMIC_RELAXED);
	}
	return unused;
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	need(poll(&readable, 1, TIMEOUT_MS) == 1, rdma_event_str(wanted));
	need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	fprintf(stderr, "%s\n", rdma_event_str(event->event));
	need(event->event == wanted, rdma_event_str(wanted));
	return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	need(!rdma_ack_cm_event(next(channel, wanted)), "rdma_ack_cm_event");
}

/* A listener on all addresses hears a request to one that the interface had not when it began. */
static void request(struct rdma_event_channel *listening, struct rdma_event_channel *channel, const char *to)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct rdma_conn_param parameters = { .retry_count = 7, .rnr_retry_count = 7, .qp_num = 77 };
	struct rdma_cm_id *id;
	inet_pton(AF_INET, to, &address.sin_addr);
	need(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000), "rdma_resolve_addr");
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	need(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	need(!rdma_connect(id, &parameters), "rdma_connect");
	struct rdma_cm_event *event = next(listening, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *child = event->id;
	need(!rdma_ack_cm_event(event) && !rdma_reject(child, NULL, 0) && !rdma_destroy_id(child), "the request is refused");
	expect(channel, RDMA_CM_EVENT_REJECTED);
	need(!rdma_destroy_id(id), "rdma_destroy_id");
}

static void follows_addresses(void)
{
	has(1, "10.93.0.1");
	ip("address add 10.93.7.1/32 dev %s");
	event(IBV_EVENT_GID_CHANGE);
	has(2, "10.93.7.1");
	ip("address add 10.93.7.2/32 dev %s");
	event(IBV_EVENT_GID_CHANGE);
	has(3, "10.93.7.2");
	ip("address del 10.93.7.1/32 dev %s");
	event(IBV_EVENT_GID_CHANGE);
	has(2, NULL);
	has(3, "10.93.7.2");
	ip("address add fd93::1/64 dev %s nodad");
	event(IBV_EVENT_GID_CHANGE);
	has(2, "fd93::1");
	ip("address del fd93::1/64 dev %s");
	event(IBV_EVENT_GID_CHANGE);
	has(2, NULL);
}

static void follows_mtu(void)
{
	struct ibv_qp *late = make(cq);
	until_mtu(4096);
	ip("link set %s mtu 1500");
	until_mtu(1024);
	need(to_rtr(late, qps[0]->qp_num, IBV_MTU_4096) == EINVAL, "a connection is limited by the MTU");
	need(!to_rtr(late, qps[0]->qp_num, IBV_MTU_1024), "a connection within the MTU");
	ip("link set %s mtu 4300");
	until_mtu(4096);
	need(!ibv_destroy_qp(late), "ibv_destroy_qp");
}

/* An interface gets another name while it is down. Its index stays. */
static void follows_link(void)
{
	struct ibv_gid_entry entry;
	ip("link set %s down");
	event(IBV_EVENT_PORT_ERR);
	ip("link set %s name changed0");
	interface = "changed0";
	ip("link set %s up");
	event(IBV_EVENT_PORT_ACTIVE);
	has(1, "10.93.0.1");
	need(!ibv_query_gid_ex(context, 1, 1, &entry, 0) && entry.ndev_ifindex == if_nametoindex(interface), "the index of the interface");
}

/* Nothing works any more, and everything can be destroyed. */
static void ends(struct rdma_event_channel *channel, struct rdma_cm_id *bound, const char *end)
{
	struct ibv_recv_wr *bad, receive = { .wr_id = 5 };
	struct ibv_async_event more;
	struct ibv_wc wc;
	struct ibv_port_attr port;
	int found;
	need(!ibv_post_recv(qps[1], &receive, &bad), "ibv_post_recv");
	ip(end);
	event(IBV_EVENT_DEVICE_FATAL);
	while (!(found = ibv_poll_cq(other_cq, 1, &wc))) continue;
	need(found == 1 && wc.wr_id == 5 && wc.status == IBV_WC_WR_FLUSH_ERR, "the receive is flushed");
	expect(channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
	need(ibv_get_async_event(context, &more) == -1 && errno == EIO, "no further event");
	need(ibv_query_port(context, 1, &port) == EIO, "ibv_query_port");
	need(!rdma_destroy_id(bound), "rdma_destroy_id");
}

int main(int count, char **arguments)
{
	char move[64];
	need(count == 4, "interface INTERFACE idle|busy PROCESS");
	interface = arguments[1];
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(list && *list && (context = ibv_open_device(*list)), "the device opens");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context), cq = ibv_create_cq(context, 16, NULL, NULL, 0), other_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(pd && cq && other_cq && mr, "objects");
	qps[0] = make(cq), qps[1] = make(other_cq);
	for (int n = 0; n < 2; n++) connect_to(qps[n], qps[!n]->qp_num);

	struct rdma_event_channel *listening = rdma_create_event_channel(), *channel = rdma_create_event_channel();
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(PORT) }, own = any;
	struct rdma_cm_id *listener, *bound;
	need(!rdma_create_id(listening, &listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, (struct sockaddr *)&any) && !rdma_listen(listener, 4), "rdma_listen");
	inet_pton(AF_INET, "10.93.0.1", &own.sin_addr);
	own.sin_port = htons(PORT + 1);
	need(!rdma_create_id(channel, &bound, NULL, RDMA_PS_TCP) && !rdma_bind_addr(bound, (struct sockaddr *)&own), "rdma_bind_addr");

	pthread_t writer;
	int is_busy = !strcmp(arguments[2], "busy");
	if (is_busy) need(!pthread_create(&writer, NULL, writes, NULL), "pthread_create");
	follows_addresses();
	ip("address add 10.94.0.1/24 dev %s");
	event(IBV_EVENT_GID_CHANGE);
	request(listening, channel, "10.94.0.1");
	follows_mtu();
	follows_link();
	int before = written;
	while (is_busy && __atomic_load_n(&written, __ATOMIC_RELAXED) == before) continue;
	snprintf(move, sizeof move, "link set %%s netns %s", arguments[3]);
	ends(channel, bound, is_busy ? move : "link del %s");
	if (is_busy) need(!pthread_join(writer, NULL), "pthread_join");
	need(!rdma_destroy_id(listener), "rdma_destroy_id");
	for (int n = 0; n < 2; n++) need(!ibv_destroy_qp(qps[n]), "ibv_destroy_qp");
	need(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	need(!ibv_destroy_cq(cq) && !ibv_destroy_cq(other_cq), "ibv_destroy_cq");
	need(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	need(!ibv_close_device(context), "ibv_close_device");
	return 0;
}
