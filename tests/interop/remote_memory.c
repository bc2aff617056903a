/*
 * One end of crates/verbs/examples/remote_memory.rs, written against libibverbs: see there for what the ends tell and do.
 * remote_memory DEVICE GID_INDEX TCP_PORT [HOST]
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define AREA (1024 * 1024 + 64)
#define WIPED 0xa5
#define ADDRESS 66
#define SECONDS 10

enum area { OWN, LANDING, LOCAL, SEEN, AREAS };

static const struct { size_t length, offset; } rounds[] = {
	{ 1, 0 }, { 64, 3 }, { 4096, 61 }, { 65539, 7 }, { 1024 * 1024, 64 },
};

static void check(bool good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static void receive(int peer, char *bytes, size_t length)
{
	check(recv(peer, bytes, length, MSG_WAITALL) == (ssize_t)length, "receiving from the peer");
}

/* Both ends have come as far. */
static void meet(int peer)
{
	char byte = '.';

	check(send(peer, &byte, 1, MSG_NOSIGNAL) == 1, "sending to the peer");
	receive(peer, &byte, 1);
}

static int connect_peer(const char *host, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct timeval patience = { .tv_sec = SECONDS };
	int one = 1, listener, peer = socket(AF_INET, SOCK_STREAM, 0);

	check(peer >= 0, "socket");
	if (host) {
		check(inet_pton(AF_INET, host, &address.sin_addr) == 1, host);
		check(!connect(peer, (struct sockaddr *)&address, sizeof(address)), "connect");
	} else {
		listener = peer;
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		check(!bind(listener, (struct sockaddr *)&address, sizeof(address)), "bind");
		check(!listen(listener, 1), "listen");
		peer = accept(listener, NULL, NULL);
		check(peer >= 0, "accept");
		close(listener);
	}
	check(!setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), "SO_RCVTIMEO");
	return peer;
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	check(devices != NULL, "ibv_get_device_list");
	for (int i = 0; devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), name))
			context = ibv_open_device(devices[i]);
	check(context != NULL, name);
	ibv_free_device_list(devices);
	return context;
}

static uint8_t pattern(int end, int round, size_t place)
{
	return place * 31 + place / 251 + (end * 16 + round) * 7;
}

/* Every byte of an area: the pattern in the stretch, and nothing written beside it. */
static void check_area(const uint8_t *area, int end, int round, const char *what)
{
	size_t first = rounds[round].offset, last = first + rounds[round].length;

	for (size_t i = 0; i < AREA; i++) {
		uint8_t wanted = i >= first && i < last ? pattern(end, round, i) : WIPED;

		if (area[i] != wanted) {
			fprintf(stderr, "round %d, %s: byte %zu is %#x, not %#x\n", round, what, i, area[i], wanted);
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc < 4 || argc > 5) {
		fprintf(stderr, "usage: remote_memory DEVICE GID_INDEX TCP_PORT [HOST]\n");
		return 2;
	}
	int gid_index = atoi(argv[2]), me = argc == 5;
	struct ibv_context *context = open_device(argv[1]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	check(pd != NULL, "ibv_alloc_pd");
	uint8_t *memory = calloc(AREAS, AREA), *area[AREAS];
	check(memory != NULL, "calloc");
	for (int i = 0; i < AREAS; i++)
		area[i] = memory + i * AREA;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, AREAS * AREA, access);
	check(mr != NULL, "ibv_reg_mr");
	struct ibv_cq *cq = ibv_create_cq(context, 2, NULL, NULL, 0);
	check(cq != NULL, "ibv_create_cq");
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 2, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
	union ibv_gid gid;
	check(!ibv_query_gid(context, 1, gid_index, &gid), "ibv_query_gid");

	int peer = connect_peer(argv[4], atoi(argv[3]));
	char text[ADDRESS + 1], digits[33];
	for (int i = 0; i < 16; i++)
		sprintf(digits + 2 * i, "%02x", gid.raw[i]);
	sprintf(text, "%06x:%s:%016" PRIx64 ":%08x\n", qp->qp_num, digits, (uint64_t)(uintptr_t)memory, mr->rkey);
	check(send(peer, text, ADDRESS, MSG_NOSIGNAL) == ADDRESS, "sending the address");
	receive(peer, text, ADDRESS);
	text[ADDRESS] = 0;
	uint32_t peer_qp, rkey;
	uint64_t remote;
	if (sscanf(text, "%6x:%32[0-9a-f]:%16" SCNx64 ":%8x", &peer_qp, digits, &remote, &rkey) != 4) {
		fprintf(stderr, "no address: %s\n", text);
		return 1;
	}
	for (int i = 0; i < 16; i++)
		sscanf(digits + 2 * i, "%2hhx", &gid.raw[i]);

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer_qp,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 },
		},
	};
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");

	for (int round = 0; round < (int)(sizeof(rounds) / sizeof(rounds[0])); round++) {
		size_t offset = rounds[round].offset, length = rounds[round].length;

		memset(area[LANDING], WIPED, AREA);
		memset(area[SEEN], WIPED, AREA);
		for (size_t i = offset; i < offset + length; i++)
			area[OWN][i] = area[LOCAL][i] = pattern(me, round, i);
		meet(peer);

		struct ibv_sge from = { (uintptr_t)area[LOCAL] + offset, length, mr->lkey };
		struct ibv_sge into = { (uintptr_t)area[SEEN] + offset, length, mr->lkey };
		struct ibv_send_wr read = {
			.wr_id = 2,
			.sg_list = &into,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_READ,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { remote + OWN * AREA + offset, rkey },
		};
		struct ibv_send_wr write = {
			.wr_id = 1,
			.next = &read,
			.sg_list = &from,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { remote + LANDING * AREA + offset, rkey },
		};
		struct ibv_send_wr *bad;
		check(!ibv_post_send(qp, &write, &bad), "ibv_post_send");
		time_t deadline = time(NULL) + SECONDS;
		for (uint64_t wanted = 1; wanted <= 2;) {
			struct ibv_wc wc;

			if (ibv_poll_cq(cq, 1, &wc) == 0) {
				check(time(NULL) <= deadline, "no completion");
				continue;
			}
			if (wc.status != IBV_WC_SUCCESS || wc.wr_id != wanted++) {
				fprintf(stderr, "request %" PRIu64 ": %s\n", wc.wr_id, ibv_wc_status_str(wc.status));
				return 1;
			}
		}
		check_area(area[SEEN], !me, round, "read");
		meet(peer);
		check_area(area[LANDING], !me, round, "written by the peer");
	}

	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	check(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(!ibv_close_device(context), "ibv_close_device");
	free(memory);
	close(peer);
	return 0;
}
