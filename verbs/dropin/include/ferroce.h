/* What Ferroce adds to libibverbs: a queue pair's congestion control. Link with -libverbs; `pkg-config ferroce` has the flags. */
#ifndef FERROCE_H
#define FERROCE_H

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a queue pair sends now. */
struct ferroce_congestion {
	uint64_t window;    /* bytes that may be in flight; 0 before RTS */
	uint64_t in_flight; /* bytes sent and not acknowledged */
	uint64_t rate;      /* bits/s; 0: not paced */
	double utilisation; /* of the path's busiest link, as telemetry says: 1 is full, and what it
	                     * is before telemetry comes; below 0 where the algorithm computes none */
};

/* Chooses congestion control before the queue pair goes to RTS: a name, then keys of a rule in ferroce.toml, as in
 * "hpcc,line_rate=1G,base_rtt=2ms". Without this the rules of the configuration decide.
 * 0, or EINVAL where the text is wrong or the queue pair is in RTS already; FERROCE_LOG=warn says what. */
int ferroce_set_congestion(struct ibv_qp *qp, const char *choice);

/* 0, or EINVAL. */
int ferroce_query_congestion(struct ibv_qp *qp, struct ferroce_congestion *into);

#ifdef __cplusplus
}
#endif

#endif
