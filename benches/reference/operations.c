/*
 * What benches/src/bin/operations.rs does, written against libibverbs: see there for the arguments and the output. Both do the same in the
 * same order, with the same sizes, depths and flags.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 256
#define BATCH 32
#define MESSAGE 64
#define PORT 1
#define GID_INDEX 1
#define ROUNDS 7
#define STEPPED_ROUNDS 2
#define STEPPED_TIMES 16
#define MANY 1000
#define COUNTED 42
#define LIFE 300
#define PATIENCE 5000000000

/* Into what is measured, so that the numbers that go with it are constants. */
#define always_inline inline __attribute__((always_inline))
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

enum marker { START = 1, STOP, ROUND_OVER, OPERATION_OVER };

static bool stepping;
static uint64_t began, spent, overhead, least = UINT64_MAX;

static void check(bool good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * UINT64_C(1000000000) + time.tv_nsec;
}

/* The tracer looks at what is between START and STOP. */
static inline void mark(enum marker marker)
{
	asm volatile("int3" : : "a"(marker) : "memory");
}

/* It takes the same wherever it is called from, and so can be taken off. */
static __attribute__((noinline)) void start(void)
{
	if (stepping)
		mark(START);
	else
		began = now();
}

static __attribute__((noinline)) void stop(void)
{
	if (stepping)
		mark(STOP);
	else
		spent += now() - began - overhead;
}

static void round_over(void)
{
	if (stepping)
		mark(ROUND_OVER);
	else if (spent < least)
		least = spent;
	spent = 0;
}

static void operation_over(const char *name, unsigned int count)
{
	if (stepping)
		mark(OPERATION_OVER);
	printf("%s %" PRIu64 " %u\n", name, least, count);
	least = UINT64_MAX;
}

static int rounds(void)
{
	return stepping ? STEPPED_ROUNDS : ROUNDS;
}

static unsigned int times(unsigned int count)
{
	if (!stepping)
		return count;
	return count < STEPPED_TIMES ? 1 : STEPPED_TIMES;
}

static struct ibv_device *device;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid gid;
static struct ibv_sge source, target;
/* Requests, ready but for their wr_id. */
static struct ibv_send_wr send_wr = {
	.sg_list = &source,
	.num_sge = 1,
	.opcode = IBV_WR_SEND,
	.send_flags = IBV_SEND_SIGNALED,
};
static struct ibv_recv_wr recv_wr = { .sg_list = &target, .num_sge = 1 };

static struct ibv_device *find(const char *name, struct ibv_device **devices)
{
	for (int i = 0; devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), name))
			return devices[i];
	fprintf(stderr, "no device %s\n", name);
	exit(1);
}

static void open_device(const char *name)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	check(devices, "ibv_get_device_list");
	device = find(name, devices);
	context = ibv_open_device(device);
	check(context, "ibv_open_device");
	ibv_free_device_list(devices);
}

static void set_up(void)
{
	pd = ibv_alloc_pd(context);
	check(pd, "ibv_alloc_pd");
	char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(memory != MAP_FAILED, "mmap");
	mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	check(mr, "ibv_reg_mr");
	source = (struct ibv_sge){ (uintptr_t)memory, MESSAGE, mr->lkey };
	target = (struct ibv_sge){ (uintptr_t)memory + MESSAGE, MESSAGE, mr->lkey };
	/* Not on EFA, where nothing is connected. */
	if (ibv_query_gid(context, PORT, GID_INDEX, &gid))
		memset(&gid, 0, sizeof(gid));
}

static struct ibv_cq *create_cq(int entries, struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = ibv_create_cq(context, entries, NULL, channel, 0);

	check(cq, "ibv_create_cq");
	return cq;
}

static struct ibv_qp *create_qp(struct ibv_cq *send_cq, struct ibv_cq *recv_cq, unsigned int depth)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);

	check(qp, "ibv_create_qp_ex");
	return qp;
}

