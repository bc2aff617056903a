//! Numbers that the ABI carries although no uapi header defines them.
//!
//! They are in the kernel's `include/rdma/ib_verbs.h`, in the enum that each item names, unless it says
//! otherwise. No table of the feature `abi-tables` has them, since the headers that kernels install cannot
//! confirm them.

define_constants! {
    singles {
        /// Queue pair number that addresses a multicast group. Source: `ib_verbs.h`.
        MULTICAST_QPN: u32 = 0xff_ffff => "IB_MULTICAST_QPN",
        /// Bit that makes a Q_Key a controlled one: in a work request the queue pair's own Q_Key is sent
        /// instead, and to give one to a queue pair takes a privilege. Source: `ib_mad.h`.
        QP_SET_QKEY: u32 = 0x8000_0000 => "IB_QP_SET_QKEY",
    }

    /// States of queue pairs.
    ///
    /// Source: `enum ib_qp_state`.
    mod qp_state: u32 {
        RESET = 0 => "IB_QPS_RESET",
        INIT = 1 => "IB_QPS_INIT",
        RTR = 2 => "IB_QPS_RTR",
        RTS = 3 => "IB_QPS_RTS",
        SQD = 4 => "IB_QPS_SQD",
        SQE = 5 => "IB_QPS_SQE",
        ERR = 6 => "IB_QPS_ERR",
    }

    /// States of path migration.
    ///
    /// Source: `enum ib_mig_state`.
    mod mig_state: u32 {
        MIGRATED = 0 => "IB_MIG_MIGRATED",
        REARM = 1 => "IB_MIG_REARM",
        ARMED = 2 => "IB_MIG_ARMED",
    }

    /// Codes of path MTUs; the names are bytes.
    ///
    /// Source: `enum ib_mtu`.
    mod mtu: u32 {
        MTU_256 = 1 => "IB_MTU_256",
        MTU_512 = 2 => "IB_MTU_512",
        MTU_1024 = 3 => "IB_MTU_1024",
        MTU_2048 = 4 => "IB_MTU_2048",
        MTU_4096 = 5 => "IB_MTU_4096",
    }

    /// Types of memory windows.
    ///
    /// Source: `enum ib_mw_type`.
    mod mw_type: u32 {
        TYPE_1 = 1 => "IB_MW_TYPE_1",
        TYPE_2 = 2 => "IB_MW_TYPE_2",
    }

    /// States of ports.
    ///
    /// Source: `enum ib_port_state`.
    mod port_state: u32 {
        NOP = 0 => "IB_PORT_NOP",
        DOWN = 1 => "IB_PORT_DOWN",
        INIT = 2 => "IB_PORT_INIT",
        ARMED = 3 => "IB_PORT_ARMED",
        ACTIVE = 4 => "IB_PORT_ACTIVE",
        ACTIVE_DEFER = 5 => "IB_PORT_ACTIVE_DEFER",
    }

    /// Physical states of ports.
    ///
    /// Source: `enum ib_port_phys_state`.
    mod port_phys_state: u32 {
        SLEEP = 1 => "IB_PORT_PHYS_STATE_SLEEP",
        POLLING = 2 => "IB_PORT_PHYS_STATE_POLLING",
        DISABLED = 3 => "IB_PORT_PHYS_STATE_DISABLED",
        PORT_CONFIGURATION_TRAINING = 4 => "IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING",
        LINK_UP = 5 => "IB_PORT_PHYS_STATE_LINK_UP",
        LINK_ERROR_RECOVERY = 6 => "IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY",
        PHY_TEST = 7 => "IB_PORT_PHYS_STATE_PHY_TEST",
    }

    /// Lanes of a port.
    ///
    /// Source: `enum ib_port_width`.
    mod port_width: u32 {
        WIDTH_1X = 1 => "IB_WIDTH_1X",
        WIDTH_2X = 16 => "IB_WIDTH_2X",
        WIDTH_4X = 2 => "IB_WIDTH_4X",
        WIDTH_8X = 4 => "IB_WIDTH_8X",
        WIDTH_12X = 8 => "IB_WIDTH_12X",
    }

    /// Speed of a lane.
    ///
    /// Source: `enum ib_port_speed`.
    mod port_speed: u32 {
        SDR = 1 => "IB_SPEED_SDR",
        DDR = 2 => "IB_SPEED_DDR",
        QDR = 4 => "IB_SPEED_QDR",
        FDR10 = 8 => "IB_SPEED_FDR10",
        FDR = 16 => "IB_SPEED_FDR",
        EDR = 32 => "IB_SPEED_EDR",
        HDR = 64 => "IB_SPEED_HDR",
        NDR = 128 => "IB_SPEED_NDR",
        XDR = 256 => "IB_SPEED_XDR",
    }

    /// Link layers.
    ///
    /// Source: `enum rdma_link_layer`.
    mod link_layer: u32 {
        UNSPECIFIED = 0 => "IB_LINK_LAYER_UNSPECIFIED",
        INFINIBAND = 1 => "IB_LINK_LAYER_INFINIBAND",
        ETHERNET = 2 => "IB_LINK_LAYER_ETHERNET",
    }

    /// Static rates of a path.
    ///
    /// Source: `enum ib_rate`.
    mod rate: u32 {
        PORT_CURRENT = 0 => "IB_RATE_PORT_CURRENT",
        RATE_2_5_GBPS = 2 => "IB_RATE_2_5_GBPS",
        RATE_5_GBPS = 5 => "IB_RATE_5_GBPS",
        RATE_10_GBPS = 3 => "IB_RATE_10_GBPS",
        RATE_20_GBPS = 6 => "IB_RATE_20_GBPS",
        RATE_30_GBPS = 4 => "IB_RATE_30_GBPS",
        RATE_40_GBPS = 7 => "IB_RATE_40_GBPS",
        RATE_60_GBPS = 8 => "IB_RATE_60_GBPS",
        RATE_80_GBPS = 9 => "IB_RATE_80_GBPS",
        RATE_120_GBPS = 10 => "IB_RATE_120_GBPS",
        RATE_14_GBPS = 11 => "IB_RATE_14_GBPS",
        RATE_56_GBPS = 12 => "IB_RATE_56_GBPS",
        RATE_112_GBPS = 13 => "IB_RATE_112_GBPS",
        RATE_168_GBPS = 14 => "IB_RATE_168_GBPS",
        RATE_25_GBPS = 15 => "IB_RATE_25_GBPS",
        RATE_100_GBPS = 16 => "IB_RATE_100_GBPS",
        RATE_200_GBPS = 17 => "IB_RATE_200_GBPS",
        RATE_300_GBPS = 18 => "IB_RATE_300_GBPS",
        RATE_28_GBPS = 19 => "IB_RATE_28_GBPS",
        RATE_50_GBPS = 20 => "IB_RATE_50_GBPS",
        RATE_400_GBPS = 21 => "IB_RATE_400_GBPS",
        RATE_600_GBPS = 22 => "IB_RATE_600_GBPS",
        RATE_800_GBPS = 23 => "IB_RATE_800_GBPS",
        RATE_1600_GBPS = 25 => "IB_RATE_1600_GBPS",
    }

    /// Scope within which atomic operations are atomic.
    ///
    /// Source: `enum ib_atomic_cap`.
    mod atomic_cap: u32 {
        NONE = 0 => "IB_ATOMIC_NONE",
        HCA = 1 => "IB_ATOMIC_HCA",
        GLOB = 2 => "IB_ATOMIC_GLOB",
    }

    /// Asynchronous events.
    ///
    /// Source: `enum ib_event_type`.
    mod event_type: u32 {
        CQ_ERR = 0 => "IB_EVENT_CQ_ERR",
        QP_FATAL = 1 => "IB_EVENT_QP_FATAL",
        QP_REQ_ERR = 2 => "IB_EVENT_QP_REQ_ERR",
        QP_ACCESS_ERR = 3 => "IB_EVENT_QP_ACCESS_ERR",
        COMM_EST = 4 => "IB_EVENT_COMM_EST",
        SQ_DRAINED = 5 => "IB_EVENT_SQ_DRAINED",
        PATH_MIG = 6 => "IB_EVENT_PATH_MIG",
        PATH_MIG_ERR = 7 => "IB_EVENT_PATH_MIG_ERR",
        DEVICE_FATAL = 8 => "IB_EVENT_DEVICE_FATAL",
        PORT_ACTIVE = 9 => "IB_EVENT_PORT_ACTIVE",
        PORT_ERR = 10 => "IB_EVENT_PORT_ERR",
        LID_CHANGE = 11 => "IB_EVENT_LID_CHANGE",
        PKEY_CHANGE = 12 => "IB_EVENT_PKEY_CHANGE",
        SM_CHANGE = 13 => "IB_EVENT_SM_CHANGE",
        SRQ_ERR = 14 => "IB_EVENT_SRQ_ERR",
        SRQ_LIMIT_REACHED = 15 => "IB_EVENT_SRQ_LIMIT_REACHED",
        QP_LAST_WQE_REACHED = 16 => "IB_EVENT_QP_LAST_WQE_REACHED",
        CLIENT_REREGISTER = 17 => "IB_EVENT_CLIENT_REREGISTER",
        GID_CHANGE = 18 => "IB_EVENT_GID_CHANGE",
        WQ_FATAL = 19 => "IB_EVENT_WQ_FATAL",
        /// The speed of a port changed.
        DEVICE_SPEED_CHANGE = 20 => "IB_EVENT_DEVICE_SPEED_CHANGE",
    }

    /// Results of work requests.
    ///
    /// Source: `enum ib_wc_status`.
    mod wc_status: u32 {
        SUCCESS = 0 => "IB_WC_SUCCESS",
        LOC_LEN_ERR = 1 => "IB_WC_LOC_LEN_ERR",
        LOC_QP_OP_ERR = 2 => "IB_WC_LOC_QP_OP_ERR",
        LOC_EEC_OP_ERR = 3 => "IB_WC_LOC_EEC_OP_ERR",
        LOC_PROT_ERR = 4 => "IB_WC_LOC_PROT_ERR",
        WR_FLUSH_ERR = 5 => "IB_WC_WR_FLUSH_ERR",
        MW_BIND_ERR = 6 => "IB_WC_MW_BIND_ERR",
        BAD_RESP_ERR = 7 => "IB_WC_BAD_RESP_ERR",
        LOC_ACCESS_ERR = 8 => "IB_WC_LOC_ACCESS_ERR",
        REM_INV_REQ_ERR = 9 => "IB_WC_REM_INV_REQ_ERR",
        REM_ACCESS_ERR = 10 => "IB_WC_REM_ACCESS_ERR",
        REM_OP_ERR = 11 => "IB_WC_REM_OP_ERR",
        RETRY_EXC_ERR = 12 => "IB_WC_RETRY_EXC_ERR",
        RNR_RETRY_EXC_ERR = 13 => "IB_WC_RNR_RETRY_EXC_ERR",
        LOC_RDD_VIOL_ERR = 14 => "IB_WC_LOC_RDD_VIOL_ERR",
        REM_INV_RD_REQ_ERR = 15 => "IB_WC_REM_INV_RD_REQ_ERR",
        REM_ABORT_ERR = 16 => "IB_WC_REM_ABORT_ERR",
        INV_EECN_ERR = 17 => "IB_WC_INV_EECN_ERR",
        INV_EEC_STATE_ERR = 18 => "IB_WC_INV_EEC_STATE_ERR",
        FATAL_ERR = 19 => "IB_WC_FATAL_ERR",
        RESP_TIMEOUT_ERR = 20 => "IB_WC_RESP_TIMEOUT_ERR",
        GENERAL_ERR = 21 => "IB_WC_GENERAL_ERR",
    }

    /// Completed operations of receive queues; those of send queues are in
    /// [`user_verbs::wc_opcode`](crate::user_verbs::wc_opcode).
    ///
    /// Source: `enum ib_wc_opcode`.
    mod wc_opcode: u32 {
        /// Bit that all completions of receive work requests have.
        RECV = 128 => "IB_WC_RECV",
        RECV_RDMA_WITH_IMM = 129 => "IB_WC_RECV_RDMA_WITH_IMM",
    }

    /// States of work queues.
    ///
    /// Source: `enum ib_wq_state`.
    mod wq_state: u32 {
        RESET = 0 => "IB_WQS_RESET",
        RDY = 1 => "IB_WQS_RDY",
        ERR = 2 => "IB_WQS_ERR",
    }

    /// Kinds of flow rules.
    ///
    /// Source: `enum ib_flow_attr_type`.
    mod flow_attr_type: u32 {
        NORMAL = 0x0 => "IB_FLOW_ATTR_NORMAL",
        ALL_DEFAULT = 0x1 => "IB_FLOW_ATTR_ALL_DEFAULT",
        MC_DEFAULT = 0x2 => "IB_FLOW_ATTR_MC_DEFAULT",
        SNIFFER = 0x3 => "IB_FLOW_ATTR_SNIFFER",
    }

    /// Kinds of flow specifications.
    ///
    /// Source: `enum ib_flow_spec_type`.
    mod flow_spec_type: u32 {
        ETH = 0x20 => "IB_FLOW_SPEC_ETH",
        IB = 0x22 => "IB_FLOW_SPEC_IB",
        IPV4 = 0x30 => "IB_FLOW_SPEC_IPV4",
        IPV6 = 0x31 => "IB_FLOW_SPEC_IPV6",
        ESP = 0x34 => "IB_FLOW_SPEC_ESP",
        TCP = 0x40 => "IB_FLOW_SPEC_TCP",
        UDP = 0x41 => "IB_FLOW_SPEC_UDP",
        VXLAN_TUNNEL = 0x50 => "IB_FLOW_SPEC_VXLAN_TUNNEL",
        GRE = 0x51 => "IB_FLOW_SPEC_GRE",
        MPLS = 0x60 => "IB_FLOW_SPEC_MPLS",
        INNER = 0x100 => "IB_FLOW_SPEC_INNER",
        ACTION_TAG = 0x1000 => "IB_FLOW_SPEC_ACTION_TAG",
        ACTION_DROP = 0x1001 => "IB_FLOW_SPEC_ACTION_DROP",
        ACTION_HANDLE = 0x1002 => "IB_FLOW_SPEC_ACTION_HANDLE",
        ACTION_COUNT = 0x1003 => "IB_FLOW_SPEC_ACTION_COUNT",
    }
}

