//! `rdma/ib_user_ioctl_verbs.h`: data and numbers that attributes carry.

use crate::user_verbs::QueryPortResp;

constants! {
    singles {
        /// First access flag that a kernel may ignore.
        ACCESS_OPTIONAL_FIRST: u32 = 1 << 20 => "IB_UVERBS_ACCESS_OPTIONAL_FIRST",
        /// Last access flag that a kernel may ignore.
        ACCESS_OPTIONAL_LAST: u32 = 1 << 29 => "IB_UVERBS_ACCESS_OPTIONAL_LAST",
        /// All access flags that a kernel may ignore.
        ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000 => "IB_UVERBS_ACCESS_OPTIONAL_RANGE",
    }

    /// Types of shared receive queues.
    mod srq_type: u32 {
        BASIC = 0 => "IB_UVERBS_SRQT_BASIC",
        XRC = 1 => "IB_UVERBS_SRQT_XRC",
        TM = 2 => "IB_UVERBS_SRQT_TM",
    }

    /// Types of work queues.
    mod wq_type: u32 {
        RQ = 0 => "IB_UVERBS_WQT_RQ",
    }

    /// Types of queue pairs.
    mod qp_type: u32 {
        RC = 2 => "IB_UVERBS_QPT_RC",
        UC = 3 => "IB_UVERBS_QPT_UC",
        UD = 4 => "IB_UVERBS_QPT_UD",
        RAW_PACKET = 8 => "IB_UVERBS_QPT_RAW_PACKET",
        XRC_INI = 9 => "IB_UVERBS_QPT_XRC_INI",
        XRC_TGT = 10 => "IB_UVERBS_QPT_XRC_TGT",
        DRIVER = 255 => "IB_UVERBS_QPT_DRIVER",
    }

    /// Key material of ESP flow actions.
    mod flow_action_esp_keymat: u32 {
        AES_GCM = 0 => "IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM",
    }

    /// Generation of initialization vectors.
    mod flow_action_iv_algo: u32 {
        SEQ = 0 => "IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ",
    }

    /// Replay protection of ESP flow actions.
    mod flow_action_esp_replay: u32 {
        NONE = 0 => "IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE",
        BMP = 1 => "IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP",
    }

    /// Bits of [`FlowActionEsp::flags`]; the zero ones are the defaults.
    mod flow_action_esp_flags: u32 {
        INLINE_CRYPTO = 0 => "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO",
        FULL_OFFLOAD = 1 => "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD",
        TUNNEL = 0 => "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL",
        TRANSPORT = 2 => "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT",
        DECRYPT = 0 => "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT",
        ENCRYPT = 4 => "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT",
        ESN_NEW_WINDOW = 8 => "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW",
    }

    /// Advice for on-demand memory regions.
    mod advise_mr_advice: u32 {
        PREFETCH = 0 => "IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH",
        PREFETCH_WRITE = 1 => "IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE",
        PREFETCH_NO_FAULT = 2 => "IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT",
    }

    /// Kernel drivers.
    mod driver_id: u32 {
        UNKNOWN = 0 => "RDMA_DRIVER_UNKNOWN",
        MLX5 = 1 => "RDMA_DRIVER_MLX5",
        MLX4 = 2 => "RDMA_DRIVER_MLX4",
        CXGB3 = 3 => "RDMA_DRIVER_CXGB3",
        CXGB4 = 4 => "RDMA_DRIVER_CXGB4",
        MTHCA = 5 => "RDMA_DRIVER_MTHCA",
        BNXT_RE = 6 => "RDMA_DRIVER_BNXT_RE",
        OCRDMA = 7 => "RDMA_DRIVER_OCRDMA",
        NES = 8 => "RDMA_DRIVER_NES",
        I40IW = 9 => "RDMA_DRIVER_I40IW",
        IRDMA = 9 => "RDMA_DRIVER_IRDMA",
        VMW_PVRDMA = 10 => "RDMA_DRIVER_VMW_PVRDMA",
        QEDR = 11 => "RDMA_DRIVER_QEDR",
        HNS = 12 => "RDMA_DRIVER_HNS",
        USNIC = 13 => "RDMA_DRIVER_USNIC",
        RXE = 14 => "RDMA_DRIVER_RXE",
        HFI1 = 15 => "RDMA_DRIVER_HFI1",
        QIB = 16 => "RDMA_DRIVER_QIB",
        EFA = 17 => "RDMA_DRIVER_EFA",
        SIW = 18 => "RDMA_DRIVER_SIW",
        ERDMA = 19 => "RDMA_DRIVER_ERDMA",
        MANA = 20 => "RDMA_DRIVER_MANA",
        IONIC = 21 => "RDMA_DRIVER_IONIC",
    }

    /// Types of GID table entries.
    mod gid_type: u32 {
        IB = 0 => "IB_UVERBS_GID_TYPE_IB",
        ROCE_V1 = 1 => "IB_UVERBS_GID_TYPE_ROCE_V1",
        ROCE_V2 = 2 => "IB_UVERBS_GID_TYPE_ROCE_V2",
    }

    /// What a [`BufferDesc`] describes.
    mod buffer_type: u32 {
        DMABUF = 0 => "IB_UVERBS_BUFFER_TYPE_DMABUF",
        /// User virtual address.
        VA = 1 => "IB_UVERBS_BUFFER_TYPE_VA",
    }

    /// The two values of a completion counter.
    mod comp_cntr_entry: u32 {
        /// Successful completions.
        COMP = 0 => "IB_UVERBS_COMP_CNTR_ENTRY_COMP",
        /// Completions with an error.
        ERR = 1 => "IB_UVERBS_COMP_CNTR_ENTRY_ERR",
    }

    /// Changes of a completion counter's value.
    mod comp_cntr_modify_op: u32 {
        SET = 0 => "IB_UVERBS_COMP_CNTR_MODIFY_OP_SET",
        INC = 1 => "IB_UVERBS_COMP_CNTR_MODIFY_OP_INC",
    }
}

