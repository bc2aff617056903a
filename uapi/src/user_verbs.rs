//! `rdma/ib_user_verbs.h`: commands of `write(2)` and `INVOKE_WRITE`, their responses, and what event files
//! return.
//!
//! `INVOKE_WRITE` carries the same structs without [`CmdHdr`] and [`ExCmdHdr`]; driver data goes into
//! attributes of its own.

use crate::{Be16, Be32, Be64};

constants! {
    singles {
        /// Version of this ABI.
        ABI_VERSION: u32 = 6 => "IB_USER_VERBS_ABI_VERSION",
        /// First number of commands that have no plain form.
        CMD_THRESHOLD: u32 = 50 => "IB_USER_VERBS_CMD_THRESHOLD",
        /// Bits of a command word that hold the number.
        CMD_COMMAND_MASK: u32 = 0xff => "IB_USER_VERBS_CMD_COMMAND_MASK",
        /// Marks extended commands in a command word.
        CMD_FLAG_EXTENDED: u32 = 0x8000_0000 => "IB_USER_VERBS_CMD_FLAG_EXTENDED",
        /// Limit of [`ExCreateRwqIndTable::log_ind_tbl_size`].
        MAX_LOG_IND_TBL_SIZE: u32 = 13 => "IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE",
        /// Bytes of a device name with its final NUL.
        DEVICE_NAME_MAX: usize = 64 => "IB_DEVICE_NAME_MAX",
        /// All bits of [`CreateQpMask`] that kernels know.
        CREATE_QP_SUP_COMP_MASK: u32 = 1 => "IB_UVERBS_CREATE_QP_SUP_COMP_MASK",
    }

    /// Write commands. `write(2)` and `INVOKE_WRITE` want the `EX_` ones with [`CMD_FLAG_EXTENDED`] added.
    mod write_cmd: u32 {
        GET_CONTEXT = 0 => "IB_USER_VERBS_CMD_GET_CONTEXT",
        QUERY_DEVICE = 1 => "IB_USER_VERBS_CMD_QUERY_DEVICE",
        QUERY_PORT = 2 => "IB_USER_VERBS_CMD_QUERY_PORT",
        ALLOC_PD = 3 => "IB_USER_VERBS_CMD_ALLOC_PD",
        DEALLOC_PD = 4 => "IB_USER_VERBS_CMD_DEALLOC_PD",
        CREATE_AH = 5 => "IB_USER_VERBS_CMD_CREATE_AH",
        MODIFY_AH = 6 => "IB_USER_VERBS_CMD_MODIFY_AH",
        QUERY_AH = 7 => "IB_USER_VERBS_CMD_QUERY_AH",
        DESTROY_AH = 8 => "IB_USER_VERBS_CMD_DESTROY_AH",
        REG_MR = 9 => "IB_USER_VERBS_CMD_REG_MR",
        REG_SMR = 10 => "IB_USER_VERBS_CMD_REG_SMR",
        REREG_MR = 11 => "IB_USER_VERBS_CMD_REREG_MR",
        QUERY_MR = 12 => "IB_USER_VERBS_CMD_QUERY_MR",
        DEREG_MR = 13 => "IB_USER_VERBS_CMD_DEREG_MR",
        ALLOC_MW = 14 => "IB_USER_VERBS_CMD_ALLOC_MW",
        BIND_MW = 15 => "IB_USER_VERBS_CMD_BIND_MW",
        DEALLOC_MW = 16 => "IB_USER_VERBS_CMD_DEALLOC_MW",
        CREATE_COMP_CHANNEL = 17 => "IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL",
        CREATE_CQ = 18 => "IB_USER_VERBS_CMD_CREATE_CQ",
        RESIZE_CQ = 19 => "IB_USER_VERBS_CMD_RESIZE_CQ",
        DESTROY_CQ = 20 => "IB_USER_VERBS_CMD_DESTROY_CQ",
        POLL_CQ = 21 => "IB_USER_VERBS_CMD_POLL_CQ",
        PEEK_CQ = 22 => "IB_USER_VERBS_CMD_PEEK_CQ",
        REQ_NOTIFY_CQ = 23 => "IB_USER_VERBS_CMD_REQ_NOTIFY_CQ",
        CREATE_QP = 24 => "IB_USER_VERBS_CMD_CREATE_QP",
        QUERY_QP = 25 => "IB_USER_VERBS_CMD_QUERY_QP",
        MODIFY_QP = 26 => "IB_USER_VERBS_CMD_MODIFY_QP",
        DESTROY_QP = 27 => "IB_USER_VERBS_CMD_DESTROY_QP",
        POST_SEND = 28 => "IB_USER_VERBS_CMD_POST_SEND",
        POST_RECV = 29 => "IB_USER_VERBS_CMD_POST_RECV",
        ATTACH_MCAST = 30 => "IB_USER_VERBS_CMD_ATTACH_MCAST",
        DETACH_MCAST = 31 => "IB_USER_VERBS_CMD_DETACH_MCAST",
        CREATE_SRQ = 32 => "IB_USER_VERBS_CMD_CREATE_SRQ",
        MODIFY_SRQ = 33 => "IB_USER_VERBS_CMD_MODIFY_SRQ",
        QUERY_SRQ = 34 => "IB_USER_VERBS_CMD_QUERY_SRQ",
        DESTROY_SRQ = 35 => "IB_USER_VERBS_CMD_DESTROY_SRQ",
        POST_SRQ_RECV = 36 => "IB_USER_VERBS_CMD_POST_SRQ_RECV",
        OPEN_XRCD = 37 => "IB_USER_VERBS_CMD_OPEN_XRCD",
        CLOSE_XRCD = 38 => "IB_USER_VERBS_CMD_CLOSE_XRCD",
        CREATE_XSRQ = 39 => "IB_USER_VERBS_CMD_CREATE_XSRQ",
        OPEN_QP = 40 => "IB_USER_VERBS_CMD_OPEN_QP",
        EX_QUERY_DEVICE = 1 => "IB_USER_VERBS_EX_CMD_QUERY_DEVICE",
        EX_CREATE_CQ = 18 => "IB_USER_VERBS_EX_CMD_CREATE_CQ",
        EX_CREATE_QP = 24 => "IB_USER_VERBS_EX_CMD_CREATE_QP",
        EX_MODIFY_QP = 26 => "IB_USER_VERBS_EX_CMD_MODIFY_QP",
        EX_CREATE_FLOW = 50 => "IB_USER_VERBS_EX_CMD_CREATE_FLOW",
        EX_DESTROY_FLOW = 51 => "IB_USER_VERBS_EX_CMD_DESTROY_FLOW",
        EX_CREATE_WQ = 52 => "IB_USER_VERBS_EX_CMD_CREATE_WQ",
        EX_MODIFY_WQ = 53 => "IB_USER_VERBS_EX_CMD_MODIFY_WQ",
        EX_DESTROY_WQ = 54 => "IB_USER_VERBS_EX_CMD_DESTROY_WQ",
        EX_CREATE_RWQ_IND_TBL = 55 => "IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL",
        EX_DESTROY_RWQ_IND_TBL = 56 => "IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL",
        EX_MODIFY_CQ = 57 => "IB_USER_VERBS_EX_CMD_MODIFY_CQ",
    }

    /// What a flush covers.
    mod selectivity_level: u32 {
        /// A range of the memory region.
        RANGE = 0 => "IB_FLUSH_RANGE",
        /// The whole memory region.
        MR = 1 => "IB_FLUSH_MR",
    }

    /// Operations that completed on a send queue; those of receive queues are in
    /// [`values::wc_opcode`](crate::values::wc_opcode).
    mod wc_opcode: u32 {
        SEND = 0 => "IB_UVERBS_WC_SEND",
        RDMA_WRITE = 1 => "IB_UVERBS_WC_RDMA_WRITE",
        RDMA_READ = 2 => "IB_UVERBS_WC_RDMA_READ",
        COMP_SWAP = 3 => "IB_UVERBS_WC_COMP_SWAP",
        FETCH_ADD = 4 => "IB_UVERBS_WC_FETCH_ADD",
        BIND_MW = 5 => "IB_UVERBS_WC_BIND_MW",
        LOCAL_INV = 6 => "IB_UVERBS_WC_LOCAL_INV",
        TSO = 7 => "IB_UVERBS_WC_TSO",
        FLUSH = 8 => "IB_UVERBS_WC_FLUSH",
        ATOMIC_WRITE = 9 => "IB_UVERBS_WC_ATOMIC_WRITE",
    }

    /// Operations of send work requests.
    mod wr_opcode: u32 {
        RDMA_WRITE = 0 => "IB_UVERBS_WR_RDMA_WRITE",
        RDMA_WRITE_WITH_IMM = 1 => "IB_UVERBS_WR_RDMA_WRITE_WITH_IMM",
        SEND = 2 => "IB_UVERBS_WR_SEND",
        SEND_WITH_IMM = 3 => "IB_UVERBS_WR_SEND_WITH_IMM",
        RDMA_READ = 4 => "IB_UVERBS_WR_RDMA_READ",
        ATOMIC_CMP_AND_SWP = 5 => "IB_UVERBS_WR_ATOMIC_CMP_AND_SWP",
        ATOMIC_FETCH_AND_ADD = 6 => "IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD",
        LOCAL_INV = 7 => "IB_UVERBS_WR_LOCAL_INV",
        BIND_MW = 8 => "IB_UVERBS_WR_BIND_MW",
        SEND_WITH_INV = 9 => "IB_UVERBS_WR_SEND_WITH_INV",
        TSO = 10 => "IB_UVERBS_WR_TSO",
        RDMA_READ_WITH_INV = 11 => "IB_UVERBS_WR_RDMA_READ_WITH_INV",
        MASKED_ATOMIC_CMP_AND_SWP = 12 => "IB_UVERBS_WR_MASKED_ATOMIC_CMP_AND_SWP",
        MASKED_ATOMIC_FETCH_AND_ADD = 13 => "IB_UVERBS_WR_MASKED_ATOMIC_FETCH_AND_ADD",
        FLUSH = 14 => "IB_UVERBS_WR_FLUSH",
        ATOMIC_WRITE = 15 => "IB_UVERBS_WR_ATOMIC_WRITE",
    }
}