static struct ibv_ah_attr address(void)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = PORT,
		.grh = { .dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 64 },
	};
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = address(),
	};
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	check(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	check(!ibv_modify_qp(qp, &receive,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	check(!ibv_modify_qp(qp, &send,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* A QP connected to itself. */
static struct ibv_qp *loop(struct ibv_cq *send_cq, struct ibv_cq *recv_cq)
{
	struct ibv_qp *qp = create_qp(send_cq, recv_cq, DEPTH);

	connect_qp(qp, qp->qp_num);
	return qp;
}

static always_inline void post_receives(struct ibv_qp *qp, unsigned int count)
{
	struct ibv_recv_wr *bad;

	for (unsigned int i = 0; i < count; i++) {
		recv_wr.wr_id = i;
		check(!ibv_post_recv(qp, &recv_wr, &bad), "ibv_post_recv");
	}
}

static always_inline void post_send(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_send_wr *bad;

	send_wr.wr_id = wr_id;
	check(!ibv_post_send(qp, &send_wr, &bad), "ibv_post_send");
}

/* There is one processor: the kernel's side has to run. */
static void let_it_work(void)
{
	usleep(50);
}

/* Until the kernel's threads sleep, so that each doorbell wakes one. */
static void let_it_sleep(void)
{
	usleep(1000);
}

static void await(struct ibv_cq *cq, unsigned int count)
{
	uint64_t deadline = now() + PATIENCE;
	struct ibv_wc wc[16];

	while (count) {
		unsigned int room = count < ARRAY_SIZE(wc) ? count : ARRAY_SIZE(wc);
		int taken = ibv_poll_cq(cq, room, wc);

		check(taken >= 0, "ibv_poll_cq");
		for (int i = 0; i < taken; i++)
			check(wc[i].status == IBV_WC_SUCCESS, "a completion");
		count -= taken;
		check(now() < deadline, "completions are missing");
		let_it_work();
	}
}

static unsigned int nothing(void)
{
	for (int round = 0; round < rounds(); round++) {
		start();
		stop();
		round_over();
	}
	if (!stepping)
		overhead = least;
	return 1;
}

static unsigned int list_warm(void)
{
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++) {
			struct ibv_device **devices = ibv_get_device_list(NULL);

			check(devices, "ibv_get_device_list");
			ibv_free_device_list(devices);
		}
		stop();
		round_over();
	}
	return count;
}

static unsigned int open_close(void)
{
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		struct ibv_device **devices = ibv_get_device_list(NULL);

		check(devices, "ibv_get_device_list");
		struct ibv_device *same = find(ibv_get_device_name(device), devices);

		start();
		for (unsigned int i = 0; i < count; i++) {
			struct ibv_context *other = ibv_open_device(same);

			check(other, "ibv_open_device");
			check(!ibv_close_device(other), "ibv_close_device");
		}
		stop();
		round_over();
		ibv_free_device_list(devices);
	}
	return count;
}

static unsigned int query_device(void)
{
	unsigned int count = times(10);
	struct ibv_device_attr_ex attr;

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++)
			check(!ibv_query_device_ex(context, NULL, &attr), "ibv_query_device_ex");
		stop();
		round_over();
	}
	return count;
}

static unsigned int query_port(void)
{
	unsigned int count = times(10);
	struct ibv_port_attr attr;

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++)
			check(!ibv_query_port(context, PORT, &attr), "ibv_query_port");
		stop();
		round_over();
	}
	return count;
}

static unsigned int query_gid(void)
{
	unsigned int count = times(10);
	struct ibv_gid_entry entry;

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++)
			check(!ibv_query_gid_ex(context, PORT, GID_INDEX, &entry, 0), "ibv_query_gid_ex");
		stop();
		round_over();
	}
	return count;
}

static unsigned int reg_dereg(size_t length)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned int count = times(10);

	check(memory != MAP_FAILED, "mmap");
	memset(memory, 1, length);
	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++) {
			struct ibv_mr *region = ibv_reg_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE);

			check(region, "ibv_reg_mr");
			check(!ibv_dereg_mr(region), "ibv_dereg_mr");
		}
		stop();
		round_over();
	}
	munmap(memory, length);
	return count;
}

static unsigned int reg_dereg_4k(void)
{
	return reg_dereg(4096);
}

static unsigned int reg_dereg_1m(void)
{
	return reg_dereg(1 << 20);
}

static unsigned int create_destroy_cq(void)
{
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++)
			check(!ibv_destroy_cq(create_cq(DEPTH, NULL)), "ibv_destroy_cq");
		stop();
		round_over();
	}
	return count;
}

