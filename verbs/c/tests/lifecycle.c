/*
 * A program's life with the library: threads, several contexts, fork, cancelled threads, an idle wait, and an end that leaves nothing.
 *
 *   lifecycle DEVICE loop     on a port that receives its own frames: what data does
 *   lifecycle DEVICE idle     on a port with a descriptor: what a wait costs
 *   lifecycle DEVICE looks    on one without
 *   lifecycle DEVICE killed   opens the device and is killed
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4096, HALF = SIZE / 2, MESSAGES = 2000, THREADS = 4 };

/* A queue pair that is its own peer, with what it needs. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
};

static const char *device_name;

static void need(int ok, const char *what)
{
	if (ok) return;
	fprintf(stderr, "lifecycle: %s (%s)\n", what, strerror(errno));
	exit(1);
}

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	need(!!list, "ibv_get_device_list");
	for (struct ibv_device **device = list; *device; device++)
		if (!strcmp(ibv_get_device_name(*device), device_name)) context = ibv_open_device(*device);
	ibv_free_device_list(list);
	need(!!context, "ibv_open_device");
	return context;
}

static void connect_to_itself(struct side *side)
{
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	need(!ibv_modify_qp(side->qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attributes = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = side->qp->qp_num, .max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1 } };
	need(!ibv_query_gid(side->context, 1, 0, &attributes.ah_attr.grh.dgid), "ibv_query_gid");
	need(!ibv_modify_qp(side->qp, &attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attributes = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	need(!ibv_modify_qp(side->qp, &attributes, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
		| IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static struct side make(struct ibv_context *context)
{
	struct side side = { .context = context, .pd = ibv_alloc_pd(context), .channel = ibv_create_comp_channel(context), .memory = calloc(1, SIZE) };
	need(side.pd && side.channel && side.memory, "a domain, a channel, memory");
	side.cq = ibv_create_cq(context, 16, NULL, side.channel, 0);
	side.mr = ibv_reg_mr(side.pd, side.memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	side.qp = ibv_create_qp(side.pd, &init);
	need(side.cq && side.mr && side.qp, "a completion queue, a region, a queue pair");
	return side;
}

static void unmake(struct side *side)
{
	need(!ibv_destroy_qp(side->qp) && !ibv_dereg_mr(side->mr) && !ibv_destroy_cq(side->cq) && !ibv_destroy_comp_channel(side->channel)
		&& !ibv_dealloc_pd(side->pd), "all goes");
	free(side->memory);
}

/* One WRITE to itself, whose completion is polled for or waited for. */
static void write_once(struct side *side, uint32_t number, int sleeps)
{
	struct ibv_sge sge = { (uintptr_t)side->memory, sizeof number, side->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)side->memory + HALF, side->mr->rkey } }, *bad;
	struct ibv_wc wc;
	int found;
	memcpy(side->memory, &number, sizeof number);
	need(!sleeps || !ibv_req_notify_cq(side->cq, 0), "ibv_req_notify_cq");
	need(!ibv_post_send(side->qp, &wr, &bad), "ibv_post_send");
	if (sleeps) {
		struct ibv_cq *rang;
		void *user;
		need(!ibv_get_cq_event(side->channel, &rang, &user) && rang == side->cq, "ibv_get_cq_event");
		ibv_ack_cq_events(side->cq, 1);
	}
	while (!(found = ibv_poll_cq(side->cq, 1, &wc)));
	need(found == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == number, "a completion");
	need(!memcmp(side->memory + HALF, &number, sizeof number), "the data");
}

static void write_many(struct side *side)
{
	for (uint32_t number = 1; number <= MESSAGES; number++) write_once(side, number, number % 16 == 0);
}

static void *worker(void *context)
{
	struct side side = make(context);
	connect_to_itself(&side);
	write_many(&side);
	unmake(&side);
	return NULL;
}

/* Each thread with separate objects, on one context or on one each. */
static void threads(struct ibv_context *shared)
{
	pthread_t all[THREADS];
	struct ibv_context *own[THREADS];
	for (int n = 0; n < THREADS; n++) {
		own[n] = shared ? shared : open_device();
		need(!pthread_create(&all[n], NULL, worker, own[n]), "pthread_create");
	}
	for (int n = 0; n < THREADS; n++) {
		need(!pthread_join(all[n], NULL), "pthread_join");
		need(shared || !ibv_close_device(own[n]), "ibv_close_device");
	}
}

