/*
 * Programs that end with a connection, each in another way, and their idle peer.
 *
 *   ended                  server: waits for the end of one connection after the other
 *   ended WAY SERVER       client: connects, and ends
 *
 * Nothing is under way when a client ends, so no timer runs at the server: that its connection has ended, it learns by a DREQ or never. WAY
 * is `SIGKILL` or `SIGINT`, a signal to itself; `_exit`; `unguarded`: it kills its guard, sends once more, and disconnects; or `removed`, the
 * last: when the server has disconnected, the interface is removed, and the guard ends before the program.
 */
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Longer than a DREQ takes on a busy machine, ms. The server that hears nothing waits in vain however long this is. */
enum { CONNECTIONS = 5, LONGEST = 10000, BYTES = 64 };

/* Sends a signal to the guard of this network namespace's only program; fails without one. */
#define SIGNAL(signal) \
	"there=1; for process in /proc/[0-9]*; do" \
	" if [ \"$(readlink $process/ns/net)\" = \"$(readlink /proc/self/ns/net)\" ] && tr '\\0' ' ' <$process/cmdline | grep -q 'ferroce guard $';" \
	" then kill -" signal " ${process#/proc/} && there=0; fi; done 2>/dev/null; exit $there"

static char memory[BYTES];

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "ended: error: %s (%s)\n", what, strerror(errno));
	exit(1);
}

static struct rdma_cm_id *endpoint(const char *server)
{
	struct rdma_addrinfo hints = { .ai_flags = server ? 0 : RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .sq_sig_all = 1 };
	struct rdma_cm_id *id;
	need(!rdma_getaddrinfo((char *)server, "18531", &hints, &found), "rdma_getaddrinfo");
	need(!rdma_create_ep(&id, found, NULL, &init), "rdma_create_ep");
	rdma_freeaddrinfo(found);
	return id;
}

/* A message from one side to the other, whose acknowledgement the sender awaits. */
static void say(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	struct ibv_wc wc;
	need(!rdma_post_send(id, NULL, memory, BYTES, mr, 0) && rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "a message leaves");
}

static void hear(struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	need(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "a message comes");
}

static void ends(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;
	need(!rdma_get_cm_event(id->channel, &event) && event->event == RDMA_CM_EVENT_DISCONNECTED, "the event is RDMA_CM_EVENT_DISCONNECTED");
	rdma_ack_cm_event(event);
}

/* Waits for the end of a connection that is idle, or ends it. The identifier has its own channel, and rdma_accept has waited for ESTABLISHED. */
static void serve(struct rdma_cm_id *listener, int is_last)
{
	struct rdma_cm_id *id;
	need(!rdma_get_request(listener, &id), "rdma_get_request");
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, BYTES);
	need(mr && !rdma_post_recv(id, NULL, memory, BYTES, mr) && !rdma_accept(id, NULL), "rdma_accept");
	say(id, mr);
	struct pollfd end = { .fd = id->channel->fd, .events = POLLIN };
	if (is_last) need(!rdma_disconnect(id), "rdma_disconnect");
	else {
		need(poll(&end, 1, LONGEST) == 1, "the client has ended, and no event says so");
		ends(id);
	}
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
}

int main(int count, char **arguments)
{
	if (count < 3) {
		struct rdma_cm_id *listener = endpoint(NULL);
		need(!rdma_listen(listener, CONNECTIONS), "rdma_listen");
		for (int n = 0; n < CONNECTIONS; n++) serve(listener, n + 1 == CONNECTIONS);
		rdma_destroy_ep(listener);
		return 0;
	}
	const char *way = arguments[1];
	struct rdma_cm_id *id = endpoint(arguments[2]);
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, BYTES);
	need(mr && !rdma_post_recv(id, NULL, memory, BYTES, mr) && !rdma_connect(id, NULL), "rdma_connect");
	hear(id);
	need(waitpid(-1, NULL, WNOHANG | __WALL) == -1 && errno == ECHILD, "the program has no child that it did not start");
	if (!strcmp(way, "SIGKILL")) raise(SIGKILL);
	if (!strcmp(way, "SIGINT")) raise(SIGINT);
	if (!strcmp(way, "_exit")) _exit(0);
	if (!strcmp(way, "removed")) {
		ends(id);
		need(!system(SIGNAL("0")), "the program has a guard");
		need(!system("ip link set eth0 down && ip link del eth0"), "the interface is removed");
		for (int looks = 0; !system(SIGNAL("0")); looks++) need(looks < LONGEST / 100 && !usleep(100000), "the guard ends with the interface");
		return 0;
	}
	need(!system(SIGNAL("KILL")), "the program has a guard");
	say(id, mr);
	need(!rdma_disconnect(id), "rdma_disconnect");
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	return 0;
}
