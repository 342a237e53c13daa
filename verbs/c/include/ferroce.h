/* What Ferroce adds to libibverbs: a queue pair's congestion control, and how it failed. `pkg-config --cflags --libs ferroce` has the flags.
 *
 * A program that uses it starts with any libibverbs. With another than Ferroce's (without `ferroce run`), ferroce_version() is 0, and the
 * other functions return EOPNOTSUPP. Structures may grow at their end in later versions: set `size` before each call. */
#ifndef FERROCE_H
#define FERROCE_H

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header: 10000 times the major version, 100 times the minor one, and the patch. */
#define FERROCE_VERSION 100

/* The version of the libibverbs that is loaded; 0 if it is not Ferroce's. */
unsigned ferroce_version(void);

/* How a queue pair sends now. */
struct ferroce_congestion {
	uint32_t size;      /* sizeof(struct ferroce_congestion) */
	uint32_t flags;     /* 0 */
	uint64_t window;    /* bytes that may be in flight; 0 before RTS */
	uint64_t in_flight; /* bytes sent and not acknowledged */
	uint64_t rate;      /* bits/s; 0: not paced */
	double utilisation; /* of the path's busiest link, as telemetry says: 1 is full, and what it
	                     * is before telemetry comes; below 0 if the algorithm computes none */
	uint64_t reserved[4]; /* 0 */
};

/* Chooses congestion control before the queue pair goes to RTS: a name, then keys of a rule in ferroce.toml, as in
 * "hpcc,line_rate=1G,base_rtt=2ms". Without this the rules of the configuration decide.
 * 0, EINVAL if the text is wrong or the queue pair is in RTS already (FERROCE_LOG=warn logs the reason), or EOPNOTSUPP. */
int ferroce_set_congestion(struct ibv_qp *qp, const char *choice);

/* 0, EINVAL if `size` is not set, or EOPNOTSUPP. */
int ferroce_query_congestion(struct ibv_qp *qp, struct ferroce_congestion *into);

/* The likely reason for which a queue pair failed. */
enum ferroce_reason {
	FERROCE_NO_FAILURE = 0,      /* it has not failed, or the program moved it to the error state */
	FERROCE_NEVER_ANSWERED = 1,  /* nothing ever came from the peer */
	FERROCE_WENT_DARK = 2,       /* the peer acknowledged packets before, and then went silent */
	FERROCE_NO_ADDRESS = 3,      /* ICMP: no route to the peer's address, or no such host */
	FERROCE_NO_PORT = 4,         /* ICMP: the peer's host has nothing at UDP port 4791 */
	FERROCE_PROHIBITED = 5,      /* ICMP: a firewall prohibits the packets */
	FERROCE_TOO_BIG = 6,         /* ICMP: a link has a smaller MTU */
	FERROCE_LARGE_PACKETS = 7,   /* large packets are lost, smaller ones arrive */
	FERROCE_ONE_WAY = 8,         /* the peer's packets arrive, ours do not */
	FERROCE_OTHER_PSNS = 9,      /* the peer expects other PSNs */
	FERROCE_LOSS = 10,           /* the peer asks for the same packet again and again */
	FERROCE_NO_RECEIVE = 11,     /* the peer had no receive posted */
	FERROCE_REMOTE_ACCESS = 12,  /* the peer refused a key, a range, or the access */
	FERROCE_REMOTE_REQUEST = 13, /* the peer does not accept this request */
	FERROCE_REMOTE_FAILED = 14,  /* the peer's queue pair failed by itself */
	FERROCE_BAD_ANSWER = 15,     /* the peer's answer does not fit the request */
	FERROCE_LOCAL_BUFFER = 16,   /* a local buffer is outside its region, which may not allow this access */
	FERROCE_LOCAL_REQUEST = 17,  /* the request does not fit the queue pair */
	FERROCE_REFUSED = 18,        /* the peer sent a request that is not allowed here */
	FERROCE_CQ_OVERFLOW = 19,    /* a completion queue was not polled in time */
};

/* How a queue pair failed. All is 0 if it has not. */
struct ferroce_cause {
	uint32_t size;             /* sizeof(struct ferroce_cause) */
	uint32_t reason;           /* enum ferroce_reason; later versions may add values */
	uint32_t peer_qpn;
	uint8_t peer[16];          /* IPv6 or IPv4-mapped; 0 without a connection */
	uint32_t acknowledged_psn; /* the last that the peer acknowledged, one before the first if none; UC, UD: the last sent */
	uint32_t send_psn;         /* the next to send for the first time */
	uint32_t expected_psn;     /* expected from the peer */
	uint32_t retries;          /* since the last acknowledgement */
	uint32_t busiest_hop;      /* of the path by telemetry, 1 the first switch; 0 without telemetry */
	uint32_t hop_queue;        /* bytes in its egress queue */
	uint32_t hop_permille;     /* how full its link is: 1000 without a queue; 0 unknown */
	uint32_t reserved[5];      /* 0 */
	char text[512];            /* the line in the log, with the remedy */
};

/* After an error completion or IBV_EVENT_QP_FATAL, _REQ_ERR or _ACCESS_ERR, until the program moves the queue pair to another state.
 * 0, EINVAL if `size` is not set, EIO if the device has stopped, or EOPNOTSUPP. */
int ferroce_qp_cause(struct ibv_qp *qp, struct ferroce_cause *into);

#ifdef __cplusplus
}
#endif

#endif
