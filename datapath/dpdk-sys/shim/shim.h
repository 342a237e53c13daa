/* What Rust can't call in DPDK: static-inline functions, macros, thread-local variables. */
#ifndef FERROCE_SHIM_H
#define FERROCE_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

uint16_t ferroce_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);
uint16_t ferroce_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);
struct rte_mbuf *ferroce_mbuf_alloc(struct rte_mempool *pool);
/* 0, or none if the pool has fewer than n. */
int ferroce_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int n);
/* Packet buffers one right after the other in one piece of memory, whatever pages it has; NULL with rte_errno set. */
struct rte_mempool *ferroce_mbuf_pool_in_one_piece(const char *name, unsigned int n, unsigned int cache,
						   uint16_t data_room, const char *ops);
void ferroce_mbuf_free(struct rte_mbuf *mbuf);
void ferroce_mbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int n);
/* RTE_ETH_RSS_NONFRAG_IPV4_UDP and RTE_ETH_RSS_NONFRAG_IPV6_UDP */
extern const uint64_t ferroce_rss_ipv4_udp, ferroce_rss_ipv6_udp;
int ferroce_errno(void);
/* This thread's number among DPDK's, or LCORE_ID_ANY. */
unsigned int ferroce_lcore_id(void);

/* Called with one piece of a log message and its RTE_LOG_ level. Not NUL-terminated. */
typedef void (*ferroce_log_sink)(uint32_t level, const char *text, size_t len);

/* Sends all of DPDK's log to `sink`. 0, or -1 with errno set. */
int ferroce_log_to(ferroce_log_sink sink);

struct ferroce_offset {
	const char *field;
	size_t offset;
	size_t size;
};

/* The offsets of the fields of rte_mbuf that Rust touches, as the C compiler chose them; the row after the last has no name. */
extern const struct ferroce_offset ferroce_mbuf_offsets[];

#endif