flags! {
    /// How far flushed data must have come.
    PlacementType: u32 {
        GLOBAL = 1 << 0 => "IB_FLUSH_GLOBAL",
        PERSISTENT = 1 << 1 => "IB_FLUSH_PERSISTENT",
    }

    /// On-demand paging in general.
    OdpGeneralCaps: u64 {
        SUPPORT = 1 << 0 => "IB_UVERBS_ODP_SUPPORT",
        SUPPORT_IMPLICIT = 1 << 1 => "IB_UVERBS_ODP_SUPPORT_IMPLICIT",
    }

    /// Operations that work with on-demand paging.
    OdpTransportCaps: u32 {
        SEND = 1 << 0 => "IB_UVERBS_ODP_SUPPORT_SEND",
        RECV = 1 << 1 => "IB_UVERBS_ODP_SUPPORT_RECV",
        WRITE = 1 << 2 => "IB_UVERBS_ODP_SUPPORT_WRITE",
        READ = 1 << 3 => "IB_UVERBS_ODP_SUPPORT_READ",
        ATOMIC = 1 << 4 => "IB_UVERBS_ODP_SUPPORT_ATOMIC",
        SRQ_RECV = 1 << 5 => "IB_UVERBS_ODP_SUPPORT_SRQ_RECV",
        FLUSH = 1 << 6 => "IB_UVERBS_ODP_SUPPORT_FLUSH",
        ATOMIC_WRITE = 1 << 7 => "IB_UVERBS_ODP_SUPPORT_ATOMIC_WRITE",
    }

    /// Creation flags of completion queues.
    CqCreateFlags: u32 {
        /// Completions carry the device's time.
        TIMESTAMP_COMPLETION = 1 << 0 => "IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION",
        /// An overrun is no error.
        IGNORE_OVERRUN = 1 << 1 => "IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN",
    }

    /// Optional fields of [`ExCreateQp`] that are valid.
    CreateQpMask: u32 {
        IND_TABLE = 1 << 0 => "IB_UVERBS_CREATE_QP_MASK_IND_TABLE",
    }

    /// Capabilities of a device. Old kernels may set bits that are not listed.
    DeviceCapFlags: u64 {
        RESIZE_MAX_WR = 1 << 0 => "IB_UVERBS_DEVICE_RESIZE_MAX_WR",
        BAD_PKEY_CNTR = 1 << 1 => "IB_UVERBS_DEVICE_BAD_PKEY_CNTR",
        BAD_QKEY_CNTR = 1 << 2 => "IB_UVERBS_DEVICE_BAD_QKEY_CNTR",
        RAW_MULTI = 1 << 3 => "IB_UVERBS_DEVICE_RAW_MULTI",
        AUTO_PATH_MIG = 1 << 4 => "IB_UVERBS_DEVICE_AUTO_PATH_MIG",
        CHANGE_PHY_PORT = 1 << 5 => "IB_UVERBS_DEVICE_CHANGE_PHY_PORT",
        UD_AV_PORT_ENFORCE = 1 << 6 => "IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE",
        CURR_QP_STATE_MOD = 1 << 7 => "IB_UVERBS_DEVICE_CURR_QP_STATE_MOD",
        SHUTDOWN_PORT = 1 << 8 => "IB_UVERBS_DEVICE_SHUTDOWN_PORT",
        PORT_ACTIVE_EVENT = 1 << 10 => "IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT",
        SYS_IMAGE_GUID = 1 << 11 => "IB_UVERBS_DEVICE_SYS_IMAGE_GUID",
        RC_RNR_NAK_GEN = 1 << 12 => "IB_UVERBS_DEVICE_RC_RNR_NAK_GEN",
        SRQ_RESIZE = 1 << 13 => "IB_UVERBS_DEVICE_SRQ_RESIZE",
        N_NOTIFY_CQ = 1 << 14 => "IB_UVERBS_DEVICE_N_NOTIFY_CQ",
        MEM_WINDOW = 1 << 17 => "IB_UVERBS_DEVICE_MEM_WINDOW",
        UD_IP_CSUM = 1 << 18 => "IB_UVERBS_DEVICE_UD_IP_CSUM",
        XRC = 1 << 20 => "IB_UVERBS_DEVICE_XRC",
        MEM_MGT_EXTENSIONS = 1 << 21 => "IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS",
        MEM_WINDOW_TYPE_2A = 1 << 23 => "IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2A",
        MEM_WINDOW_TYPE_2B = 1 << 24 => "IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B",
        RC_IP_CSUM = 1 << 25 => "IB_UVERBS_DEVICE_RC_IP_CSUM",
        /// Superseded by [`RawPacketCaps::IP_CSUM`].
        RAW_IP_CSUM = 1 << 26 => "IB_UVERBS_DEVICE_RAW_IP_CSUM",
        MANAGED_FLOW_STEERING = 1 << 29 => "IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING",
        /// Superseded by [`RawPacketCaps::SCATTER_FCS`].
        RAW_SCATTER_FCS = 1 << 34 => "IB_UVERBS_DEVICE_RAW_SCATTER_FCS",
        PCI_WRITE_END_PADDING = 1 << 36 => "IB_UVERBS_DEVICE_PCI_WRITE_END_PADDING",
        FLUSH_GLOBAL = 1 << 38 => "IB_UVERBS_DEVICE_FLUSH_GLOBAL",
        FLUSH_PERSISTENT = 1 << 39 => "IB_UVERBS_DEVICE_FLUSH_PERSISTENT",
        ATOMIC_WRITE = 1 << 40 => "IB_UVERBS_DEVICE_ATOMIC_WRITE",
        /// A confidential guest: DMA goes through bounce buffers.
        CC_DMA_BOUNCE = 1 << 41 => "IB_UVERBS_DEVICE_CC_DMA_BOUNCE",
    }

    /// Capabilities for raw packets.
    RawPacketCaps: u32 {
        CVLAN_STRIPPING = 1 << 0 => "IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING",
        SCATTER_FCS = 1 << 1 => "IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS",
        IP_CSUM = 1 << 2 => "IB_UVERBS_RAW_PACKET_CAP_IP_CSUM",
        DELAY_DROP = 1 << 3 => "IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP",
    }
}

