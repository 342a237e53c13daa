/*
 * Threads that call librdmacm in any order: identifiers are created, bound, resolved, connected to listeners of the same process, moved to
 * another channel and destroyed, while other threads take their events. It is also the fuzz target `cm`.
 */
#include "stress.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>

enum { CHANNELS = 2, IDS = 12, PORTS = 2, FIRST_PORT = 7000 };

static struct rdma_event_channel *channels[CHANNELS];
static struct slot ids[IDS];
static atomic_ulong requests, established;

static int may_return(int error)
{
	switch (error) {
	case EINVAL: case EBUSY: case ENOMEM: case EAGAIN: case EADDRINUSE: case EADDRNOTAVAIL: return 1;
	}
	return 0;
}

static int destroy_id(void *object)
{
	struct rdma_cm_id *id = object;
	if (id->qp) rdma_destroy_qp(id);
	return rdma_destroy_id(id);
}

static struct rdma_event_channel *some_channel(struct choices *choices) { return channels[below(choices, CHANNELS)]; }

/* Any address of this host, with one of few ports. */
static struct sockaddr *address(struct choices *choices, struct sockaddr_in *place)
{
	static const char *const hosts[] = { "10.0.0.1", "10.0.0.1", "127.0.0.1", "0.0.0.0" };
	*place = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(FIRST_PORT + below(choices, PORTS)) };
	need(inet_pton(AF_INET, hosts[below(choices, 4)], &place->sin_addr) == 1, "inet_pton");
	return (struct sockaddr *)place;
}

static struct rdma_conn_param parameters(struct choices *choices)
{
	static const char data[256] = "private data";
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = below(choices, 4) ? below(choices, 57) : below(choices, 256),
		.responder_resources = below(choices, 32), .initiator_depth = below(choices, 32), .retry_count = below(choices, 8),
		.rnr_retry_count = below(choices, 8), .qp_num = next(choices) };
}

static void create_one(struct choices *choices)
{
	struct slot *slot = &ids[below(choices, IDS)];
	struct rdma_cm_id *id = NULL;
	if (!take_empty(slot)) return;
	struct rdma_event_channel *channel = some_channel(choices);
	allowed(rdma_create_id(channel, &id, slot, below(choices, 4) ? RDMA_PS_TCP : RDMA_PS_UDP), "rdma_create_id");
	fill(slot, id);
}

static void create_qp(struct choices *choices, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = id->ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC,
		.cap = { 1 + below(choices, 8), 1 + below(choices, 8), 1, 1, 0 } };
	if (!id->qp) allowed(rdma_create_qp(id, NULL, &init), "rdma_create_qp");
}

/* A further step towards a connection, whatever the identifier's state. */
static void advance(struct choices *choices, struct rdma_cm_id *id)
{
	struct sockaddr_in place, other;
	struct rdma_conn_param wanted;
	switch (below(choices, 14)) {
	case 0: allowed(rdma_bind_addr(id, address(choices, &place)), "rdma_bind_addr"); break;
	case 1: allowed(rdma_listen(id, below(choices, 8)), "rdma_listen"); break;
	case 2: {
		struct sockaddr *from = below(choices, 4) ? NULL : address(choices, &other);
		allowed(rdma_resolve_addr(id, from, address(choices, &place), 100), "rdma_resolve_addr");
		break;
	}
	case 3: allowed(rdma_resolve_route(id, 100), "rdma_resolve_route"); break;
	case 4: case 5: create_qp(choices, id); break;
	case 6: case 7: case 8:
		wanted = parameters(choices);
		allowed(rdma_connect(id, below(choices, 4) ? &wanted : NULL), "rdma_connect");
		break;
	case 9: allowed(rdma_disconnect(id), "rdma_disconnect"); break;
	case 10: allowed(rdma_establish(id), "rdma_establish"); break;
	case 11: allowed(rdma_migrate_id(id, some_channel(choices)), "rdma_migrate_id"); break;
	case 12: if (id->qp) rdma_destroy_qp(id); break;
	default: {
		int shared = below(choices, 2);
		allowed(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &shared, sizeof shared), "rdma_set_option");
	}
	}
}