flags! {
    /// What the kernel's core supports, from `GET_CONTEXT` and `QUERY_CONTEXT`.
    CoreSupport: u64 {
        /// Access flags of the optional range are ignored where they are not supported.
        OPTIONAL_MR_ACCESS = 1 << 0 => "IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS",
        /// The driver refuses driver data that it does not understand.
        ROBUST_UDATA = 1 << 1 => "IB_UVERBS_CORE_SUPPORT_ROBUST_UDATA",
    }

    /// What a memory region, memory window or queue pair may be used for.
    AccessFlags: u32 {
        LOCAL_WRITE = 1 << 0 => "IB_UVERBS_ACCESS_LOCAL_WRITE",
        REMOTE_WRITE = 1 << 1 => "IB_UVERBS_ACCESS_REMOTE_WRITE",
        REMOTE_READ = 1 << 2 => "IB_UVERBS_ACCESS_REMOTE_READ",
        REMOTE_ATOMIC = 1 << 3 => "IB_UVERBS_ACCESS_REMOTE_ATOMIC",
        MW_BIND = 1 << 4 => "IB_UVERBS_ACCESS_MW_BIND",
        /// Addresses of remote peers count from zero.
        ZERO_BASED = 1 << 5 => "IB_UVERBS_ACCESS_ZERO_BASED",
        /// Pages are not pinned but faulted in when used.
        ON_DEMAND = 1 << 6 => "IB_UVERBS_ACCESS_ON_DEMAND",
        HUGETLB = 1 << 7 => "IB_UVERBS_ACCESS_HUGETLB",
        FLUSH_GLOBAL = 1 << 8 => "IB_UVERBS_ACCESS_FLUSH_GLOBAL",
        FLUSH_PERSISTENT = 1 << 9 => "IB_UVERBS_ACCESS_FLUSH_PERSISTENT",
        /// Optional: writes may become visible out of order.
        RELAXED_ORDERING = 1 << 20 => "IB_UVERBS_ACCESS_RELAXED_ORDERING",
    }

    /// Creation flags of work queues.
    WqFlags: u32 {
        CVLAN_STRIPPING = 1 << 0 => "IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING",
        SCATTER_FCS = 1 << 1 => "IB_UVERBS_WQ_FLAGS_SCATTER_FCS",
        DELAY_DROP = 1 << 2 => "IB_UVERBS_WQ_FLAGS_DELAY_DROP",
        PCI_WRITE_END_PADDING = 1 << 3 => "IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING",
    }

    /// Creation flags of queue pairs.
    QpCreateFlags: u32 {
        BLOCK_MULTICAST_LOOPBACK = 1 << 1 => "IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK",
        SCATTER_FCS = 1 << 8 => "IB_UVERBS_QP_CREATE_SCATTER_FCS",
        CVLAN_STRIPPING = 1 << 9 => "IB_UVERBS_QP_CREATE_CVLAN_STRIPPING",
        PCI_WRITE_END_PADDING = 1 << 11 => "IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING",
        /// Every send work request completes, signaled or not.
        SQ_SIG_ALL = 1 << 12 => "IB_UVERBS_QP_CREATE_SQ_SIG_ALL",
    }

    /// Capabilities of a port, as in the InfiniBand PortInfo.
    PortCapFlags: u32 {
        SM = 1 << 1 => "IB_UVERBS_PCF_SM",
        NOTICE_SUP = 1 << 2 => "IB_UVERBS_PCF_NOTICE_SUP",
        TRAP_SUP = 1 << 3 => "IB_UVERBS_PCF_TRAP_SUP",
        OPT_IPD_SUP = 1 << 4 => "IB_UVERBS_PCF_OPT_IPD_SUP",
        AUTO_MIGR_SUP = 1 << 5 => "IB_UVERBS_PCF_AUTO_MIGR_SUP",
        SL_MAP_SUP = 1 << 6 => "IB_UVERBS_PCF_SL_MAP_SUP",
        MKEY_NVRAM = 1 << 7 => "IB_UVERBS_PCF_MKEY_NVRAM",
        PKEY_NVRAM = 1 << 8 => "IB_UVERBS_PCF_PKEY_NVRAM",
        LED_INFO_SUP = 1 << 9 => "IB_UVERBS_PCF_LED_INFO_SUP",
        SM_DISABLED = 1 << 10 => "IB_UVERBS_PCF_SM_DISABLED",
        SYS_IMAGE_GUID_SUP = 1 << 11 => "IB_UVERBS_PCF_SYS_IMAGE_GUID_SUP",
        PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12 => "IB_UVERBS_PCF_PKEY_SW_EXT_PORT_TRAP_SUP",
        EXTENDED_SPEEDS_SUP = 1 << 14 => "IB_UVERBS_PCF_EXTENDED_SPEEDS_SUP",
        CM_SUP = 1 << 16 => "IB_UVERBS_PCF_CM_SUP",
        SNMP_TUNNEL_SUP = 1 << 17 => "IB_UVERBS_PCF_SNMP_TUNNEL_SUP",
        REINIT_SUP = 1 << 18 => "IB_UVERBS_PCF_REINIT_SUP",
        DEVICE_MGMT_SUP = 1 << 19 => "IB_UVERBS_PCF_DEVICE_MGMT_SUP",
        VENDOR_CLASS_SUP = 1 << 20 => "IB_UVERBS_PCF_VENDOR_CLASS_SUP",
        DR_NOTICE_SUP = 1 << 21 => "IB_UVERBS_PCF_DR_NOTICE_SUP",
        CAP_MASK_NOTICE_SUP = 1 << 22 => "IB_UVERBS_PCF_CAP_MASK_NOTICE_SUP",
        BOOT_MGMT_SUP = 1 << 23 => "IB_UVERBS_PCF_BOOT_MGMT_SUP",
        LINK_LATENCY_SUP = 1 << 24 => "IB_UVERBS_PCF_LINK_LATENCY_SUP",
        CLIENT_REG_SUP = 1 << 25 => "IB_UVERBS_PCF_CLIENT_REG_SUP",
        LINK_SPEED_WIDTH_TABLE_SUP = 1 << 27 => "IB_UVERBS_PCF_LINK_SPEED_WIDTH_TABLE_SUP",
        VENDOR_SPECIFIC_MADS_TABLE_SUP = 1 << 28 => "IB_UVERBS_PCF_VENDOR_SPECIFIC_MADS_TABLE_SUP",
        MCAST_PKEY_TRAP_SUPPRESSION_SUP = 1 << 29 => "IB_UVERBS_PCF_MCAST_PKEY_TRAP_SUPPRESSION_SUP",
        MCAST_FDB_TOP_SUP = 1 << 30 => "IB_UVERBS_PCF_MCAST_FDB_TOP_SUP",
        HIERARCHY_INFO_SUP = 1 << 31 => "IB_UVERBS_PCF_HIERARCHY_INFO_SUP",
        /// Not of InfiniBand: GIDs of the port are made from IP addresses.
        IP_BASED_GIDS = 1 << 26 => "IB_UVERBS_PCF_IP_BASED_GIDS",
    }

    /// Flags of a port.
    QueryPortFlags: u8 {
        /// Every address needs a global route header.
        GRH_REQUIRED = 1 << 0 => "IB_UVERBS_QPF_GRH_REQUIRED",
    }

    /// Flags of `COUNTERS.READ`.
    ReadCountersFlags: u32 {
        /// Values that the driver has cached will do.
        PREFER_CACHED = 1 << 0 => "IB_UVERBS_READ_COUNTERS_PREFER_CACHED",
    }

    /// Flags of `MR.ADVISE`.
    AdviseMrFlags: u32 {
        /// Complete the advice before returning.
        FLUSH = 1 << 0 => "IB_UVERBS_ADVISE_MR_FLAG_FLUSH",
    }

    /// Operations of a queue pair that a completion counter counts.
    QpAttachCompCntrOps: u32 {
        SEND = 1 << 0 => "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND",
        RECV = 1 << 1 => "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RECV",
        RDMA_READ = 1 << 2 => "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ",
        /// Reads by the peer, which complete nothing here.
        REMOTE_RDMA_READ = 1 << 3 => "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ",
        RDMA_WRITE = 1 << 4 => "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE",
        /// Writes by the peer, which complete nothing here.
        REMOTE_RDMA_WRITE = 1 << 5 => "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE",
    }
}

