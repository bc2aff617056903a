"""Completion counters through rdma-core: the traffic of `uverbs counters run --errors` on an EFA device, with pyverbs.

Prints what that prints with --json. Exit status 1 if a counter is wrong.
"""

import argparse
import json
import sys
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.libibverbs_enums import (
    ibv_access_flags,
    ibv_qp_attach_comp_cntr_op,
    ibv_qp_attr_mask,
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
    ibv_send_flags,
    ibv_wc_status,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.providers.efa import efa_enums
from pyverbs.providers.efa.efadv import EfaQPInitAttr, SRDQPEx
from pyverbs.qp import QPAttachCompCntrAttr, QPAttr, QPCap, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR

OPERATIONS = {
    "SEND": ibv_qp_attach_comp_cntr_op.IBV_QP_ATTACH_COMP_CNTR_OP_SEND,
    "RECV": ibv_qp_attach_comp_cntr_op.IBV_QP_ATTACH_COMP_CNTR_OP_RECV,
    "RDMA_READ": ibv_qp_attach_comp_cntr_op.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
    "REMOTE_RDMA_READ": ibv_qp_attach_comp_cntr_op.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
    "RDMA_WRITE": ibv_qp_attach_comp_cntr_op.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
    "REMOTE_RDMA_WRITE": ibv_qp_attach_comp_cntr_op.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
}
PORT = 1
QKEY = 0x11111111
MESSAGE = 64
BATCH = 32
FLUSHED = 5
PATIENCE = 10


class End:
    """One of two queue pairs, with a counter for each operation."""

    def __init__(self, name, context, domain):
        self.name = name
        self.cq = CQ(context, 8 * BATCH)
        ops = ibv_qp_create_send_ops_flags
        init = QPInitAttrEx(
            qp_type=ibv_qp_type.IBV_QPT_DRIVER,
            cap=QPCap(max_send_wr=2 * BATCH, max_recv_wr=2 * BATCH),
            scq=self.cq,
            rcq=self.cq,
            pd=domain,
            comp_mask=ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD
            | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=ops.IBV_QP_EX_WITH_SEND
            | ops.IBV_QP_EX_WITH_SEND_WITH_IMM
            | ops.IBV_QP_EX_WITH_RDMA_READ
            | ops.IBV_QP_EX_WITH_RDMA_WRITE
            | ops.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        )
        driver_init = EfaQPInitAttr()
        driver_init.driver_qp_type = efa_enums.EFADV_QP_DRIVER_TYPE_SRD
        self.qp = SRDQPEx(context, init, driver_init)
        self.counters = {}
        for operation, bit in OPERATIONS.items():
            self.counters[operation] = CompCntr(context, CompCntrInitAttr())
            self.qp.attach_comp_cntr(self.counters[operation], QPAttachCompCntrAttr(op_mask=bit))
        self.expected = dict.fromkeys(OPERATIONS, 0)
        self.expected_errors = dict.fromkeys(OPERATIONS, 0)
        attributes = QPAttr(port_num=PORT)
        attributes.qkey = QKEY
        self.qp.to_rts(attributes)

    def expect(self, operations, completed, failed):
        for operation in operations:
            self.expected[operation] += completed
            self.expected_errors[operation] += failed

    def receive(self, count, sge):
        for number in range(count):
            self.qp.post_recv(RecvWR(wr_id=number, num_sge=1, sg=[sge]))

    def wait(self, count, status=ibv_wc_status.IBV_WC_SUCCESS):
        deadline = time.monotonic() + PATIENCE
        while count > 0:
            if time.monotonic() > deadline:
                sys.exit(f"{count} completions are missing after {PATIENCE} s")
            for completion in self.cq.poll(16)[1]:
                if completion.status != status:
                    sys.exit(f"a completion with status {completion.status} instead of {status}")
                count -= 1

    def fail(self):
        attributes = QPAttr(qp_state=ibv_qp_state.IBV_QPS_ERR)
        self.qp.modify(attributes, ibv_qp_attr_mask.IBV_QP_STATE)

    def close(self):
        # A counter cannot go while it is attached.
        for part in (self.qp, *self.counters.values(), self.cq):
            part.close()

    def rows(self):
        for operation, counter in self.counters.items():
            row = {
                "end": self.name,
                "operation": operation,
                "expected": self.expected[operation],
                "observed": counter.read(),
                "expected_errors": self.expected_errors[operation],
                "observed_errors": counter.read_err(),
            }
            row["ok"] = (row["expected"], row["expected_errors"]) == (row["observed"], row["observed_errors"])
            yield row


class Traffic:
    def __init__(self, device):
        self.context = Context(name=device)
        self.domain = PD(self.context)
        access = ibv_access_flags
        self.region = MR(
            self.domain,
            4 * MESSAGE,
            access.IBV_ACCESS_LOCAL_WRITE | access.IBV_ACCESS_REMOTE_READ | access.IBV_ACCESS_REMOTE_WRITE,
        )
        self.own, self.target = (
            SGE(self.region.buf + place * MESSAGE, MESSAGE, self.region.lkey) for place in (0, 2)
        )
        route = GlobalRoute(dgid=self.context.query_gid(PORT, 0), sgid_index=0)
        self.address = AH(self.domain, attr=AHAttr(gr=route, is_global=1, port_num=PORT))
        self.active = End("active", self.context, self.domain)
        self.passive = End("passive", self.context, self.domain)

    def post(self, number, begin):
        """Posts a request that `begin` chooses the kind of."""
        qp = self.active.qp
        qp.wr_start()
        qp.wr_id = number
        qp.wr_flags = ibv_send_flags.IBV_SEND_SIGNALED
        begin(qp)
        qp.wr_set_ud_addr(self.address, self.passive.qp.qp_num, QKEY)
        qp.wr_set_sge(self.own)
        qp.wr_complete()

    def run_kind(self, iters, begin, active, passive):
        """Runs operations of one kind in batches, counted at these operations of the two ends."""
        left = iters
        while left > 0:
            batch = min(left, BATCH)
            if "RECV" in passive:
                self.passive.receive(batch, self.target)
            for number in range(batch):
                self.post(number, begin)
            self.active.wait(batch)
            if "RECV" in passive:
                self.passive.wait(batch)
            left -= batch
        self.active.expect(active, iters, 0)
        self.passive.expect(passive, iters, 0)

    def run(self, iters):
        remote = self.region.rkey, self.region.buf + MESSAGE
        kinds = [
            (lambda qp: qp.wr_send(), ["SEND"], ["RECV"]),
            (lambda qp: qp.wr_send_imm(7), ["SEND"], ["RECV"]),
            (lambda qp: qp.wr_rdma_read(*remote), ["RDMA_READ"], ["REMOTE_RDMA_READ"]),
            (lambda qp: qp.wr_rdma_write(*remote), ["RDMA_WRITE"], ["REMOTE_RDMA_WRITE"]),
            (lambda qp: qp.wr_rdma_write_imm(*remote, 7), ["RDMA_WRITE"], ["REMOTE_RDMA_WRITE", "RECV"]),
        ]
        for kind in kinds:
            self.run_kind(iters, *kind)

    def run_errors(self):
        """A write with a wrong key, and receives that are flushed."""
        ends = self.active, self.passive
        for end in ends:
            end.receive(FLUSHED, self.target)
        wrong = self.region.rkey ^ 0xFFFFFFFF, self.region.buf + MESSAGE
        self.post(0, lambda qp: qp.wr_rdma_write(*wrong))
        self.active.wait(1, ibv_wc_status.IBV_WC_REM_ACCESS_ERR)
        self.active.expect(["RDMA_WRITE"], 0, 1)
        for end in ends:
            end.fail()
            end.wait(FLUSHED, ibv_wc_status.IBV_WC_WR_FLUSH_ERR)
            end.expect(["RECV"], 0, FLUSHED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("iters", type=int)
    options = parser.parse_args()
    traffic = Traffic(options.device)
    ends = traffic.active, traffic.passive
    try:
        traffic.run(options.iters)
        traffic.run_errors()
        rows = [row for end in ends for row in end.rows()]
    finally:
        for end in ends:
            end.close()
    report = {
        "ifname": options.device,
        "iters": options.iters,
        "counters": rows,
        "ok": all(row["ok"] for row in rows),
    }
    print(json.dumps(report, indent=2))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
