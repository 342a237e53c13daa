/*
 * Connections by librdmacm, between two hosts: refused, accepted, ended; private data each way; shared receive queues of identifiers.
 *
 *   connections [SERVER]
 *
 * Round 0 is refused by the server, with words. Rounds 1 and 2 are accepted, with words, and the server receives from a shared queue
 * (by rdma_create_srq, then by rdma_create_srq_ex). In round 3 both bring their own queue pairs: rdma_init_qp_attr says how they are
 * taken to RTS, on the server before it accepts, and the client says rdma_establish. A message goes each way, the client disconnects, and
 * both get events of the end: first that it has come, then that the identifiers have rested.
 */
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 4, OWN = 3, CONSUMER = 28 };

static struct rdma_event_channel *channel;
static struct rdma_cm_event *event;
static char words[] = "round ?", memory[256];

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "connections: %s (%s)\n", what, strerror(errno));
	exit(1);
}

/* The next event, which must be this one. */
static void next(enum rdma_cm_event_type wanted)
{
	need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event == wanted) return;
	fprintf(stderr, "connections: %s came, status %d, not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(wanted));
	exit(1);
}

static void done(void) { need(!rdma_ack_cm_event(event), "rdma_ack_cm_event"); }

static void expect(enum rdma_cm_event_type wanted)
{
	next(wanted);
	done();
}

static void heard(const char *wanted)
{
	need(event->param.conn.private_data_len >= strlen(wanted) && !memcmp(event->param.conn.private_data, wanted, strlen(wanted)), wanted);
}

static struct rdma_conn_param says(const char *what)
{
	return (struct rdma_conn_param) { .private_data = what, .private_data_len = strlen(what) + 1, .responder_resources = 1, .initiator_depth = 1,
		.retry_count = 7, .rnr_retry_count = 7 };
}

static const struct ibv_qp_init_attr small = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC };

/* The call returns the new object in its argument. */
static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = small;
	need(!rdma_create_qp(id, NULL, &init), "rdma_create_qp");
	need(init.send_cq == id->send_cq && init.recv_cq == id->recv_cq && init.srq == id->srq, "what it was made with");
}

/* One that librdmacm does not know. */
static struct ibv_qp *own_qp(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = small;
	init.send_cq = init.recv_cq = cq;
	need(!!cq, "ibv_create_cq");
	struct ibv_qp *qp = ibv_create_qp(id->pd, &init);
	need(!!qp, "ibv_create_qp");
	return qp;
}

static void take_to(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attributes = { .qp_state = state };
	int mask;
	need(!rdma_init_qp_attr(id, &attributes, &mask), "rdma_init_qp_attr");
	need(!ibv_modify_qp(qp, &attributes, mask), "ibv_modify_qp");
}

static void completed(struct ibv_cq *cq, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc)));
	need(found == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == opcode, "a completion");
}

static void send_words(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)memory, sizeof words, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	strcpy(memory, words);
	need(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	completed(qp->send_cq, IBV_WC_SEND);
}

static void receive(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)memory + 128, 64, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	need(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

static void rests(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
	if (id->qp) rdma_destroy_qp(id);
	else {
		struct ibv_cq *cq = qp->send_cq;
		need(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq), "its own goes");
	}
	if (id->srq) rdma_destroy_srq(id);
	need(!rdma_destroy_id(id), "rdma_destroy_id");
}

