//! `rdma/rdma_user_rxe.h`: what the soft-RoCE driver `rdma_rxe` shares with the user.
//!
//! Queues are mapped memory: a [`QueueBuf`], then elements of `1 << log2_elem_size` bytes. Elements of
//! completion queues are [`user_verbs::Wc`](crate::user_verbs::Wc)s.

use crate::{Be16, Be32};

constants! {
    /// Kind of the addresses in [`Av`].
    mod network_type: u8 {
        IPV4 = 1 => "RXE_NETWORK_TYPE_IPV4",
        IPV6 = 2 => "RXE_NETWORK_TYPE_IPV6",
    }
}

structs! {
    /// IPv4 address of [`Av`].
    SockaddrIn: 16 = "sockaddr_in" {
        /// `AF_INET`.
        sin_family: u16,
        sin_port: Be16,
        sin_addr: [u8; 4],
        /// Zero.
        sin_zero: [u8; 8] = "__pad",
    }

    /// IPv6 address of [`Av`].
    SockaddrIn6: 28 = "sockaddr_in6" {
        /// `AF_INET6`.
        sin6_family: u16,
        sin6_port: Be16,
        sin6_flowinfo: Be32,
        sin6_addr: [u8; 16],
        sin6_scope_id: u32,
    }

    /// Global route header in an address vector.
    GlobalRoute: 24 = "rxe_global_route" {
        /// As on the wire.
        dgid: [u8; 16],
        /// 20 bits.
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        ..reserved: u8
    }

    /// Address vector: where a datagram goes.
    Av: 88 = "rxe_av" {
        /// Counts from 1.
        port_num: u8,
        /// From [`network_type`].
        network_type: u8,
        dmac: [u8; 6],
        grh: GlobalRoute,
        /// [`SockaddrIn`] or [`SockaddrIn6`] as `network_type` says.
        sgid_addr: [u8; 28],
        /// [`SockaddrIn`] or [`SockaddrIn6`] as `network_type` says.
        dgid_addr: [u8; 28],
    }

    /// The part of a send queue element that the user writes.
    SendWr: 144 = "rxe_send_wr" {
        wr_id: u64,
        /// Zero.
        reserved: u32,
        /// From [`user_verbs::wr_opcode`](crate::user_verbs::wr_opcode).
        opcode: u32,
        /// [`values::SendFlags`](crate::values::SendFlags).
        send_flags: u32,
        /// `imm_data`, big-endian, or `invalidate_rkey`, in host order.
        ex: u32,
        /// One of the `SendWr…` structs, as `opcode` says.
        wr: [u64; 15],
    }

    /// Scatter/gather element.
    Sge: 16 = "rxe_sge" {
        /// Address in the memory region.
        addr: u64,
        /// Bytes.
        length: u32,
        /// Local key.
        lkey: u32,
    }

    /// A queue to map: `mmap` the device file at `offset`.
    MmapInfo: 16 = "mminfo" {
        /// For `mmap`.
        offset: u64,
        /// Bytes to map.
        size: u32,
        /// Zero.
        pad: u32,
    }

    /// State of the payload; [`Sge`]s, inline data or the 8 bytes of an atomic write follow.
    DmaInfo: 24 = "rxe_dma_info" {
        /// Bytes of payload.
        length: u32,
        /// Bytes that remain; set to `length` when posting.
        resid: u32,
        /// Current element, zero when posting.
        cur_sge: u32,
        num_sge: u32,
        /// Offset into the current element, zero when posting.
        sge_offset: u32,
        /// Zero.
        reserved: u32,
    }

    /// Element of a send queue; see [`DmaInfo`] for what follows.
    SendWqe: 208 = "rxe_send_wqe" {
        wr: SendWr,
        /// Of the driver, zero when posting.
        status: u32,
        /// Of the driver, zero when posting.
        state: u32,
        /// Remote address of reads, writes and atomics.
        iova: u64,
        /// Of the driver, zero when posting.
        mask: u32,
        /// Of the driver.
        first_psn: u32,
        /// Of the driver.
        last_psn: u32,
        /// Of the driver.
        ack_length: u32,
        /// Number of the request in the send queue.
        ssn: u32,
        /// Of the driver.
        has_rd_atomic: u32,
        dma: DmaInfo,
    }

    /// Element of a receive queue; [`Sge`]s follow.
    RecvWqe: 40 = "rxe_recv_wqe" {
        wr_id: u64,
        /// Zero.
        reserved: u32,
        /// Zero.
        padding: u32,
        dma: DmaInfo,
    }

    /// Driver response of `CREATE_AH`.
    CreateAhResp: 8 = "rxe_create_ah_resp" {
        /// For [`SendWrUd::ah_num`].
        ah_num: u32,
        /// Zero.
        reserved: u32,
    }

    /// Driver response of creating a completion queue.
    CreateCqResp: 16 = "rxe_create_cq_resp" {
        mi: MmapInfo,
    }

    /// Driver response of `RESIZE_CQ`.
    ResizeCqResp: 16 = "rxe_resize_cq_resp" {
        mi: MmapInfo,
    }

    /// Driver response of creating a queue pair.
    CreateQpResp: 32 = "rxe_create_qp_resp" {
        rq_mi: MmapInfo,
        sq_mi: MmapInfo,
    }

    /// Driver response of creating a shared receive queue.
    CreateSrqResp: 24 = "rxe_create_srq_resp" {
        mi: MmapInfo,
        srq_num: u32,
        /// Zero.
        reserved: u32,
    }

    /// Driver input of `MODIFY_SRQ`.
    ModifySrqCmd: 8 = "rxe_modify_srq_cmd" {
        /// User address at which the kernel writes the [`MmapInfo`] of the new queue.
        mmap_info_addr: u64,
    }

    /// Start of a mapped queue; the elements follow. Who produces writes `producer_index`, who consumes
    /// writes `consumer_index`, each masked.
    QueueBuf: 384 = "rxe_queue_buf" {
        /// Size of an element in the mapping, as a power of two.
        log2_elem_size: u32,
        /// Number of elements minus one.
        index_mask: u32,
        pad_1: [u32; 30],
        /// Next element to be written.
        producer_index: u32,
        pad_2: [u32; 31],
        /// Next element to be read.
        consumer_index: u32,
        pad_3: [u32; 31],
    }

    /// [`SendWr::wr`] of RDMA reads and writes and of atomic writes.
    SendWrRdma: 16 = "rxe_send_wr.wr.rdma" {
        remote_addr: u64,
        /// Remote key.
        rkey: u32,
        /// Zero.
        reserved: u32,
    }

    /// [`SendWr::wr`] of flushes.
    SendWrFlush: 24 = "rxe_send_wr.wr.flush" {
        remote_addr: u64,
        /// Bytes.
        length: u32,
        /// Remote key.
        rkey: u32,
        /// [`PlacementType`](crate::user_verbs::PlacementType).
        r#type: u8 = "type",
        /// From [`selectivity_level`](crate::user_verbs::selectivity_level).
        level: u8,
        ..reserved: [u8; 6]
    }

    /// [`SendWr::wr`] of atomic operations.
    SendWrAtomic: 32 = "rxe_send_wr.wr.atomic" {
        remote_addr: u64,
        /// Value to compare with, or to add.
        compare_add: u64,
        /// Value to store if the comparison holds.
        swap: u64,
        /// Remote key.
        rkey: u32,
        /// Zero.
        reserved: u32,
    }

    /// [`SendWr::wr`] of datagrams.
    SendWrUd: 120 = "rxe_send_wr.wr.ud" {
        remote_qpn: u32,
        remote_qkey: u32,
        pkey_index: u16,
        /// Zero.
        reserved: u16,
        /// From [`CreateAhResp`]. If zero the kernel uses `av`.
        ah_num: u32,
        /// Zero.
        pad: [u32; 4],
        /// Used if `ah_num` is zero.
        av: Av,
    }

    /// [`SendWr::wr`] of binding a memory window.
    SendWrMw: 32 = "rxe_send_wr.wr.mw" {
        /// First byte of the window.
        addr: u64,
        /// Bytes.
        length: u64,
        /// Local key of the memory region.
        mr_lkey: u32,
        /// Remote key that the window has.
        mw_rkey: u32,
        /// Remote key that the window gets.
        rkey: u32,
        /// [`AccessFlags`](crate::ioctl_verbs::AccessFlags).
        access: u32,
    }
}