static unsigned int create_destroy_qp(void)
{
	struct ibv_cq *cq = create_cq(DEPTH, NULL);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++) {
			/* The call writes what it grants. */
			struct ibv_qp_init_attr attr = init;
			struct ibv_qp *qp = ibv_create_qp(pd, &attr);

			check(qp, "ibv_create_qp");
			check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
		}
		stop();
		round_over();
	}
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return count;
}

static unsigned int create_destroy_srq(void)
{
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++) {
			struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
			struct ibv_srq *srq = ibv_create_srq(pd, &init);

			check(srq, "ibv_create_srq");
			check(!ibv_destroy_srq(srq), "ibv_destroy_srq");
		}
		stop();
		round_over();
	}
	return count;
}

static unsigned int create_destroy_ah(void)
{
	struct ibv_ah_attr attr = address();
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++) {
			struct ibv_ah *ah = ibv_create_ah(pd, &attr);

			check(ah, "ibv_create_ah");
			check(!ibv_destroy_ah(ah), "ibv_destroy_ah");
		}
		stop();
		round_over();
	}
	return count;
}

static unsigned int alloc_dealloc_mw(void)
{
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++) {
			struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);

			check(mw, "ibv_alloc_mw");
			check(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
		}
		stop();
		round_over();
	}
	return count;
}

static unsigned int modify_to_rts(void)
{
	struct ibv_cq *cq = create_cq(DEPTH, NULL);

	for (int round = 0; round < rounds(); round++) {
		struct ibv_qp *qp = create_qp(cq, cq, DEPTH);

		start();
		connect_qp(qp, qp->qp_num);
		stop();
		round_over();
		check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	}
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return 1;
}

static unsigned int post_receive(void)
{
	struct ibv_cq *cq = create_cq(DEPTH, NULL);
	unsigned int count = times(DEPTH);

	for (int round = 0; round < rounds(); round++) {
		struct ibv_qp *qp = loop(cq, cq);

		start();
		post_receives(qp, count);
		stop();
		round_over();
		check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	}
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return count;
}

static unsigned int post_send_doorbell(void)
{
	struct ibv_cq *cq = create_cq(2 * DEPTH, NULL);
	struct ibv_qp *qp = loop(cq, cq);
	unsigned int attempts = times(DEPTH);

	for (unsigned int round = 0; round < attempts; round++) {
		post_receives(qp, 1);
		start();
		post_send(qp, round);
		stop();
		round_over();
		await(cq, 2);
		let_it_sleep();
	}
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return 1;
}

static unsigned int batch_list(void)
{
	struct ibv_cq *cq = create_cq(2 * DEPTH, NULL);
	struct ibv_qp *qp = loop(cq, cq);
	struct ibv_send_wr wr[BATCH], *bad;

	for (unsigned int i = 0; i < BATCH; i++) {
		wr[i] = send_wr;
		wr[i].wr_id = i;
		wr[i].next = i + 1 < BATCH ? &wr[i + 1] : NULL;
	}
	for (int round = 0; round < rounds(); round++) {
		post_receives(qp, BATCH);
		start();
		check(!ibv_post_send(qp, wr, &bad), "ibv_post_send");
		stop();
		round_over();
		await(cq, 2 * BATCH);
		let_it_sleep();
	}
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return BATCH;
}

static unsigned int batch_builder(void)
{
	struct ibv_cq *cq = create_cq(2 * DEPTH, NULL);
	struct ibv_qp *qp = loop(cq, cq);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	for (int round = 0; round < rounds(); round++) {
		post_receives(qp, BATCH);
		start();
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		for (unsigned int i = 0; i < BATCH; i++) {
			ex->wr_id = i;
			ibv_wr_send(ex);
			ibv_wr_set_sge(ex, source.lkey, source.addr, source.length);
		}
		check(!ibv_wr_complete(ex), "ibv_wr_complete");
		stop();
		round_over();
		await(cq, 2 * BATCH);
		let_it_sleep();
	}
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return BATCH;
}

static unsigned int poll_empty(void)
{
	struct ibv_cq *cq = create_cq(16, NULL);
	unsigned int count = times(100000);
	struct ibv_wc wc[16];

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++)
			check(ibv_poll_cq(cq, 16, wc) == 0, "ibv_poll_cq");
		stop();
		round_over();
	}
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return count;
}