static void serve(int round)
{
	next(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	struct rdma_event_channel *listening = channel;
	heard(words);
	done();
	if (round == 0) {
		need(!rdma_reject(id, "not now", 8), "rdma_reject");
		need(!rdma_destroy_id(id), "rdma_destroy_id");
		return;
	}
	/* The next round's request may come before this one's end: each connection has a separate channel. */
	channel = rdma_create_event_channel();
	need(channel && !rdma_migrate_id(id, channel), "rdma_migrate_id");
	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex extended = { .attr = basic.attr, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE, .srq_type = IBV_SRQT_BASIC };
	struct rdma_conn_param welcome = says("welcome");
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, sizeof memory);
	struct ibv_qp *qp;
	need(!!mr, "rdma_reg_msgs");
	if (round == OWN) {
		qp = own_qp(id);
		take_to(id, qp, IBV_QPS_INIT);
		receive(qp, mr);
		take_to(id, qp, IBV_QPS_RTR);
		take_to(id, qp, IBV_QPS_RTS);
		welcome.qp_num = qp->qp_num;
	} else {
		need(!(round == 1 ? rdma_create_srq(id, NULL, &basic) : rdma_create_srq_ex(id, &extended)), "a shared queue");
		make_qp(id);
		qp = id->qp;
		need(qp->srq == id->srq, "a queue pair that receives from it");
		struct ibv_sge sge = { (uintptr_t)memory + 128, 64, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		need(!ibv_post_srq_recv(id->srq, &wr, &bad), "ibv_post_srq_recv");
	}
	need(!rdma_accept(id, &welcome), "rdma_accept");
	expect(RDMA_CM_EVENT_ESTABLISHED);
	completed(qp->recv_cq, IBV_WC_RECV);
	need(!strcmp(memory + 128, words), "the words");
	send_words(qp, mr);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	need(!rdma_disconnect(id), "rdma_disconnect");
	rdma_dereg_mr(mr);
	rests(id, qp);
	rdma_destroy_event_channel(channel);
	channel = listening;
}

static void ask(int round, struct sockaddr *server)
{
	struct rdma_cm_id *id;
	need(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, server, 2000), "rdma_resolve_addr");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	need(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, sizeof memory);
	struct rdma_conn_param hello = says(words);
	need(!!mr, "rdma_reg_msgs");
	if (round != OWN) make_qp(id);
	struct ibv_qp *qp = round == OWN ? own_qp(id) : id->qp;
	if (round == OWN) take_to(id, qp, IBV_QPS_INIT);
	hello.qp_num = qp->qp_num;
	receive(qp, mr);
	need(!rdma_connect(id, &hello), "rdma_connect");
	if (round == 0) {
		next(RDMA_CM_EVENT_REJECTED);
		need(event->status == CONSUMER, "the program's own refusal");
		heard("not now");
		done();
		rdma_dereg_mr(mr);
		rdma_destroy_qp(id);
		need(!rdma_destroy_id(id), "rdma_destroy_id");
		return;
	}
	next(round == OWN ? RDMA_CM_EVENT_CONNECT_RESPONSE : RDMA_CM_EVENT_ESTABLISHED);
	heard("welcome");
	done();
	if (round == OWN) {
		take_to(id, qp, IBV_QPS_RTR);
		take_to(id, qp, IBV_QPS_RTS);
		need(!rdma_establish(id), "rdma_establish");
	}
	send_words(qp, mr);
	completed(qp->recv_cq, IBV_WC_RECV);
	need(!strcmp(memory + 128, words), "the words");
	need(!rdma_disconnect(id), "rdma_disconnect");
	expect(RDMA_CM_EVENT_DISCONNECTED);
	rdma_dereg_mr(mr);
	rests(id, qp);
}

int main(int count, char **arguments)
{
	struct rdma_addrinfo hints = { .ai_flags = count > 1 ? 0 : RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
	struct rdma_cm_id *listener = NULL;
	channel = rdma_create_event_channel();
	need(channel && !rdma_getaddrinfo(count > 1 ? arguments[1] : NULL, "18530", &hints, &found), "rdma_getaddrinfo");
	if (count < 2) {
		need(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, found->ai_src_addr) && !rdma_listen(listener, 4), "rdma_listen");
	}
	for (int round = 0; round < ROUNDS; round++) {
		words[sizeof words - 2] = '0' + round;
		if (listener) serve(round);
		else ask(round, found->ai_dst_addr);
	}
	rdma_freeaddrinfo(found);
	if (listener) need(!rdma_destroy_id(listener), "rdma_destroy_id");
	rdma_destroy_event_channel(channel);
	puts("connections: refused, accepted, ended");
	return 0;
}
