/*
 * What the programs that call the verbs have in common: the device, and how its objects are destroyed.
 */
#include "stress.h"
#include <infiniband/verbs.h>

static struct ibv_context *context;

static int destroy_pd(void *object) { return ibv_dealloc_pd(object); }
static int destroy_cq(void *object) { return ibv_destroy_cq(object); }
static int destroy_srq(void *object) { return ibv_destroy_srq(object); }
static int destroy_mr(void *object) { return ibv_dereg_mr(object); }
static int destroy_ah(void *object) { return ibv_destroy_ah(object); }
static int destroy_qp(void *object) { return ibv_destroy_qp(object); }

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(!!list, "ibv_get_device_list");
	for (struct ibv_device **device = list; *device; device++)
		if (!strcmp(ibv_get_device_name(*device), name)) context = ibv_open_device(*device);
	ibv_free_device_list(list);
	need(!!context, "ibv_open_device");
}