/* Completions of so many sends are in the send CQ when it returns. */
static void fill(struct ibv_qp *qp, struct ibv_cq *recv_cq, unsigned int count)
{
	post_receives(qp, count);
	for (unsigned int i = 0; i < count; i++)
		post_send(qp, i);
	await(recv_cq, count);
	/* The acknowledgements. */
	usleep(5000);
}

static always_inline uint64_t take(struct ibv_cq *cq, int at_once)
{
	struct ibv_wc wc[16];
	uint64_t sum = 0;

	check(ibv_poll_cq(cq, at_once, wc) == at_once, "ibv_poll_cq");
	for (int i = 0; i < at_once; i++) {
		check(wc[i].status == IBV_WC_SUCCESS, "a completion");
		sum += wc[i].wr_id;
	}
	return sum;
}

static always_inline unsigned int poll_full(int at_once)
{
	struct ibv_cq *cq = create_cq(DEPTH, NULL), *recv_cq = create_cq(DEPTH, NULL);
	struct ibv_qp *qp = loop(cq, recv_cq);
	unsigned int count = times(DEPTH);

	for (int round = 0; round < rounds(); round++) {
		uint64_t sum = 0;

		fill(qp, recv_cq, count);
		start();
		for (unsigned int i = 0; i < count; i += at_once)
			sum += take(cq, at_once);
		stop();
		round_over();
		check(sum == (uint64_t)count * (count - 1) / 2, "the sum of wr_ids");
	}
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(recv_cq), "ibv_destroy_cq");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return count;
}

static unsigned int poll_full_1(void)
{
	return poll_full(1);
}

static unsigned int poll_full_16(void)
{
	return poll_full(16);
}

static always_inline uint64_t iterate(struct ibv_cq_ex *cq, int at_once)
{
	static struct ibv_poll_cq_attr attr;
	uint64_t sum = 0;

	check(!ibv_start_poll(cq, &attr), "ibv_start_poll");
	for (int seen = 1;; seen++) {
		check(cq->status == IBV_WC_SUCCESS, "a completion");
		sum += cq->wr_id;
		if (seen == at_once)
			break;
		check(!ibv_next_poll(cq), "ibv_next_poll");
	}
	ibv_end_poll(cq);
	return sum;
}

static always_inline unsigned int iterate_full(int at_once)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = DEPTH,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	check(cq, "ibv_create_cq_ex");
	struct ibv_cq *recv_cq = create_cq(DEPTH, NULL);
	struct ibv_qp *qp = loop(ibv_cq_ex_to_cq(cq), recv_cq);
	unsigned int count = times(DEPTH);

	for (int round = 0; round < rounds(); round++) {
		uint64_t sum = 0;

		fill(qp, recv_cq, count);
		start();
		for (unsigned int i = 0; i < count; i += at_once)
			sum += iterate(cq, at_once);
		stop();
		round_over();
		check(sum == (uint64_t)count * (count - 1) / 2, "the sum of wr_ids");
	}
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(recv_cq), "ibv_destroy_cq");
	check(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "ibv_destroy_cq");
	return count;
}

static unsigned int iterate_full_1(void)
{
	return iterate_full(1);
}

static unsigned int iterate_full_16(void)
{
	return iterate_full(16);
}

/* It has to be acknowledged. */
static struct ibv_cq *get_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *cq_context;

	check(!ibv_get_cq_event(channel, &cq, &cq_context), "ibv_get_cq_event");
	return cq;
}

static struct ibv_comp_channel *create_channel(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);

	check(channel, "ibv_create_comp_channel");
	return channel;
}

