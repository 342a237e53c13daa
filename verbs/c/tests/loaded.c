/*
 * A process that loads librdmacm.so.1 by dlopen(3) alone, as plugins do: it works, its devices are those of libibverbs.so.1, which contains its
 * code, and its names are not visible to programs that load only libibverbs.so.1.
 */
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s failed\n", #what); return 1; } } while (0)

int main(void)
{
	void *rdmacm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(rdmacm);
	struct ibv_context **(*get_devices)(int *) = dlsym(rdmacm, "rdma_get_devices");
	void (*free_devices)(struct ibv_context **) = dlsym(rdmacm, "rdma_free_devices");
	CHECK(get_devices && free_devices);
	int count = 0;
	struct ibv_context **contexts = get_devices(&count);
	CHECK(contexts && count == 1);

	void *ibverbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	CHECK(ibverbs);
	struct ibv_device **(*list)(int *) = dlsym(ibverbs, "ibv_get_device_list");
	void (*free_list)(struct ibv_device **) = dlsym(ibverbs, "ibv_free_device_list");
	CHECK(list && free_list);
	struct ibv_device **devices = list(&count);
	CHECK(devices && count == 1 && devices[0] == contexts[0]->device);
	CHECK(!dlsym(ibverbs, "rdma_get_devices") && !dlsym(ibverbs, "rread"));
	free_list(devices);
	free_devices(contexts);
	printf("loaded\n");
	return 0;
}
