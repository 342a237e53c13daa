/* A region of memory by librpma: the client writes, flushes and reads it back; the server compares its content then.
 * persistent serve ADDRESS: the server. persistent ADDRESS: the client. It exits with 0 if all bytes are as they must be. */
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT "7204"
#define LENGTH ((size_t)1 << 20)
#define ROUNDS 8

#define TRY(call) do { \
		int status_ = (call); \
		if (status_) { fprintf(stderr, "error: %s: %s\n", #call, rpma_err_2str(status_)); exit(1); } \
	} while (0)

struct greeting {
	unsigned char size;
	char descriptor[64];
};

static unsigned char byte_of(unsigned round, size_t at)
{
	return (unsigned char)((at * 7 + at / 251 + round * 31) % 253);
}

static void compare(const char *where, const unsigned char *bytes, unsigned round)
{
	for (size_t at = 0; at < LENGTH; at++)
		if (bytes[at] != byte_of(round, at)) {
			fprintf(stderr, "error: %s, round %u: byte %zu differs\n", where, round, at);
			exit(1);
		}
}

static void expect(struct rpma_conn *conn, enum rpma_conn_event expected)
{
	enum rpma_conn_event event;

	TRY(rpma_conn_next_event(conn, &event));
	if (event != expected) {
		fprintf(stderr, "error: the connection says %s\n", rpma_utils_conn_event_2str(event));
		exit(1);
	}
}

/* Waits for one completion. */
static void complete(struct rpma_conn *conn)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;

	TRY(rpma_conn_get_cq(conn, &cq));
	TRY(rpma_cq_wait(cq));
	TRY(rpma_cq_get_wc(cq, 1, &wc, NULL));
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "error: a request failed: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static unsigned char *memory(void)
{
	void *bytes = NULL;

	if (posix_memalign(&bytes, 4096, LENGTH))
		exit(1);
	return memset(bytes, 0, LENGTH);
}

static void serve(const char *address)
{
	struct ibv_context *context;
	struct rpma_peer *peer;
	struct rpma_ep *endpoint;
	struct rpma_conn_req *request;
	struct rpma_conn *conn;
	struct rpma_mr_local *region;
	struct greeting greeting;
	struct rpma_conn_private_data data = {&greeting, sizeof(greeting)};
	unsigned char *bytes = memory();
	size_t size;

	TRY(rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	TRY(rpma_peer_new(context, &peer));
	TRY(rpma_mr_reg(peer, bytes, LENGTH, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
		RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &region));
	TRY(rpma_mr_get_descriptor_size(region, &size));
	if (size > sizeof(greeting.descriptor))
		exit(1);
	greeting.size = (unsigned char)size;
	TRY(rpma_mr_get_descriptor(region, greeting.descriptor));
	TRY(rpma_ep_listen(peer, address, PORT, &endpoint));
	TRY(rpma_ep_next_conn_req(endpoint, NULL, &request));
	TRY(rpma_conn_req_connect(&request, &data, &conn));
	expect(conn, RPMA_CONN_ESTABLISHED);
	expect(conn, RPMA_CONN_CLOSED);
	compare("the server", bytes, ROUNDS - 1);
	TRY(rpma_conn_disconnect(conn));
	TRY(rpma_conn_delete(&conn));
	TRY(rpma_ep_shutdown(&endpoint));
	TRY(rpma_mr_dereg(&region));
	TRY(rpma_peer_delete(&peer));
}

static void demand(const char *address)
{
	struct ibv_context *context;
	struct rpma_peer *peer;
	struct rpma_conn_req *request;
	struct rpma_conn *conn;
	struct rpma_mr_local *sent, *fetched;
	struct rpma_mr_remote *remote;
	struct rpma_conn_private_data data;
	struct greeting greeting;
	unsigned char *source = memory(), *target = memory();

	TRY(rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_REMOTE, &context));
	TRY(rpma_peer_new(context, &peer));
	TRY(rpma_mr_reg(peer, source, LENGTH, RPMA_MR_USAGE_WRITE_SRC, &sent));
	TRY(rpma_mr_reg(peer, target, LENGTH, RPMA_MR_USAGE_READ_DST, &fetched));
	TRY(rpma_conn_req_new(peer, address, PORT, NULL, &request));
	TRY(rpma_conn_req_connect(&request, NULL, &conn));
	expect(conn, RPMA_CONN_ESTABLISHED);
	TRY(rpma_conn_get_private_data(conn, &data));
	if (data.len < sizeof(greeting)) {
		fprintf(stderr, "error: private data of %u bytes\n", data.len);
		exit(1);
	}
	memcpy(&greeting, data.ptr, sizeof(greeting));
	TRY(rpma_mr_remote_from_descriptor(greeting.descriptor, greeting.size, &remote));
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (size_t at = 0; at < LENGTH; at++)
			source[at] = byte_of(round, at);
		TRY(rpma_write(conn, remote, 0, sent, 0, LENGTH, RPMA_F_COMPLETION_ON_ERROR, NULL));
		TRY(rpma_flush(conn, remote, 0, LENGTH, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL));
		complete(conn);
		TRY(rpma_read(conn, fetched, 0, remote, 0, LENGTH, RPMA_F_COMPLETION_ALWAYS, NULL));
		complete(conn);
		compare("the client", target, round);
	}
	TRY(rpma_conn_disconnect(conn));
	expect(conn, RPMA_CONN_CLOSED);
	TRY(rpma_conn_delete(&conn));
	TRY(rpma_mr_remote_delete(&remote));
	TRY(rpma_mr_dereg(&sent));
	TRY(rpma_mr_dereg(&fetched));
	TRY(rpma_peer_delete(&peer));
}

int main(int count, char **words)
{
	if (count == 3 && !strcmp(words[1], "serve"))
		serve(words[2]);
	else if (count == 2)
		demand(words[1]);
	else
		return 2;
	puts("all data equal");
	return 0;
}