/* Everything that a client does, or a server, in one step: a connection takes eight calls in their order. */
static void connect_one(struct choices *choices, struct rdma_cm_id *id)
{
	struct sockaddr_in place;
	struct rdma_conn_param wanted = parameters(choices);
	if (below(choices, 3) == 0) {
		allowed(rdma_bind_addr(id, address(choices, &place)), "rdma_bind_addr");
		allowed(rdma_listen(id, below(choices, 8)), "rdma_listen");
		return;
	}
	allowed(rdma_resolve_addr(id, NULL, address(choices, &place), 100), "rdma_resolve_addr");
	allowed(rdma_resolve_route(id, 100), "rdma_resolve_route");
	create_qp(choices, id);
	allowed(rdma_connect(id, &wanted), "rdma_connect");
}

/* A request's new identifier is accepted, rejected, kept for later or destroyed. */
static void answer(struct choices *choices, struct rdma_cm_id *id)
{
	struct rdma_conn_param wanted = parameters(choices);
	unsigned choice = below(choices, 8);
	requests++;
	if (choice < 5) {
		create_qp(choices, id);
		allowed(rdma_accept(id, below(choices, 4) ? &wanted : NULL), "rdma_accept");
	} else if (choice == 5) {
		allowed(rdma_reject(id, wanted.private_data, wanted.private_data_len), "rdma_reject");
	}
	struct slot *slot = &ids[below(choices, IDS)];
	if (take_empty(slot)) {
		id->context = slot;
		fill(slot, id);
	} else {
		need(!destroy_id(id), "rdma_destroy_id");
	}
}

/* Takes an event. While it is not acknowledged its identifier stays, also if another thread destroys it. */
static void hear(struct choices *choices)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *asks = NULL;
	struct rdma_event_channel *channel = some_channel(choices);
	/* A message of the peer may be on its way. */
	struct pollfd soon = { .fd = channel->fd, .events = POLLIN };
	if (below(choices, 8) == 7) ppoll(&soon, 1, &(struct timespec){ .tv_nsec = 100000 }, NULL);
	int result = rdma_get_cm_event(channel, &event);
	allowed(result, "rdma_get_cm_event");
	if (result) return;
	events++;
	struct rdma_cm_id *heard = event->listen_id ? event->listen_id : event->id;
	struct slot *slot = heard->context;
	need(slot >= ids && slot < ids + IDS, "the event's identifier is alive");
	need(heard->channel == channels[0] || heard->channel == channels[1], "and in a channel");
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) asks = event->id;
	established += event->event == RDMA_CM_EVENT_ESTABLISHED;
	allowed(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	if (asks) answer(choices, asks);
}

static void query(struct rdma_cm_id *id)
{
	/* An address is there with its port. */
	need(!rdma_get_src_port(id) || rdma_get_local_addr(id)->sa_family == AF_INET, "rdma_get_src_port");
	need(!rdma_get_dst_port(id) || rdma_get_peer_addr(id)->sa_family == AF_INET, "rdma_get_dst_port");
	calls++;
}

static void step(struct choices *choices)
{
	struct slot *slot = &ids[below(choices, IDS)];
	unsigned choice = below(choices, 100);
	if (choice < 15) create_one(choices);
	else if (choice < 23) destroy_one(choices);
	else if (choice < 75) hear(choices);
	else if (choice < 77) { if (use(slot)) { query(slot->object); leave(slot); } }
	else if (!pthread_rwlock_trywrlock(&slot->lock)) {
		/* One thread at a time prepares an identifier; any thread takes its events. */
		if (slot->object && choice < 95) connect_one(choices, slot->object);
		else if (slot->object) advance(choices, slot->object);
		leave(slot);
	}
}

static void begin(const char *device)
{
	(void)device; /* The port of the environment is the only one. */
	for (unsigned n = 0; n < CHANNELS; n++) {
		channels[n] = rdma_create_event_channel();
		need(!!channels[n], "rdma_create_event_channel");
		need(!fcntl(channels[n]->fd, F_SETFL, O_NONBLOCK), "fcntl");
	}
}

static void check_end(void) { need_silence(channels[0]->fd, channels[1]->fd); }

static void end(void)
{
	for (unsigned n = 0; n < CHANNELS; n++) rdma_destroy_event_channel(channels[n]);
	printf("%lu calls, %lu objects, %lu events, %lu requests (%lu sides established)\n", calls, created, events, requests, established);
}

static const struct program program = {
	.kinds = { { ids, IDS, destroy_id } }, .begin = begin, .step = step, .may_return = may_return, .check_end = check_end, .end = end,
};