structs! {
    /// What a read of an asynchronous event file returns.
    AsyncEventDesc: 16 = "ib_uverbs_async_event_desc" {
        /// `user_handle` of the object, or the number of the port.
        element: u64,
        /// From [`values::event_type`](crate::values::event_type).
        event_type: u32,
        /// Zero.
        reserved: u32,
    }

    /// What a read of a completion channel returns.
    CompEventDesc: 8 = "ib_uverbs_comp_event_desc" {
        /// `user_handle` of the completion queue.
        cq_handle: u64,
    }

    /// Limits of completion moderation.
    CqModerationCaps: 8 = "ib_uverbs_cq_moderation_caps" {
        /// Completions.
        max_cq_moderation_count: u16,
        /// Microseconds.
        max_cq_moderation_period: u16,
        /// Zero.
        reserved: u32,
    }

    /// Head of every command of `write(2)`; `INVOKE_WRITE` does without.
    CmdHdr: 8 = "ib_uverbs_cmd_hdr" {
        /// From [`write_cmd`].
        command: u32,
        /// 32-bit words of the command with this head (extended: 64-bit words after both heads).
        in_words: u16,
        /// 32-bit words of the response (extended: 64-bit words).
        out_words: u16,
    }

    /// Second head of extended commands of `write(2)`.
    ExCmdHdr: 16 = "ib_uverbs_ex_cmd_hdr" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// 64-bit words of driver data.
        provider_in_words: u16,
        /// 64-bit words of the driver's response.
        provider_out_words: u16,
        cmd_hdr_reserved: u32,
    }

    /// Command `GET_CONTEXT`.
    GetContext: 8 = "ib_uverbs_get_context" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
    }

    /// Response of `GET_CONTEXT`.
    GetContextResp: 8 = "ib_uverbs_get_context_resp" {
        /// New file of asynchronous events.
        async_fd: u32,
        num_comp_vectors: u32,
    }

    /// Command `QUERY_DEVICE`.
    QueryDevice: 8 = "ib_uverbs_query_device" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
    }

    /// Response of `QUERY_DEVICE`: limits of the device.
    QueryDeviceResp: 176 = "ib_uverbs_query_device_resp" {
        fw_ver: u64,
        node_guid: Be64,
        sys_image_guid: Be64,
        /// Bytes.
        max_mr_size: u64,
        /// Bit n: pages of 2^n bytes.
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        /// Lower half of [`DeviceCapFlags`].
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        /// From [`values::atomic_cap`](crate::values::atomic_cap).
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        /// 4.096 µs × 2^value.
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        /// Zero.
        reserved: [u8; 4],
    }

    /// Command `EX_QUERY_DEVICE`.
    ExQueryDevice: 8 = "ib_uverbs_ex_query_device" {
        comp_mask: u32,
        /// Zero.
        reserved: u32,
    }

    /// Capabilities of on-demand paging.
    OdpCaps: 24 = "ib_uverbs_odp_caps" {
        /// [`OdpGeneralCaps`].
        general_caps: u64,
        /// [`OdpTransportCaps`].
        rc_odp_caps: u32 = "per_transport_caps.rc_odp_caps",
        /// [`OdpTransportCaps`].
        uc_odp_caps: u32 = "per_transport_caps.uc_odp_caps",
        /// [`OdpTransportCaps`].
        ud_odp_caps: u32 = "per_transport_caps.ud_odp_caps",
        /// Zero.
        reserved: u32,
    }

    /// Capabilities of receive side scaling.
    RssCaps: 16 = "ib_uverbs_rss_caps" {
        /// Bit n: queue pair type n.
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        /// Zero.
        reserved: u32,
    }

    /// Capabilities of tag matching.
    TmCaps: 24 = "ib_uverbs_tm_caps" {
        /// Bytes.
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        /// Bit 0: rendezvous offload on RC.
        flags: u32,
        max_ops: u32,
        max_sge: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `EX_QUERY_DEVICE`; older kernels return less, see `response_length`.
    ExQueryDeviceResp: 304 = "ib_uverbs_ex_query_device_resp" {
        base: QueryDeviceResp,
        comp_mask: u32,
        /// Bytes that the kernel has written.
        response_length: u32,
        odp_caps: OdpCaps,
        /// Valid bits of a completion's timestamp.
        timestamp_mask: u64,
        /// kHz.
        hca_core_clock: u64,
        /// [`DeviceCapFlags`].
        device_cap_flags_ex: u64,
        rss_caps: RssCaps,
        max_wq_type_rq: u32,
        /// [`RawPacketCaps`].
        raw_packet_caps: u32,
        tm_caps: TmCaps,
        cq_moderation_caps: CqModerationCaps,
        /// Bytes of device memory.
        max_dm_size: u64,
        /// [`OdpTransportCaps`].
        xrc_odp_caps: u32,
        /// Zero.
        reserved: u32,
    }

    /// Command `QUERY_PORT`.
    QueryPort: 16 = "ib_uverbs_query_port" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// Counts from 1.
        port_num: u8,
        /// Zero.
        reserved: [u8; 7],
    }

    /// Response of `QUERY_PORT`.
    QueryPortResp: 40 = "ib_uverbs_query_port_resp" {
        /// [`PortCapFlags`](crate::ioctl_verbs::PortCapFlags).
        port_cap_flags: u32,
        /// Bytes.
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        /// From [`values::port_state`](crate::values::port_state).
        state: u8,
        /// From [`values::mtu`](crate::values::mtu).
        max_mtu: u8,
        /// From [`values::mtu`](crate::values::mtu).
        active_mtu: u8,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        /// 4.096 µs × 2^value.
        subnet_timeout: u8,
        init_type_reply: u8,
        /// From [`values::port_width`](crate::values::port_width).
        active_width: u8,
        /// From [`values::port_speed`](crate::values::port_speed); cannot tell more than NDR.
        active_speed: u8,
        /// From [`values::port_phys_state`](crate::values::port_phys_state).
        phys_state: u8,
        /// From [`values::link_layer`](crate::values::link_layer).
        link_layer: u8,
        /// [`QueryPortFlags`](crate::ioctl_verbs::QueryPortFlags).
        flags: u8,
        /// Zero.
        reserved: u8,
    }

    /// Command `ALLOC_PD`.
    AllocPd: 8 = "ib_uverbs_alloc_pd" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
    }

    /// Response of `ALLOC_PD`.
    AllocPdResp: 4 = "ib_uverbs_alloc_pd_resp" {
        pd_handle: u32,
    }

    /// Command `DEALLOC_PD`.
    DeallocPd: 4 = "ib_uverbs_dealloc_pd" {
        pd_handle: u32,
    }

    /// Command `OPEN_XRCD`.
    OpenXrcd: 16 = "ib_uverbs_open_xrcd" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// File whose inode names the domain; all ones for none.
        fd: u32,
        /// `O_CREAT` and `O_EXCL`.
        oflags: u32,
    }

    /// Response of `OPEN_XRCD`.
    OpenXrcdResp: 4 = "ib_uverbs_open_xrcd_resp" {
        xrcd_handle: u32,
    }

    /// Command `CLOSE_XRCD`.
    CloseXrcd: 4 = "ib_uverbs_close_xrcd" {
        xrcd_handle: u32,
    }

    /// Command `REG_MR`.
    RegMr: 40 = "ib_uverbs_reg_mr" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// User address.
        start: u64,
        /// Bytes.
        length: u64,
        /// Address by which work requests name the first byte; equal to `start` modulo the page size.
        hca_va: u64,
        pd_handle: u32,
        /// [`AccessFlags`](crate::ioctl_verbs::AccessFlags).
        access_flags: u32,
    }

    /// Response of `REG_MR`.
    RegMrResp: 12 = "ib_uverbs_reg_mr_resp" {
        mr_handle: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    }

    /// Command `REREG_MR`.
    ReregMr: 48 = "ib_uverbs_rereg_mr" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        mr_handle: u32,
        /// [`values::MrReregFlags`](crate::values::MrReregFlags).
        flags: u32,
        /// User address.
        start: u64,
        /// Bytes.
        length: u64,
        /// Address by which work requests name the first byte; equal to `start` modulo the page size.
        hca_va: u64,
        pd_handle: u32,
        /// [`AccessFlags`](crate::ioctl_verbs::AccessFlags).
        access_flags: u32,
    }

    /// Response of `REREG_MR`.
    ReregMrResp: 8 = "ib_uverbs_rereg_mr_resp" {
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    }

    /// Command `DEREG_MR`.
    DeregMr: 4 = "ib_uverbs_dereg_mr" {
        mr_handle: u32,
    }

    /// Command `ALLOC_MW`.
    AllocMw: 16 = "ib_uverbs_alloc_mw" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        pd_handle: u32,
        /// From [`values::mw_type`](crate::values::mw_type).
        mw_type: u8,
        /// Zero.
        reserved: [u8; 3],
    }

    /// Response of `ALLOC_MW`.
    AllocMwResp: 8 = "ib_uverbs_alloc_mw_resp" {
        mw_handle: u32,
        /// Remote key.
        rkey: u32,
    }

    /// Command `DEALLOC_MW`.
    DeallocMw: 4 = "ib_uverbs_dealloc_mw" {
        mw_handle: u32,
    }

    /// Command `CREATE_COMP_CHANNEL`.
    CreateCompChannel: 8 = "ib_uverbs_create_comp_channel" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
    }

    /// Response of `CREATE_COMP_CHANNEL`.
    CreateCompChannelResp: 4 = "ib_uverbs_create_comp_channel_resp" {
        /// New completion channel.
        fd: u32,
    }

    /// Command `CREATE_CQ`.
    CreateCq: 32 = "ib_uverbs_create_cq" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// Returned in events of the object.
        user_handle: u64,
        /// Least number of entries.
        cqe: u32,
        comp_vector: u32,
        /// File descriptor of the completion channel, -1 for none.
        comp_channel: i32,
        /// Zero.
        reserved: u32,
    }

    /// Command `EX_CREATE_CQ`.
    ExCreateCq: 32 = "ib_uverbs_ex_create_cq" {
        /// Returned in events of the object.
        user_handle: u64,
        /// Least number of entries.
        cqe: u32,
        comp_vector: u32,
        /// File descriptor of the completion channel, -1 for none.
        comp_channel: i32,
        comp_mask: u32,
        /// [`CqCreateFlags`].
        flags: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `CREATE_CQ`.
    CreateCqResp: 8 = "ib_uverbs_create_cq_resp" {
        cq_handle: u32,
        /// Entries.
        cqe: u32,
    }

    /// Response of `EX_CREATE_CQ`.
    ExCreateCqResp: 16 = "ib_uverbs_ex_create_cq_resp" {
        base: CreateCqResp,
        comp_mask: u32,
        /// Bytes that the kernel has written.
        response_length: u32,
    }

    /// Command `RESIZE_CQ`.
    ResizeCq: 16 = "ib_uverbs_resize_cq" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        cq_handle: u32,
        /// Least number of entries.
        cqe: u32,
    }

    /// Response of `RESIZE_CQ`.
    ResizeCqResp: 8 = "ib_uverbs_resize_cq_resp" {
        /// Entries.
        cqe: u32,
        /// Zero.
        reserved: u32,
    }

    /// Command `POLL_CQ`.
    PollCq: 16 = "ib_uverbs_poll_cq" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        cq_handle: u32,
        /// Most completions to return.
        ne: u32,
    }

    /// A work completion. Also an element of the completion queue that rxe shares with the user.
    Wc: 48 = "ib_uverbs_wc" {
        wr_id: u64,
        /// From [`values::wc_status`](crate::values::wc_status).
        status: u32,
        /// From [`wc_opcode`] or [`values::wc_opcode`](crate::values::wc_opcode).
        opcode: u32,
        vendor_err: u32,
        /// Bytes received, read or written back by an atomic operation.
        byte_len: u32,
        /// `imm_data`, big-endian, or `invalidate_rkey`, in host order.
        ex: u32,
        qp_num: u32,
        src_qp: u32,
        /// [`values::WcFlags`](crate::values::WcFlags).
        wc_flags: u32,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
        /// Counts from 1.
        port_num: u8,
        /// Zero.
        reserved: u8,
    }

    /// Response of `POLL_CQ`; [`Wc`]s follow.
    PollCqResp: 8 = "ib_uverbs_poll_cq_resp" {
        count: u32,
        /// Zero.
        reserved: u32,
    }

    /// Command `REQ_NOTIFY_CQ`.
    ReqNotifyCq: 8 = "ib_uverbs_req_notify_cq" {
        cq_handle: u32,
        /// Zero: any completion; else only solicited ones and errors.
        solicited_only: u32,
    }

    /// Command `DESTROY_CQ`.
    DestroyCq: 16 = "ib_uverbs_destroy_cq" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        cq_handle: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `DESTROY_CQ` and of `CQ.DESTROY`.
    DestroyCqResp: 8 = "ib_uverbs_destroy_cq_resp" {
        /// Completion events that the channel has returned for this queue.
        comp_events_reported: u32,
        /// Asynchronous events that were returned for this queue.
        async_events_reported: u32,
    }

    /// Global route header of an address.
    GlobalRoute: 24 = "ib_uverbs_global_route" {
        dgid: [u8; 16],
        /// 20 bits.
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        /// Zero.
        reserved: u8,
    }

    /// Address of a remote port.
    AhAttr: 32 = "ib_uverbs_ah_attr" {
        grh: GlobalRoute,
        dlid: u16,
        /// Service level.
        sl: u8,
        src_path_bits: u8,
        /// From [`values::rate`](crate::values::rate).
        static_rate: u8,
        /// Whether the global route is used.
        is_global: u8,
        /// Counts from 1.
        port_num: u8,
        /// Zero.
        reserved: u8,
    }

    /// Attributes of a queue pair, as the connection manager returns them.
    QpAttr: 144 = "ib_uverbs_qp_attr" {
        /// [`values::QpAttrMask`](crate::values::QpAttrMask).
        qp_attr_mask: u32,
        /// From [`values::qp_state`](crate::values::qp_state).
        qp_state: u32,
        /// From [`values::qp_state`](crate::values::qp_state).
        cur_qp_state: u32,
        /// From [`values::mtu`](crate::values::mtu).
        path_mtu: u32,
        /// From [`values::mig_state`](crate::values::mig_state).
        path_mig_state: u32,
        qkey: u32,
        /// 24 bits.
        rq_psn: u32,
        /// 24 bits.
        sq_psn: u32,
        /// 24 bits.
        dest_qp_num: u32,
        /// [`AccessFlags`](crate::ioctl_verbs::AccessFlags).
        qp_access_flags: u32,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        /// Work requests that the send queue holds.
        max_send_wr: u32,
        /// Work requests that the receive queue holds.
        max_recv_wr: u32,
        /// Scatter/gather elements of a send work request.
        max_send_sge: u32,
        /// Scatter/gather elements of a receive work request.
        max_recv_sge: u32,
        /// Bytes of payload that a send work request carries inline.
        max_inline_data: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        /// Reads and atomics that may be outstanding as initiator.
        max_rd_atomic: u8,
        /// Reads and atomics that may be outstanding as target.
        max_dest_rd_atomic: u8,
        /// Code of the time that peers wait for a receive buffer, 5 bits (12: 0.64 ms; 0: 655.36 ms).
        min_rnr_timer: u8,
        /// Counts from 1.
        port_num: u8,
        /// Wait for an acknowledgement 4.096 µs × 2^value, 5 bits; zero is for ever.
        timeout: u8,
        /// 3 bits.
        retry_cnt: u8,
        /// 3 bits; 7 is for ever.
        rnr_retry: u8,
        alt_port_num: u8,
        /// As `timeout`, for the alternate path.
        alt_timeout: u8,
        /// Zero.
        reserved: [u8; 5],
    }

    /// Command `CREATE_QP`.
    CreateQp: 56 = "ib_uverbs_create_qp" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// Returned in events of the object.
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        /// Work requests that the send queue holds.
        max_send_wr: u32,
        /// Work requests that the receive queue holds.
        max_recv_wr: u32,
        /// Scatter/gather elements of a send work request.
        max_send_sge: u32,
        /// Scatter/gather elements of a receive work request.
        max_recv_sge: u32,
        /// Bytes of payload that a send work request carries inline.
        max_inline_data: u32,
        /// Nonzero: every send work request completes.
        sq_sig_all: u8,
        /// From [`ioctl_verbs::qp_type`](crate::ioctl_verbs::qp_type).
        qp_type: u8,
        /// Whether `srq_handle` is used.
        is_srq: u8,
        /// Zero.
        reserved: u8,
    }

    /// Command `EX_CREATE_QP`.
    ExCreateQp: 64 = "ib_uverbs_ex_create_qp" {
        /// Returned in events of the object.
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        /// Work requests that the send queue holds.
        max_send_wr: u32,
        /// Work requests that the receive queue holds.
        max_recv_wr: u32,
        /// Scatter/gather elements of a send work request.
        max_send_sge: u32,
        /// Scatter/gather elements of a receive work request.
        max_recv_sge: u32,
        /// Bytes of payload that a send work request carries inline.
        max_inline_data: u32,
        /// Nonzero: every send work request completes.
        sq_sig_all: u8,
        /// From [`ioctl_verbs::qp_type`](crate::ioctl_verbs::qp_type).
        qp_type: u8,
        /// Whether `srq_handle` is used.
        is_srq: u8,
        /// Zero.
        reserved: u8,
        /// [`CreateQpMask`].
        comp_mask: u32,
        /// [`QpCreateFlags`](crate::ioctl_verbs::QpCreateFlags).
        create_flags: u32,
        rwq_ind_tbl_handle: u32,
        source_qpn: u32,
    }

    /// Command `OPEN_QP`.
    OpenQp: 32 = "ib_uverbs_open_qp" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// Returned in events of the object.
        user_handle: u64,
        pd_handle: u32,
        qpn: u32,
        /// From [`ioctl_verbs::qp_type`](crate::ioctl_verbs::qp_type).
        qp_type: u8,
        /// Zero.
        reserved: [u8; 7],
    }

    /// Response of `CREATE_QP` and `OPEN_QP`.
    CreateQpResp: 32 = "ib_uverbs_create_qp_resp" {
        qp_handle: u32,
        qpn: u32,
        /// Work requests that the send queue holds.
        max_send_wr: u32,
        /// Work requests that the receive queue holds.
        max_recv_wr: u32,
        /// Scatter/gather elements of a send work request.
        max_send_sge: u32,
        /// Scatter/gather elements of a receive work request.
        max_recv_sge: u32,
        /// Bytes of payload that a send work request carries inline.
        max_inline_data: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `EX_CREATE_QP`.
    ExCreateQpResp: 40 = "ib_uverbs_ex_create_qp_resp" {
        base: CreateQpResp,
        comp_mask: u32,
        /// Bytes that the kernel has written.
        response_length: u32,
    }

    /// Address of the peer of a queue pair.
    QpDest: 32 = "ib_uverbs_qp_dest" {
        dgid: [u8; 16],
        /// 20 bits.
        flow_label: u32,
        dlid: u16,
        /// Zero.
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        /// Service level.
        sl: u8,
        src_path_bits: u8,
        /// From [`values::rate`](crate::values::rate).
        static_rate: u8,
        /// Whether the global route is used.
        is_global: u8,
        /// Counts from 1.
        port_num: u8,
    }

    /// Command `QUERY_QP`.
    QueryQp: 16 = "ib_uverbs_query_qp" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        qp_handle: u32,
        /// [`values::QpAttrMask`](crate::values::QpAttrMask).
        attr_mask: u32,
    }

    /// Response of `QUERY_QP`.
    QueryQpResp: 128 = "ib_uverbs_query_qp_resp" {
        dest: QpDest,
        alt_dest: QpDest,
        /// Work requests that the send queue holds.
        max_send_wr: u32,
        /// Work requests that the receive queue holds.
        max_recv_wr: u32,
        /// Scatter/gather elements of a send work request.
        max_send_sge: u32,
        /// Scatter/gather elements of a receive work request.
        max_recv_sge: u32,
        /// Bytes of payload that a send work request carries inline.
        max_inline_data: u32,
        qkey: u32,
        /// 24 bits.
        rq_psn: u32,
        /// 24 bits.
        sq_psn: u32,
        /// 24 bits.
        dest_qp_num: u32,
        /// [`AccessFlags`](crate::ioctl_verbs::AccessFlags).
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        /// From [`values::qp_state`](crate::values::qp_state).
        qp_state: u8,
        /// From [`values::qp_state`](crate::values::qp_state).
        cur_qp_state: u8,
        /// From [`values::mtu`](crate::values::mtu).
        path_mtu: u8,
        /// From [`values::mig_state`](crate::values::mig_state).
        path_mig_state: u8,
        sq_draining: u8,
        /// Reads and atomics that may be outstanding as initiator.
        max_rd_atomic: u8,
        /// Reads and atomics that may be outstanding as target.
        max_dest_rd_atomic: u8,
        /// Code of the time that peers wait for a receive buffer, 5 bits (12: 0.64 ms; 0: 655.36 ms).
        min_rnr_timer: u8,
        /// Counts from 1.
        port_num: u8,
        /// Wait for an acknowledgement 4.096 µs × 2^value, 5 bits; zero is for ever.
        timeout: u8,
        /// 3 bits.
        retry_cnt: u8,
        /// 3 bits; 7 is for ever.
        rnr_retry: u8,
        alt_port_num: u8,
        /// As `timeout`, for the alternate path.
        alt_timeout: u8,
        /// Nonzero: every send work request completes.
        sq_sig_all: u8,
        /// Zero.
        reserved: [u8; 5],
    }

    /// Command `MODIFY_QP`.
    ModifyQp: 112 = "ib_uverbs_modify_qp" {
        dest: QpDest,
        alt_dest: QpDest,
        qp_handle: u32,
        /// [`values::QpAttrMask`](crate::values::QpAttrMask).
        attr_mask: u32,
        qkey: u32,
        /// 24 bits.
        rq_psn: u32,
        /// 24 bits.
        sq_psn: u32,
        /// 24 bits.
        dest_qp_num: u32,
        /// [`AccessFlags`](crate::ioctl_verbs::AccessFlags).
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        /// From [`values::qp_state`](crate::values::qp_state).
        qp_state: u8,
        /// From [`values::qp_state`](crate::values::qp_state).
        cur_qp_state: u8,
        /// From [`values::mtu`](crate::values::mtu).
        path_mtu: u8,
        /// From [`values::mig_state`](crate::values::mig_state).
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        /// Reads and atomics that may be outstanding as initiator.
        max_rd_atomic: u8,
        /// Reads and atomics that may be outstanding as target.
        max_dest_rd_atomic: u8,
        /// Code of the time that peers wait for a receive buffer, 5 bits (12: 0.64 ms; 0: 655.36 ms).
        min_rnr_timer: u8,
        /// Counts from 1.
        port_num: u8,
        /// Wait for an acknowledgement 4.096 µs × 2^value, 5 bits; zero is for ever.
        timeout: u8,
        /// 3 bits.
        retry_cnt: u8,
        /// 3 bits; 7 is for ever.
        rnr_retry: u8,
        alt_port_num: u8,
        /// As `timeout`, for the alternate path.
        alt_timeout: u8,
        /// Zero.
        reserved: [u8; 2],
    }

    /// Command `EX_MODIFY_QP`.
    ExModifyQp: 120 = "ib_uverbs_ex_modify_qp" {
        base: ModifyQp,
        /// kbit/s.
        rate_limit: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `EX_MODIFY_QP`.
    ExModifyQpResp: 8 = "ib_uverbs_ex_modify_qp_resp" {
        comp_mask: u32,
        /// Bytes that the kernel has written.
        response_length: u32,
    }

    /// Command `DESTROY_QP`.
    DestroyQp: 16 = "ib_uverbs_destroy_qp" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        qp_handle: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `DESTROY_QP` and of `QP.DESTROY`.
    DestroyQpResp: 4 = "ib_uverbs_destroy_qp_resp" {
        /// Asynchronous events that were returned for this object.
        events_reported: u32,
    }

    /// Scatter/gather element.
    Sge: 16 = "ib_uverbs_sge" {
        /// Address in the memory region.
        addr: u64,
        /// Bytes.
        length: u32,
        /// Local key.
        lkey: u32,
    }

    /// A send work request of [`PostSend`].
    SendWr: 56 = "ib_uverbs_send_wr" {
        wr_id: u64,
        num_sge: u32,
        /// From [`wr_opcode`].
        opcode: u32,
        /// [`values::SendFlags`](crate::values::SendFlags).
        send_flags: u32,
        /// `imm_data`, big-endian, or `invalidate_rkey`, in host order.
        ex: u32,
        /// One of [`SendWrRdma`], [`SendWrAtomic`] and [`SendWrUd`], as `opcode` says.
        wr: [u64; 4],
    }

    /// Command `POST_SEND`; [`SendWr`]s and then [`Sge`]s follow. For rxe it is the doorbell of a send queue,
    /// without any.
    PostSend: 24 = "ib_uverbs_post_send" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        qp_handle: u32,
        wr_count: u32,
        sge_count: u32,
        /// Bytes of a work request.
        wqe_size: u32,
    }

    /// Response of `POST_SEND`.
    PostSendResp: 4 = "ib_uverbs_post_send_resp" {
        /// Number of the work request that failed, from 1; zero if none did.
        bad_wr: u32,
    }

    /// A receive work request.
    RecvWr: 16 = "ib_uverbs_recv_wr" {
        wr_id: u64,
        num_sge: u32,
        /// Zero.
        reserved: u32,
    }

    /// Command `POST_RECV`; [`RecvWr`]s and then [`Sge`]s follow.
    PostRecv: 24 = "ib_uverbs_post_recv" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        qp_handle: u32,
        wr_count: u32,
        sge_count: u32,
        /// Bytes of a work request.
        wqe_size: u32,
    }

    /// Response of `POST_RECV`.
    PostRecvResp: 4 = "ib_uverbs_post_recv_resp" {
        /// Number of the work request that failed, from 1; zero if none did.
        bad_wr: u32,
    }

    /// Command `POST_SRQ_RECV`; [`RecvWr`]s and then [`Sge`]s follow.
    PostSrqRecv: 24 = "ib_uverbs_post_srq_recv" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        srq_handle: u32,
        wr_count: u32,
        sge_count: u32,
        /// Bytes of a work request.
        wqe_size: u32,
    }

    /// Response of `POST_SRQ_RECV`.
    PostSrqRecvResp: 4 = "ib_uverbs_post_srq_recv_resp" {
        /// Number of the work request that failed, from 1; zero if none did.
        bad_wr: u32,
    }

    /// Command `CREATE_AH`.
    CreateAh: 56 = "ib_uverbs_create_ah" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// Returned in events of the object.
        user_handle: u64,
        pd_handle: u32,
        /// Zero.
        reserved: u32,
        attr: AhAttr,
    }

    /// Response of `CREATE_AH`.
    CreateAhResp: 4 = "ib_uverbs_create_ah_resp" {
        ah_handle: u32,
    }

    /// Command `DESTROY_AH`.
    DestroyAh: 4 = "ib_uverbs_destroy_ah" {
        ah_handle: u32,
    }

    /// Command `ATTACH_MCAST`.
    AttachMcast: 24 = "ib_uverbs_attach_mcast" {
        gid: [u8; 16],
        qp_handle: u32,
        mlid: u16,
        /// Zero.
        reserved: u16,
    }

    /// Command `DETACH_MCAST`.
    DetachMcast: 24 = "ib_uverbs_detach_mcast" {
        gid: [u8; 16],
        qp_handle: u32,
        mlid: u16,
        /// Zero.
        reserved: u16,
    }

    /// Head of every flow specification.
    FlowSpecHdr: 8 = "ib_uverbs_flow_spec_hdr" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
    }

    /// Ethernet fields to match.
    FlowEthFilter: 16 = "ib_uverbs_flow_eth_filter" {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: Be16,
        vlan_tag: Be16,
    }

    /// Match on Ethernet.
    FlowSpecEth: 40 = "ib_uverbs_flow_spec_eth" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        val: FlowEthFilter,
        mask: FlowEthFilter,
    }

    /// IPv4 fields to match.
    FlowIpv4Filter: 12 = "ib_uverbs_flow_ipv4_filter" {
        src_ip: Be32,
        dst_ip: Be32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }

    /// Match on IPv4.
    FlowSpecIpv4: 32 = "ib_uverbs_flow_spec_ipv4" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        val: FlowIpv4Filter,
        mask: FlowIpv4Filter,
    }

    /// TCP or UDP fields to match.
    FlowTcpUdpFilter: 4 = "ib_uverbs_flow_tcp_udp_filter" {
        dst_port: Be16,
        src_port: Be16,
    }

    /// Match on TCP or UDP.
    FlowSpecTcpUdp: 16 = "ib_uverbs_flow_spec_tcp_udp" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        val: FlowTcpUdpFilter,
        mask: FlowTcpUdpFilter,
    }

    /// IPv6 fields to match.
    FlowIpv6Filter: 40 = "ib_uverbs_flow_ipv6_filter" {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        /// 20 bits.
        flow_label: Be32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
        /// Zero.
        reserved: u8,
    }

    /// Match on IPv6.
    FlowSpecIpv6: 88 = "ib_uverbs_flow_spec_ipv6" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        val: FlowIpv6Filter,
        mask: FlowIpv6Filter,
    }

    /// Action: tag the completions.
    FlowSpecActionTag: 16 = "ib_uverbs_flow_spec_action_tag" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        tag_id: u32,
        reserved1: u32,
    }

    /// Action: drop.
    FlowSpecActionDrop: 8 = "ib_uverbs_flow_spec_action_drop" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
    }

    /// Action: the given flow action object.
    FlowSpecActionHandle: 16 = "ib_uverbs_flow_spec_action_handle" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        handle: u32,
        reserved1: u32,
    }

    /// Action: count in the given counters object.
    FlowSpecActionCount: 16 = "ib_uverbs_flow_spec_action_count" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        handle: u32,
        reserved1: u32,
    }

    /// Tunnel fields to match.
    FlowTunnelFilter: 4 = "ib_uverbs_flow_tunnel_filter" {
        tunnel_id: Be32,
    }

    /// Match on VXLAN tunnels.
    FlowSpecTunnel: 16 = "ib_uverbs_flow_spec_tunnel" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        val: FlowTunnelFilter,
        mask: FlowTunnelFilter,
    }

    /// ESP fields to match.
    FlowSpecEspFilter: 8 = "ib_uverbs_flow_spec_esp_filter" {
        spi: u32,
        seq: u32,
    }

    /// Match on ESP.
    FlowSpecEsp: 24 = "ib_uverbs_flow_spec_esp" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        val: FlowSpecEspFilter,
        mask: FlowSpecEspFilter,
    }

    /// GRE fields to match.
    FlowGreFilter: 8 = "ib_uverbs_flow_gre_filter" {
        /// First 16 bits of the GRE header.
        c_ks_res0_ver: Be16,
        protocol: Be16,
        key: Be32,
    }

    /// Match on GRE.
    FlowSpecGre: 24 = "ib_uverbs_flow_spec_gre" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        val: FlowGreFilter,
        mask: FlowGreFilter,
    }

    /// MPLS fields to match.
    FlowMplsFilter: 4 = "ib_uverbs_flow_mpls_filter" {
        /// The whole label stack entry.
        label: Be32,
    }

    /// Match on MPLS.
    FlowSpecMpls: 16 = "ib_uverbs_flow_spec_mpls" {
        /// From [`values::flow_spec_type`](crate::values::flow_spec_type).
        r#type: u32 = "type",
        size: u16,
        /// Zero.
        reserved: u16,
        val: FlowMplsFilter,
        mask: FlowMplsFilter,
    }

    /// A flow rule; its specifications follow.
    FlowAttr: 16 = "ib_uverbs_flow_attr" {
        /// From [`values::flow_attr_type`](crate::values::flow_attr_type).
        r#type: u32 = "type",
        /// Bytes with all specifications.
        size: u16,
        priority: u16,
        num_of_specs: u8,
        /// Zero.
        reserved: [u8; 2],
        port: u8,
        /// [`values::FlowFlags`](crate::values::FlowFlags).
        flags: u32,
    }

    /// Command `EX_CREATE_FLOW`.
    CreateFlow: 24 = "ib_uverbs_create_flow" {
        comp_mask: u32,
        qp_handle: u32,
        flow_attr: FlowAttr,
    }

    /// Response of `EX_CREATE_FLOW`.
    CreateFlowResp: 8 = "ib_uverbs_create_flow_resp" {
        comp_mask: u32,
        flow_handle: u32,
    }

    /// Command `EX_DESTROY_FLOW`.
    DestroyFlow: 8 = "ib_uverbs_destroy_flow" {
        comp_mask: u32,
        flow_handle: u32,
    }

    /// Command `CREATE_SRQ`.
    CreateSrq: 32 = "ib_uverbs_create_srq" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// Returned in events of the object.
        user_handle: u64,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        /// An event tells when fewer receive work requests are left; zero: never.
        srq_limit: u32,
    }

    /// Command `CREATE_XSRQ`.
    CreateXsrq: 48 = "ib_uverbs_create_xsrq" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        /// Returned in events of the object.
        user_handle: u64,
        /// From [`ioctl_verbs::srq_type`](crate::ioctl_verbs::srq_type).
        srq_type: u32,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        /// An event tells when fewer receive work requests are left; zero: never.
        srq_limit: u32,
        max_num_tags: u32,
        xrcd_handle: u32,
        cq_handle: u32,
    }

    /// Response of `CREATE_SRQ` and `CREATE_XSRQ`.
    CreateSrqResp: 16 = "ib_uverbs_create_srq_resp" {
        srq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srqn: u32,
    }

    /// Command `MODIFY_SRQ`.
    ModifySrq: 16 = "ib_uverbs_modify_srq" {
        srq_handle: u32,
        /// [`values::SrqAttrMask`](crate::values::SrqAttrMask).
        attr_mask: u32,
        max_wr: u32,
        /// An event tells when fewer receive work requests are left; zero: never.
        srq_limit: u32,
    }

    /// Command `QUERY_SRQ`.
    QuerySrq: 16 = "ib_uverbs_query_srq" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        srq_handle: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `QUERY_SRQ`.
    QuerySrqResp: 16 = "ib_uverbs_query_srq_resp" {
        max_wr: u32,
        max_sge: u32,
        /// An event tells when fewer receive work requests are left; zero: never.
        srq_limit: u32,
        /// Zero.
        reserved: u32,
    }

    /// Command `DESTROY_SRQ`.
    DestroySrq: 16 = "ib_uverbs_destroy_srq" {
        /// User address of the response for `write(2)`; zero with `INVOKE_WRITE`.
        response: u64,
        srq_handle: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `DESTROY_SRQ` and of `SRQ.DESTROY`.
    DestroySrqResp: 4 = "ib_uverbs_destroy_srq_resp" {
        /// Asynchronous events that were returned for this object.
        events_reported: u32,
    }

    /// Command `EX_CREATE_WQ`.
    ExCreateWq: 40 = "ib_uverbs_ex_create_wq" {
        comp_mask: u32,
        /// From [`ioctl_verbs::wq_type`](crate::ioctl_verbs::wq_type).
        wq_type: u32,
        /// Returned in events of the object.
        user_handle: u64,
        pd_handle: u32,
        cq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        /// [`WqFlags`](crate::ioctl_verbs::WqFlags).
        create_flags: u32,
        /// Zero.
        reserved: u32,
    }

    /// Response of `EX_CREATE_WQ`.
    ExCreateWqResp: 24 = "ib_uverbs_ex_create_wq_resp" {
        comp_mask: u32,
        /// Bytes that the kernel has written.
        response_length: u32,
        wq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        wqn: u32,
    }

    /// Command `EX_DESTROY_WQ`.
    ExDestroyWq: 8 = "ib_uverbs_ex_destroy_wq" {
        comp_mask: u32,
        wq_handle: u32,
    }

    /// Response of `EX_DESTROY_WQ`.
    ExDestroyWqResp: 16 = "ib_uverbs_ex_destroy_wq_resp" {
        comp_mask: u32,
        /// Bytes that the kernel has written.
        response_length: u32,
        /// Asynchronous events that were returned for this object.
        events_reported: u32,
        /// Zero.
        reserved: u32,
    }

    /// Command `EX_MODIFY_WQ`.
    ExModifyWq: 24 = "ib_uverbs_ex_modify_wq" {
        /// [`values::WqAttrMask`](crate::values::WqAttrMask).
        attr_mask: u32,
        wq_handle: u32,
        /// From [`values::wq_state`](crate::values::wq_state).
        wq_state: u32,
        /// From [`values::wq_state`](crate::values::wq_state).
        curr_wq_state: u32,
        /// [`WqFlags`](crate::ioctl_verbs::WqFlags).
        flags: u32,
        /// [`WqFlags`](crate::ioctl_verbs::WqFlags) to change.
        flags_mask: u32,
    }

    /// Command `EX_CREATE_RWQ_IND_TBL`; 2^`log_ind_tbl_size` handles (u32) follow.
    ExCreateRwqIndTable: 8 = "ib_uverbs_ex_create_rwq_ind_table" {
        comp_mask: u32,
        log_ind_tbl_size: u32,
    }

    /// Response of `EX_CREATE_RWQ_IND_TBL`.
    ExCreateRwqIndTableResp: 16 = "ib_uverbs_ex_create_rwq_ind_table_resp" {
        comp_mask: u32,
        /// Bytes that the kernel has written.
        response_length: u32,
        ind_tbl_handle: u32,
        ind_tbl_num: u32,
    }

    /// Command `EX_DESTROY_RWQ_IND_TBL`.
    ExDestroyRwqIndTable: 8 = "ib_uverbs_ex_destroy_rwq_ind_table" {
        comp_mask: u32,
        ind_tbl_handle: u32,
    }

    /// Completion moderation.
    CqModeration: 4 = "ib_uverbs_cq_moderation" {
        /// Completions before an event.
        cq_count: u16,
        /// Microseconds before an event.
        cq_period: u16,
    }

    /// Command `EX_MODIFY_CQ`.
    ExModifyCq: 16 = "ib_uverbs_ex_modify_cq" {
        cq_handle: u32,
        /// [`values::CqAttrMask`](crate::values::CqAttrMask).
        attr_mask: u32,
        attr: CqModeration,
        /// Zero.
        reserved: u32,
    }

    /// Page that drivers with a software clock share read-only: reads are valid if `sign` was even and did
    /// not change.
    ClockInfo: 56 = "ib_uverbs_clock_info" {
        /// Sequence: odd while the kernel writes.
        sign: u32,
        resv: u32,
        /// Nanoseconds at the last update.
        nsec: u64,
        /// Cycles at the last update.
        cycles: u64,
        /// Fraction of a nanosecond at the last update.
        frac: u64,
        /// Cycles to nanoseconds: multiplier.
        mult: u32,
        /// Cycles to nanoseconds: right shift.
        shift: u32,
        /// Valid bits of the cycle counter.
        mask: u64,
        /// Nanoseconds within which the page must be read again.
        overflow_period: u64,
    }

    /// [`SendWr::wr`] of RDMA reads and writes.
    SendWrRdma: 16 = "ib_uverbs_send_wr.wr.rdma" {
        remote_addr: u64,
        /// Remote key.
        rkey: u32,
        /// Zero.
        reserved: u32,
    }

    /// [`SendWr::wr`] of atomic operations.
    SendWrAtomic: 32 = "ib_uverbs_send_wr.wr.atomic" {
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
    SendWrUd: 16 = "ib_uverbs_send_wr.wr.ud" {
        /// Handle of the address.
        ah: u32,
        remote_qpn: u32,
        remote_qkey: u32,
        /// Zero.
        reserved: u32,
    }
}