static unsigned int arm_event_ack(void)
{
	struct ibv_comp_channel *channel = create_channel();
	struct ibv_cq *cq = create_cq(2 * DEPTH, channel);
	struct ibv_qp *qp = loop(cq, cq);
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };

	for (int round = 0; round < rounds(); round++) {
		post_receives(qp, 1);
		start();
		check(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
		stop();
		post_send(qp, round);
		check(poll(&readable, 1, PATIENCE / 1000000) == 1, "no event");
		start();
		ibv_ack_cq_events(get_event(channel), 1);
		stop();
		round_over();
		await(cq, 2);
	}
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(!ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	return 1;
}

/* Sleeps until there is a completion in a CQ that is armed, and arms it again. Its event has to be acknowledged. */
static void next_completion(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_wc wc;

	get_event(channel);
	check(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	check(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "a completion");
}

struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq *recv_cq, *send_cq;
	struct ibv_qp *qp;
};

static struct end create_end(void)
{
	struct end end = { .channel = create_channel() };

	end.recv_cq = create_cq(DEPTH, end.channel);
	end.send_cq = create_cq(DEPTH, NULL);
	end.qp = create_qp(end.send_cq, end.recv_cq, DEPTH);
	check(!ibv_req_notify_cq(end.recv_cq, 0), "ibv_req_notify_cq");
	return end;
}

/* Sends a message on its way, and gives back the room of those sent before. */
static void send_on(struct end *end, unsigned int round)
{
	struct ibv_wc wc[4];
	int taken = ibv_poll_cq(end->send_cq, ARRAY_SIZE(wc), wc);

	for (int i = 0; i < taken; i++)
		check(wc[i].status == IBV_WC_SUCCESS, "a completion");
	post_send(end->qp, round);
}

static unsigned int ping_pong(void)
{
	struct end ends[2] = { create_end(), create_end() };
	unsigned int count = times(200);

	for (int i = 0; i < 2; i++) {
		connect_qp(ends[i].qp, ends[!i].qp->qp_num);
		post_receives(ends[i].qp, 1);
	}
	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++) {
			send_on(&ends[0], i);
			for (int end = 1; end >= 0; end--) {
				next_completion(ends[end].recv_cq, ends[end].channel);
				post_receives(ends[end].qp, 1);
				if (end == 1)
					send_on(&ends[1], i);
			}
		}
		stop();
		round_over();
	}
	for (int i = 0; i < 2; i++) {
		ibv_ack_cq_events(ends[i].recv_cq, rounds() * count);
		check(!ibv_destroy_qp(ends[i].qp), "ibv_destroy_qp");
		check(!ibv_destroy_cq(ends[i].send_cq), "ibv_destroy_cq");
		check(!ibv_destroy_cq(ends[i].recv_cq), "ibv_destroy_cq");
		check(!ibv_destroy_comp_channel(ends[i].channel), "ibv_destroy_comp_channel");
	}
	return count;
}

static struct ibv_comp_cntr *create_counter(void)
{
	struct ibv_comp_cntr_init_attr init = { .type = IBV_COMP_CNTR_TYPE_WRS };
	struct ibv_comp_cntr *counter = ibv_create_comp_cntr(context, &init);

	check(counter, "ibv_create_comp_cntr");
	return counter;
}

static unsigned int create_destroy_counter(void)
{
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++)
			check(!ibv_destroy_comp_cntr(create_counter()), "ibv_destroy_comp_cntr");
		stop();
		round_over();
	}
	return count;
}

static unsigned int attach_counter(void)
{
	struct ibv_cq *cq = create_cq(DEPTH, NULL);
	struct ibv_comp_cntr *counter = create_counter();

	for (int round = 0; round < rounds(); round++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_UD,
			.sq_sig_all = 1,
		};
		struct ibv_qp_attach_comp_cntr_attr attr = { .op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_SEND };
		struct ibv_qp *qp = ibv_create_qp(pd, &init);

		check(qp, "ibv_create_qp");
		start();
		check(!ibv_qp_attach_comp_cntr(qp, counter, &attr), "ibv_qp_attach_comp_cntr");
		stop();
		round_over();
		check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	}
	check(!ibv_destroy_comp_cntr(counter), "ibv_destroy_comp_cntr");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	return 1;
}

static unsigned int read_counter(void)
{
	struct ibv_comp_cntr *counter = create_counter();
	unsigned int count = times(100);
	uint64_t sum = 0, value;

	check(!ibv_set_comp_cntr(counter, COUNTED), "ibv_set_comp_cntr");
	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++) {
			check(!ibv_read_comp_cntr(counter, &value), "ibv_read_comp_cntr");
			sum += value;
		}
		stop();
		round_over();
	}
	check(sum == (uint64_t)COUNTED * rounds() * count, "the values of a counter");
	check(!ibv_destroy_comp_cntr(counter), "ibv_destroy_comp_cntr");
	return count;
}

static unsigned int inc_counter(void)
{
	struct ibv_comp_cntr *counter = create_counter();
	unsigned int count = times(10);

	for (int round = 0; round < rounds(); round++) {
		start();
		for (unsigned int i = 0; i < count; i++)
			check(!ibv_inc_comp_cntr(counter, 1), "ibv_inc_comp_cntr");
		stop();
		round_over();
	}
	check(!ibv_destroy_comp_cntr(counter), "ibv_destroy_comp_cntr");
	return count;
}

