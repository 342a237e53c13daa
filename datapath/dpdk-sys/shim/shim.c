#define _GNU_SOURCE
#include "shim.h"

#include <rte_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint64_t ferroce_rss_ipv4_udp = RTE_ETH_RSS_NONFRAG_IPV4_UDP, ferroce_rss_ipv6_udp = RTE_ETH_RSS_NONFRAG_IPV6_UDP;

uint16_t ferroce_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	return rte_eth_rx_burst(port, queue, mbufs, n);
}

uint16_t ferroce_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	return rte_eth_tx_burst(port, queue, mbufs, n);
}

struct rte_mbuf *ferroce_mbuf_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

int ferroce_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int n)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, n);
}

void ferroce_mbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int n)
{
	rte_pktmbuf_free_bulk(mbufs, n);
}

struct rte_mempool *ferroce_mbuf_pool_in_one_piece(const char *name, unsigned int n, unsigned int cache,
						   uint16_t data_room, const char *ops)
{
	struct rte_pktmbuf_pool_private room = { .mbuf_data_room_size = data_room };
	unsigned int flags = RTE_MEMPOOL_F_NO_SPREAD | RTE_MEMPOOL_F_NO_IOVA_CONTIG;
	struct rte_mempool *pool;
	int result;

	pool = rte_mempool_create_empty(name, n, sizeof(struct rte_mbuf) + data_room, cache, sizeof(room),
					SOCKET_ID_ANY, flags);
	if (pool == NULL)
		return NULL;
	result = rte_mempool_set_ops_byname(pool, ops, NULL);
	if (result == 0) {
		rte_pktmbuf_pool_init(pool, &room);
		result = rte_mempool_populate_default(pool);
	}
	if (result < 0 || pool->nb_mem_chunks != 1) {
		rte_mempool_free(pool);
		rte_errno = result < 0 ? -result : ENOMEM;
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

void ferroce_mbuf_free(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

struct ferroce_device ferroce_device_of(uint16_t port)
{
	struct rte_eth_dev_info info;

	memset(&info, 0, sizeof(info));
	if (rte_eth_dev_info_get(port, &info) != 0)
		return (struct ferroce_device){ 0 };
	return (struct ferroce_device){
		.device = info.device,
		.driver_name = info.driver_name,
		.flow_type_rss_offloads = info.flow_type_rss_offloads,
		.min_mtu = info.min_mtu,
		.max_mtu = info.max_mtu,
		.max_rx_queues = info.max_rx_queues,
		.max_tx_queues = info.max_tx_queues,
		.reta_size = info.reta_size,
		.hash_key_size = info.hash_key_size,
	};
}

int ferroce_configure(uint16_t port, uint16_t queues, uint32_t mtu, const uint8_t *key, uint8_t key_len, uint64_t flows)
{
	struct rte_eth_conf conf;

	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = mtu;
	if (flows != 0) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_key = (uint8_t *)(uintptr_t)key;
		conf.rx_adv_conf.rss_conf.rss_key_len = key_len;
		conf.rx_adv_conf.rss_conf.rss_hf = flows;
	}
	return rte_eth_dev_configure(port, queues, queues, &conf);
}

int ferroce_set_redirection_table(uint16_t port, const uint16_t *queues, uint16_t size)
{
	struct rte_eth_rss_reta_entry64 *groups;
	int result;

	groups = calloc(size / RTE_ETH_RETA_GROUP_SIZE + 1, sizeof(*groups));
	if (groups == NULL)
		return -ENOMEM;
	for (unsigned int hash = 0; hash < size; hash++) {
		groups[hash / RTE_ETH_RETA_GROUP_SIZE].mask = UINT64_MAX;
		groups[hash / RTE_ETH_RETA_GROUP_SIZE].reta[hash % RTE_ETH_RETA_GROUP_SIZE] = queues[hash];
	}
	result = rte_eth_dev_rss_reta_update(port, groups, size);
	free(groups);
	return result;
}

struct ferroce_link ferroce_link_of(uint16_t port)
{
	struct rte_eth_link link;

	memset(&link, 0, sizeof(link));
	if (rte_eth_link_get_nowait(port, &link) != 0)
		return (struct ferroce_link){ 0 };
	return (struct ferroce_link){ .speed = link.link_speed, .up = link.link_status == RTE_ETH_LINK_UP };
}

int ferroce_errno(void)
{
	return rte_errno;
}

unsigned int ferroce_lcore_id(void)
{
	return rte_lcore_id();
}

static ferroce_log_sink log_sink;

static ssize_t log_write(void *cookie, const char *text, size_t len)
{
	(void)cookie;
	log_sink((uint32_t)rte_log_cur_msg_loglevel(), text, len);
	return (ssize_t)len;
}

int ferroce_log_to(ferroce_log_sink sink)
{
	static const cookie_io_functions_t functions = { .write = log_write };
	FILE *stream;

	log_sink = sink;
	stream = fopencookie(NULL, "w", functions);
	if (stream == NULL)
		return -1;
	return rte_openlog_stream(stream);
}

#define ROW(field) { #field, offsetof(struct rte_mbuf, field), sizeof(((struct rte_mbuf *)0)->field) }

const struct ferroce_offset ferroce_mbuf_offsets[] = {
	ROW(buf_addr), ROW(data_off), ROW(refcnt), ROW(nb_segs), ROW(pkt_len), ROW(data_len), ROW(buf_len),
	{ NULL, sizeof(struct rte_mbuf), 0 },
};
