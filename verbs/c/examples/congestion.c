/* A queue pair paced by HPCC++, which says how it sends.
 *
 *   cc verbs/c/examples/congestion.c $(PKG_CONFIG_PATH=target/release/dropin pkg-config --cflags --libs ferroce) -o congestion
 *   ferroce run --port ring:example --ip 10.0.0.1 -- ./congestion
 */
#include <ferroce.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

/* To itself: two programs would exchange number, GID and PSN. */
static void connect_to_itself(struct ibv_qp *qp, union ibv_gid gid)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num};
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = gid;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(!devices || !devices[0], "no device");
	struct ibv_context *context = ibv_open_device(devices[0]);
	check(!context, "open");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	check(!qp, "queue pair");
	union ibv_gid gid;
	check(ibv_query_gid(context, 1, 0, &gid), "GID");

	check(ferroce_set_congestion(qp, "hpcc,line_rate=10G,base_rtt=100us"), "congestion control");
	connect_to_itself(qp, gid);
	struct ferroce_congestion now = {.size = sizeof now};
	check(ferroce_query_congestion(qp, &now), "query");
	printf("window %" PRIu64 " bytes, in flight %" PRIu64 ", rate %" PRIu64 " bit/s, busiest link %.0f %% full\n", now.window,
	       now.in_flight, now.rate, 100 * now.utilisation);

	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(devices);
	return 0;
}