static const struct {
	const char *name;
	unsigned int (*run)(void);
} operations[] = {
	{ "nothing", nothing },
	{ "list-warm", list_warm },
	{ "open-close", open_close },
	{ "query-device", query_device },
	{ "query-port", query_port },
	{ "query-gid", query_gid },
	{ "mr-4k", reg_dereg_4k },
	{ "mr-1m", reg_dereg_1m },
	{ "cq", create_destroy_cq },
	{ "qp", create_destroy_qp },
	{ "srq", create_destroy_srq },
	{ "ah", create_destroy_ah },
	{ "mw", alloc_dealloc_mw },
	{ "modify-to-rts", modify_to_rts },
	{ "post-receive", post_receive },
	{ "post-send", post_send_doorbell },
	{ "batch-list", batch_list },
	{ "batch-builder", batch_builder },
	{ "poll-empty", poll_empty },
	{ "poll-1", poll_full_1 },
	{ "poll-16", poll_full_16 },
	{ "iterate-1", iterate_full_1 },
	{ "iterate-16", iterate_full_16 },
	{ "arm-event-ack", arm_event_ack },
	{ "ping-pong", ping_pong },
	{ "counter-create", create_destroy_counter },
	{ "counter-attach", attach_counter },
	{ "counter-read", read_counter },
	{ "counter-inc", inc_counter },
};

static bool known(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(operations); i++)
		if (!strcmp(name, operations[i].name))
			return true;
	errno = ENOENT;
	return false;
}

static void run(const char *name, char **wanted)
{
	open_device(name);
	set_up();
	for (char **one = wanted; *one; one++)
		check(known(*one), *one);
	for (size_t i = 0; i < ARRAY_SIZE(operations); i++) {
		/* The first one tells what it takes to measure. */
		bool measured = i == 0;

		for (char **one = wanted; *one; one++)
			measured |= !strcmp(*one, operations[i].name);
		if (measured)
			operation_over(operations[i].name, operations[i].run());
	}
}

static void list_cold(void)
{
	uint64_t before = now();
	struct ibv_device **devices = ibv_get_device_list(NULL);

	check(devices, "ibv_get_device_list");
	printf("%" PRIu64 "\n", now() - before);
	ibv_free_device_list(devices);
}

static void first_completion(void)
{
	set_up();
	struct ibv_comp_channel *channel = create_channel();
	struct ibv_cq *cq = create_cq(DEPTH, channel);
	struct ibv_qp *qp = loop(cq, cq);

	check(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	post_receives(qp, 1);
	post_send(qp, 0);
	next_completion(cq, channel);
}

/* In KiB. */
static unsigned long resident(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	unsigned long size = 0;
	char line[256];

	check(status, "/proc/self/status");
	while (fgets(line, sizeof(line), status))
		if (!strncmp(line, "VmRSS:", strlen("VmRSS:")))
			size = strtoul(line + strlen("VmRSS:"), NULL, 10);
	fclose(status);
	return size;
}

static void many_qps(void)
{
	set_up();
	struct ibv_cq *cq = create_cq(DEPTH, NULL);
	unsigned long before = resident();
	struct ibv_qp *qps[MANY];

	for (int i = 0; i < MANY; i++)
		qps[i] = create_qp(cq, cq, 16);
	printf("%lu %lu\n", resident(), resident() - before);
	for (int i = 0; i < MANY; i++)
		check(!ibv_destroy_qp(qps[i]), "ibv_destroy_qp");
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: operations DEVICE time|step OPERATION...\n"
				"       operations DEVICE list|open|completion|memory\n");
		return 2;
	}
	const char *name = argv[1], *mode = argv[2];

	/* A completion that is lost ends the program. */
	alarm(LIFE);
	stepping = !strcmp(mode, "step");
	if (stepping || !strcmp(mode, "time")) {
		run(name, argv + 3);
		return 0;
	}
	if (!strcmp(mode, "list")) {
		list_cold();
		return 0;
	}
	open_device(name);
	if (!strcmp(mode, "memory")) {
		many_qps();
		return 0;
	}
	if (!strcmp(mode, "completion"))
		first_completion();
	printf("%" PRIu64 "\n", now());
	return 0;
}