define_flags! {
    /// Attributes of a queue pair to set or to read.
    ///
    /// Source: `enum ib_qp_attr_mask`.
    QpAttrMask: u32 {
        STATE = 1 << 0 => "IB_QP_STATE",
        CUR_STATE = 1 << 1 => "IB_QP_CUR_STATE",
        EN_SQD_ASYNC_NOTIFY = 1 << 2 => "IB_QP_EN_SQD_ASYNC_NOTIFY",
        ACCESS_FLAGS = 1 << 3 => "IB_QP_ACCESS_FLAGS",
        PKEY_INDEX = 1 << 4 => "IB_QP_PKEY_INDEX",
        PORT = 1 << 5 => "IB_QP_PORT",
        QKEY = 1 << 6 => "IB_QP_QKEY",
        AV = 1 << 7 => "IB_QP_AV",
        PATH_MTU = 1 << 8 => "IB_QP_PATH_MTU",
        TIMEOUT = 1 << 9 => "IB_QP_TIMEOUT",
        RETRY_CNT = 1 << 10 => "IB_QP_RETRY_CNT",
        RNR_RETRY = 1 << 11 => "IB_QP_RNR_RETRY",
        RQ_PSN = 1 << 12 => "IB_QP_RQ_PSN",
        MAX_QP_RD_ATOMIC = 1 << 13 => "IB_QP_MAX_QP_RD_ATOMIC",
        ALT_PATH = 1 << 14 => "IB_QP_ALT_PATH",
        MIN_RNR_TIMER = 1 << 15 => "IB_QP_MIN_RNR_TIMER",
        SQ_PSN = 1 << 16 => "IB_QP_SQ_PSN",
        MAX_DEST_RD_ATOMIC = 1 << 17 => "IB_QP_MAX_DEST_RD_ATOMIC",
        PATH_MIG_STATE = 1 << 18 => "IB_QP_PATH_MIG_STATE",
        CAP = 1 << 19 => "IB_QP_CAP",
        DEST_QPN = 1 << 20 => "IB_QP_DEST_QPN",
        RATE_LIMIT = 1 << 25 => "IB_QP_RATE_LIMIT",
    }

    /// Flags of send work requests.
    ///
    /// Source: `enum ib_send_flags`.
    SendFlags: u32 {
        FENCE = 1 << 0 => "IB_SEND_FENCE",
        SIGNALED = 1 << 1 => "IB_SEND_SIGNALED",
        SOLICITED = 1 << 2 => "IB_SEND_SOLICITED",
        INLINE = 1 << 3 => "IB_SEND_INLINE",
        IP_CSUM = 1 << 4 => "IB_SEND_IP_CSUM",
    }

    /// Flags of work completions.
    ///
    /// Source: `enum ib_wc_flags`.
    WcFlags: u32 {
        /// The first 40 bytes of the buffer are the global route header.
        GRH = 1 << 0 => "IB_WC_GRH",
        /// `ex` is immediate data.
        WITH_IMM = 1 << 1 => "IB_WC_WITH_IMM",
        /// `ex` is a remote key that was invalidated. Not the number that libibverbs gives its flag of this
        /// name.
        WITH_INVALIDATE = 1 << 2 => "IB_WC_WITH_INVALIDATE",
        IP_CSUM_OK = 1 << 3 => "IB_WC_IP_CSUM_OK",
        WITH_SMAC = 1 << 4 => "IB_WC_WITH_SMAC",
        WITH_VLAN = 1 << 5 => "IB_WC_WITH_VLAN",
        WITH_NETWORK_HDR_TYPE = 1 << 6 => "IB_WC_WITH_NETWORK_HDR_TYPE",
    }

    /// Attributes of a shared receive queue to set.
    ///
    /// Source: `enum ib_srq_attr_mask`.
    SrqAttrMask: u32 {
        MAX_WR = 1 << 0 => "IB_SRQ_MAX_WR",
        LIMIT = 1 << 1 => "IB_SRQ_LIMIT",
    }

    /// Attributes of a completion queue to set.
    ///
    /// Source: `enum ib_cq_attr_mask`.
    CqAttrMask: u32 {
        MODERATE = 1 << 0 => "IB_CQ_MODERATE",
    }

    /// Attributes of a work queue to set.
    ///
    /// Source: `enum ib_wq_attr_mask`.
    WqAttrMask: u32 {
        STATE = 1 << 0 => "IB_WQ_STATE",
        CUR_STATE = 1 << 1 => "IB_WQ_CUR_STATE",
        FLAGS = 1 << 2 => "IB_WQ_FLAGS",
    }

    /// What changes when a memory region is registered again.
    ///
    /// Source: `enum ib_mr_rereg_flags`.
    MrReregFlags: u32 {
        TRANS = 1 << 0 => "IB_MR_REREG_TRANS",
        PD = 1 << 1 => "IB_MR_REREG_PD",
        ACCESS = 1 << 2 => "IB_MR_REREG_ACCESS",
    }

    /// Flags of flow rules.
    ///
    /// Source: `enum ib_flow_flags`.
    FlowFlags: u32 {
        DONT_TRAP = 1 << 1 => "IB_FLOW_ATTR_FLAGS_DONT_TRAP",
        EGRESS = 1 << 2 => "IB_FLOW_ATTR_FLAGS_EGRESS",
    }
}
