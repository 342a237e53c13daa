/*
 * Datagrams by rsockets, between a server and a client: each datagram comes back as it was sent, byte for byte, from the address that
 * it was sent to. datagrams [SERVER]: without an argument, the server, which ends when the client says so.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define PORT 7180
#define LONGEST 2040

static void check(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "error: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void fill(unsigned char *data, int length)
{
	for (int n = 0; n < length; n++)
		data[n] = (unsigned char)(n * 7 + length);
}

static int opened(void)
{
	int kind = 0, socket = rsocket(AF_INET, SOCK_DGRAM, 0);
	socklen_t size = sizeof(kind);

	check(socket >= 0, "rsocket");
	check(rgetsockopt(socket, SOL_SOCKET, SO_TYPE, &kind, &size) == 0 && kind == SOCK_DGRAM, "SO_TYPE");
	check(rlisten(socket, 1) < 0 && errno == EOPNOTSUPP, "rlisten is refused");
	return socket;
}

static void serve(void)
{
	unsigned char data[2 * LONGEST];
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) }, from;
	socklen_t size;
	int socket = opened(), count = 0;
	ssize_t came, sent;

	check(rbind(socket, (struct sockaddr *)&at, sizeof(at)) == 0, "rbind");
	for (;;) {
		size = sizeof(from);
		came = rrecvfrom(socket, data, sizeof(data), 0, (struct sockaddr *)&from, &size);
		check(came >= 0 && size == sizeof(from), "rrecvfrom");
		sent = rsendto(socket, data, came, 0, (struct sockaddr *)&from, size);
		check(sent == came, "rsendto");
		/* It was said that nothing follows. Its answer may be lost: the client does not wait for it. */
		if (came == 0)
			break;
		count++;
	}
	check(rclose(socket) == 0, "rclose");
	printf("the server answered %d datagrams\n", count);
}

/* Whether the datagram came back, within a second. Older ones that were sent twice are passed over. */
static int comes_back(int socket, const unsigned char *sent, int length)
{
	unsigned char data[2 * LONGEST];
	struct iovec pieces[2] = { { data, 10 }, { data + 10, sizeof(data) - 10 } };
	struct sockaddr_in from;
	struct pollfd waits = { .fd = socket, .events = POLLIN };
	struct msghdr message;
	ssize_t came;

	while (rpoll(&waits, 1, 1000) == 1) {
		check(rrecv(socket, data, 1, MSG_PEEK) == (length > 0), "a peek takes nothing");
		memset(&message, 0, sizeof(message));
		message.msg_name = &from;
		message.msg_namelen = sizeof(from);
		message.msg_iov = pieces;
		message.msg_iovlen = 2;
		came = rrecvmsg(socket, &message, MSG_DONTWAIT);
		check(came >= 0, "rrecvmsg");
		check(from.sin_port == htons(PORT), "the sender's port");
		if (came == length && memcmp(data, sent, length) == 0)
			return 1;
		check(came < length, "a datagram that was not sent");
	}
	return 0;
}

static void ask(const char *server)
{
	unsigned char data[2 * LONGEST];
	struct iovec pieces[2];
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) }, name;
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = 2 };
	socklen_t size = sizeof(name);
	int socket = opened(), count = 0, tries;

	check(inet_pton(AF_INET, server, &to.sin_addr) == 1, server);
	check(rsend(socket, data, 1, 0) < 0 && errno == EDESTADDRREQ, "rsend without a peer is refused");
	check(rconnect(socket, (struct sockaddr *)&to, sizeof(to)) == 0, "rconnect");
	check(rgetpeername(socket, (struct sockaddr *)&name, &size) == 0 && name.sin_port == to.sin_port, "rgetpeername");
	check(rgetsockname(socket, (struct sockaddr *)&name, &size) == 0 && name.sin_port != 0, "rgetsockname");
	check(rsend(socket, data, LONGEST + 1, 0) < 0 && errno == EMSGSIZE, "a datagram that is too long is refused");
	check(rrecv(socket, data, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN, "nothing came yet");
	for (int length = 1; length <= LONGEST; length = length < 60 ? length + 1 : length + 33) {
		fill(data, length);
		for (tries = 0; tries < 5; tries++) {
			pieces[0] = (struct iovec){ data, length / 3 };
			pieces[1] = (struct iovec){ data + length / 3, length - length / 3 };
			check(rsendmsg(socket, &message, 0) == length, "rsendmsg");
			if (comes_back(socket, data, length))
				break;
		}
		check(tries < 5, "a datagram was lost five times");
		count++;
	}
	check(rsend(socket, data, 0, 0) == 0, "a datagram without data");
	check(rclose(socket) == 0, "rclose");
	printf("the client has %d datagrams back\n", count);
}

int main(int count, char **words)
{
	if (count > 1)
		ask(words[1]);
	else
		serve();
	return 0;
}
