/*
 * What Rust can't call in DPDK: static-inline functions, macros, thread-local variables. Also functions whose structures differ between
 * releases.
 */
#ifndef FERROCE_SHIM_H
#define FERROCE_SHIM_H

#include <stdbool.h>
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

/* Members of struct rte_eth_dev_info. */
struct ferroce_device {
	struct rte_device *device;
	const char *driver_name;
	uint64_t flow_type_rss_offloads;
	uint16_t min_mtu, max_mtu;
	uint16_t max_rx_queues, max_tx_queues;
	uint16_t reta_size;
	uint8_t hash_key_size;
};

/* Returns all zeros for a port that does not exist. */
struct ferroce_device ferroce_device_of(uint16_t port);
/* Configures `queues` receive queues and as many transmit queues. No RSS if `flows` is 0. DPDK copies the key. 0, or a negative errno. */
int ferroce_configure(uint16_t port, uint16_t queues, uint32_t mtu, const uint8_t *key, uint8_t key_len, uint64_t flows);
/* Sets the queue of each hash. `size` is the device's reta_size. 0, or a negative errno. */
int ferroce_set_redirection_table(uint16_t port, const uint16_t *queues, uint16_t size);

struct ferroce_link {
	/* Mb/s, or RTE_ETH_SPEED_NUM_NONE or _UNKNOWN. */
	uint32_t speed;
	bool up;
};

/* The state of a port's link. A link whose state the driver cannot report is down. */
struct ferroce_link ferroce_link_of(uint16_t port);
int ferroce_errno(void);
/* This thread's number among DPDK's, or LCORE_ID_ANY. */
unsigned int ferroce_lcore_id(void);

/* Called with one piece of a log message and its RTE_LOG_ level. Not NUL-terminated. */
typedef void (*ferroce_log_sink)(uint32_t level, const char *text, size_t len);

/* Sends all of DPDK's log to `sink`. 0, or -1 with errno set. */
int ferroce_log_to(ferroce_log_sink sink);

/*
 * The size of rte_mbuf, and the offsets of its fields that Rust accesses. In DPDK 24.07 and newer, most of these are members of anonymous
 * unions.
 */
enum ferroce_mbuf {
	FERROCE_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	FERROCE_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	FERROCE_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	FERROCE_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	FERROCE_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	FERROCE_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	FERROCE_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	FERROCE_MBUF_SIZE = sizeof(struct rte_mbuf),
};

struct ferroce_offset {
	const char *field;
	size_t offset;
	size_t size;
};

/*
 * The same offsets and the fields' sizes, computed by the compiler of the shim instead of bindgen's. The last row has no name, and the size
 * of rte_mbuf as its offset.
 */
extern const struct ferroce_offset ferroce_mbuf_offsets[];

#endif
