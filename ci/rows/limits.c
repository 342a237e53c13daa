/*
 * Opens the first device, makes an object of each kind, and sends a WRITE from one queue pair to another of the device. Says which call fails,
 * with its errno. With any argument, does nothing. ci/programs runs it within small limits.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 4096, RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

/* Longer than the WRITE takes on a busy machine, ms. */
enum { LONGEST = 10000 };

static char memory[2 * BYTES];

#define STEP(does, what) do { errno = 0; if (!(does)) { fprintf(stderr, "limits: %s: %s\n", what, strerror(errno)); return 1; } } while (0)

static int connects(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid, int index)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 5, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 1, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = index, .hop_limit = 5 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 5, .max_rd_atomic = 1 };
	return !ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) &&
		!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER) &&
		!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int main(int words, char **arguments)
{
	(void)arguments;
	if (words > 1) return 0;
	struct ibv_device **devices;
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	union ibv_gid gid;
	int count = 0, index = 1;
	STEP((devices = ibv_get_device_list(&count)) && count, "ibv_get_device_list");
	STEP(context = ibv_open_device(devices[0]), "ibv_open_device");
	STEP(pd = ibv_alloc_pd(context), "ibv_alloc_pd");
	STEP(mr = ibv_reg_mr(pd, memory, sizeof memory, RIGHTS), "ibv_reg_mr");
	STEP(channel = ibv_create_comp_channel(context), "ibv_create_comp_channel");
	STEP(cq = ibv_create_cq(context, 64, NULL, channel, 0), "ibv_create_cq");
	for (int n = 0; n < 2; n++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
		STEP(qp[n] = ibv_create_qp(pd, &init), "ibv_create_qp");
	}
	STEP(!ibv_query_gid(context, 1, index, &gid), "ibv_query_gid");
	for (int n = 0; n < 2; n++) STEP(connects(qp[n], qp[1 - n]->qp_num, gid, index), "ibv_modify_qp");
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)memory + BYTES, mr->rkey } }, *bad;
	STEP(!ibv_post_send(qp[0], &wr, &bad), "ibv_post_send");
	struct ibv_wc wc;
	int found = 0;
	for (int look = 0; look < LONGEST && !found; look++) if (!(found = ibv_poll_cq(cq, 1, &wc))) usleep(1000);
	STEP(found == 1 && wc.status == IBV_WC_SUCCESS, "the completion of the WRITE");
	for (int n = 0; n < 2; n++) STEP(!ibv_destroy_qp(qp[n]), "ibv_destroy_qp");
	STEP(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "what was made goes");
	STEP(!ibv_close_device(context), "ibv_close_device");
	ibv_free_device_list(devices);
	return 0;
}