structs! {
    /// AES-GCM key of an ESP flow action.
    FlowActionEspKeymatAesGcm: 56 = "ib_uverbs_flow_action_esp_keymat_aes_gcm" {
        iv: u64,
        /// From [`flow_action_iv_algo`].
        iv_algo: u32,
        salt: u32,
        /// Bytes of the integrity check value.
        icv_len: u32,
        /// Bits of the key.
        key_len: u32,
        aes_key: [u32; 8],
    }

    /// Bitmap replay window of an ESP flow action.
    FlowActionEspReplayBmp: 4 = "ib_uverbs_flow_action_esp_replay_bmp" {
        /// Packets.
        size: u32,
    }

    /// Encapsulation of an ESP flow action: a list of filters.
    FlowActionEspEncap: 24 = "ib_uverbs_flow_action_esp_encap" {
        /// User address of the filter.
        val_ptr: u64,
        /// User address of the next encapsulation, or zero.
        next_ptr: u64,
        /// Bytes of the filter.
        len: u16,
        r#type: u16 = "type",
        ..reserved: [u8; 4]
    }

    /// Parameters of an ESP flow action.
    FlowActionEsp: 24 = "ib_uverbs_flow_action_esp" {
        spi: u32,
        seq: u32,
        tfc_pad: u32,
        /// Bits of [`flow_action_esp_flags`].
        flags: u32,
        /// Packets after which the key is no longer used.
        hard_limit_pkts: u64,
    }

    /// Output of `DEVICE.QUERY_PORT`.
    QueryPortRespEx: 48 = "ib_uverbs_query_port_resp_ex" {
        legacy_resp: QueryPortResp,
        port_cap_flags2: u16,
        /// Zero.
        reserved: [u8; 2],
        /// Like `legacy_resp.active_speed`, with room for speeds above 8 bits. Zero from kernels that do not
        /// know it.
        active_speed_ex: u32,
    }

    /// Capacities of a queue pair, asked for and granted.
    QpCap: 20 = "ib_uverbs_qp_cap" {
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
    }

    /// An entry of the GID table of a port.
    GidEntry: 32 = "ib_uverbs_gid_entry" {
        /// 16 bytes as on the wire.
        gid: [u64; 2],
        gid_index: u32,
        port_num: u32,
        /// From [`gid_type`].
        gid_type: u32,
        /// Index of the network interface, zero without one.
        netdev_ifindex: u32,
    }

    /// Memory that the user provides for an object, by address or as a dma-buf.
    BufferDesc: 32 = "ib_uverbs_buffer_desc" {
        /// From [`buffer_type`].
        r#type: u32 = "type",
        /// The dma-buf; unused for a virtual address.
        fd: i32,
        /// Zero: none are defined, and unknown ones are an error.
        flags: u32,
        /// Unknown ones are ignored; none are defined.
        optional_flags: u32,
        /// User virtual address, or offset into the dma-buf.
        addr: u64,
        /// Bytes.
        length: u64,
    }
}