/* Children that leave, each in its way, take nothing with them. */
static void forks(struct side *side)
{
	for (int way = 0; way < 3; way++) {
		pid_t child = fork();
		int status;
		need(child >= 0, "fork");
		if (!child) {
			if (way == 0) exit(0);
			if (way == 1) _exit(0);
			execl("/bin/true", "true", NULL);
		}
		write_many(side);
		need(waitpid(child, &status, 0) == child && status == 0, "a child");
		write_many(side);
	}
}

static void *waits_for_completions(void *side)
{
	struct ibv_cq *rang;
	void *user;
	ibv_get_cq_event(((struct side *)side)->channel, &rang, &user);
	return NULL;
}

static void *waits_for_events(void *side)
{
	struct ibv_async_event event;
	ibv_get_async_event(((struct side *)side)->context, &event);
	return NULL;
}

static void *polls(void *side)
{
	struct ibv_wc wc;
	while (ibv_poll_cq(((struct side *)side)->cq, 1, &wc) == 0) pthread_testcancel();
	return NULL;
}

/* A thread that is cancelled in the library ends, and leaves the library usable. */
static void cancels(struct side *side)
{
	void *(*bodies[])(void *) = { waits_for_completions, waits_for_events, polls };
	for (int n = 0; n < 30; n++) {
		pthread_t thread;
		void *result;
		need(!pthread_create(&thread, NULL, bodies[n % 3], side), "pthread_create");
		usleep(1000 * (n % 4));
		need(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED, "a cancelled thread");
		write_many(side);
	}
}

static void loop(void)
{
	struct ibv_context *context = open_device(), *second = open_device();
	struct side side = make(context), other = make(second);
	connect_to_itself(&side);
	connect_to_itself(&other);
	write_many(&side);
	write_many(&other);
	threads(context);
	threads(NULL);
	/* One context goes, the other stays. */
	unmake(&other);
	need(!ibv_close_device(second), "ibv_close_device");
	forks(&side);
	cancels(&side);
	unmake(&side);
	need(!ibv_close_device(context), "ibv_close_device");
	/* The port is free again. */
	for (int n = 0; n < 3; n++) {
		context = open_device();
		side = make(context);
		connect_to_itself(&side);
		write_many(&side);
		unmake(&side);
		need(!ibv_close_device(context), "ibv_close_device");
	}
}

static struct rusage usage(void)
{
	struct rusage now;
	getrusage(RUSAGE_SELF, &now);
	return now;
}

static long microseconds(struct rusage usage)
{
	return 1000000 * (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

/*
 * A thread that waits in vain for a completion uses the CPU time and the context switches of one that sleeps, whatever the clock says: in one of
 * four waits, since the start, or a peer that comes, may take a while.
 */
static void idle(long busy_at_most, long switches_at_most)
{
	enum { SECONDS = 4, WAITS = 4 };
	struct side side = make(open_device());
	struct pollfd watched = { .fd = side.channel->fd, .events = POLLIN };
	need(!ibv_req_notify_cq(side.cq, 0), "ibv_req_notify_cq");
	/* What the start left behind. */
	need(!poll(&watched, 1, 1000), "nothing comes");
	for (int wait = 0; wait < WAITS; wait++) {
		struct rusage before = usage();
		need(!poll(&watched, 1, 1000 * SECONDS), "nothing comes");
		struct rusage after = usage();
		long busy = microseconds(after) - microseconds(before);
		long switches = after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw;
		printf("idle for %d s: %ld us of CPU, %ld context switches\n", SECONDS, busy, switches);
		if (busy < busy_at_most * SECONDS && switches < switches_at_most * SECONDS) return;
	}
	need(0, "an idle program costs more");
}

int main(int count, char **arguments)
{
	need(count == 3, "lifecycle DEVICE loop|idle|looks|killed");
	device_name = arguments[1];
	if (!strcmp(arguments[2], "loop")) loop();
	else if (!strcmp(arguments[2], "idle")) idle(5000, 50);
	/* Nothing wakes a thread that waits on such a port: it looks, once a millisecond. */
	else if (!strcmp(arguments[2], "looks")) idle(60000, 1500);
	else {
		struct side side = make(open_device());
		(void)side;
		puts("open");
		fflush(stdout);
		pause();
	}
	return 0;
}
