//! `rdma/efa-abi.h`: what the driver `efa` of Amazon's Elastic Fabric Adapter shares with the user.
//!
//! The queues and doorbells that the responses tell of are mapped memory; what lies in them is no part of
//! this header.

/// First number of a driver's own methods and attributes.
const DRIVER: u16 = 1 << 12;

constants! {
    singles {
        ABI_VERSION: u32 = 1 => "EFA_UVERBS_ABI_VERSION",
    }

    /// Transport of a queue pair of type `IB_QPT_DRIVER`.
    mod driver_qp_type: u32 {
        /// Scalable reliable datagram.
        SRD = 0 => "EFA_QP_DRIVER_TYPE_SRD",
    }

    /// Methods of the object `UVERBS_OBJECT_MR`.
    mod mr_method: u16 {
        QUERY = super::DRIVER => "EFA_IB_METHOD_MR_QUERY",
    }

    /// Attributes of [`mr_method::QUERY`].
    mod query_mr_attr: u16 {
        HANDLE = super::DRIVER => "EFA_IB_ATTR_QUERY_MR_HANDLE",
        /// `u16`, [`QueryMrValidity`](super::QueryMrValidity).
        RESP_IC_ID_VALIDITY = super::DRIVER + 1 => "EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY",
        /// `u16`
        RESP_RECV_IC_ID = super::DRIVER + 2 => "EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID",
        /// `u16`
        RESP_RDMA_READ_IC_ID = super::DRIVER + 3 => "EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID",
        /// `u16`
        RESP_RDMA_RECV_IC_ID = super::DRIVER + 4 => "EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID",
    }

    /// Driver attributes of creating a completion counter.
    mod create_comp_cntr_attr: u16 {
        /// [`BufferDesc`](crate::ioctl_verbs::BufferDesc) of the `u64` that counts completions.
        COMP_BUFFER = super::DRIVER => "EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER",
        /// [`BufferDesc`](crate::ioctl_verbs::BufferDesc) of the `u64` that counts errors.
        ERR_BUFFER = super::DRIVER + 1 => "EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER",
    }
}

flags! {
    /// What the user understands: if the device needs it, opening fails without.
    AllocUcontextCaps: u32 {
        /// [`AllocUcontextResp::max_tx_batch`].
        TX_BATCH = 1 << 0 => "EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH",
        /// [`AllocUcontextResp::min_sq_wr`].
        MIN_SQ_WR = 1 << 1 => "EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR",
    }

    /// Commands that have a driver response.
    CmdsSuppUdata: u32 {
        /// [`QueryDeviceResp`].
        QUERY_DEVICE = 1 << 0 => "EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE",
        /// [`CreateAhResp`].
        CREATE_AH = 1 << 1 => "EFA_USER_CMDS_SUPP_UDATA_CREATE_AH",
    }

    /// [`CreateCq::flags`].
    CreateCqFlags: u8 {
        /// Completions raise events.
        WITH_COMPLETION_CHANNEL = 1 << 0 => "EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL",
        /// Completions carry the address of unknown senders; takes entries of 32 bytes.
        WITH_SGID = 1 << 1 => "EFA_CREATE_CQ_WITH_SGID",
        /// Completions of send requests carry identifiers of 64 bits.
        WITH_SQ_COMP_64_BIT_REQ_ID = 1 << 2 => "EFA_CREATE_CQ_WITH_SQ_COMP_64_BIT_REQ_ID",
    }

    /// Fields of [`CreateCqResp`] that are valid.
    CreateCqRespMask: u32 {
        /// [`CreateCqResp::db_off`] and [`CreateCqResp::db_mmap_key`].
        DB_OFF = 1 << 0 => "EFA_CREATE_CQ_RESP_DB_OFF",
    }

    /// [`CreateQp::flags`].
    CreateQpFlags: u16 {
        /// RDMA writes with immediate data consume no receive request.
        WITH_UNSOLICITED_WRITE_RECV = 1 << 0 => "EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV",
        /// Identifiers of send requests have 64 bits.
        WITH_SQ_64_BIT_REQ_ID = 1 << 1 => "EFA_CREATE_QP_WITH_SQ_64_BIT_REQ_ID",
    }

    /// [`QueryDeviceResp::device_caps`].
    DeviceCaps: u32 {
        RDMA_READ = 1 << 0 => "EFA_QUERY_DEVICE_CAPS_RDMA_READ",
        /// The number of RNR retries can be set.
        RNR_RETRY = 1 << 1 => "EFA_QUERY_DEVICE_CAPS_RNR_RETRY",
        CQ_NOTIFICATIONS = 1 << 2 => "EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS",
        CQ_WITH_SGID = 1 << 3 => "EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID",
        /// Data arrives in order within aligned 128 bytes.
        DATA_POLLING_128 = 1 << 4 => "EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128",
        RDMA_WRITE = 1 << 5 => "EFA_QUERY_DEVICE_CAPS_RDMA_WRITE",
        UNSOLICITED_WRITE_RECV = 1 << 6 => "EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV",
        /// Completion queues may lie in memory of the user's choice.
        CQ_WITH_EXT_MEM = 1 << 7 => "EFA_QUERY_DEVICE_CAPS_CQ_WITH_EXT_MEM",
        /// Completion counters.
        COMP_CNTR = 1 << 8 => "EFA_QUERY_DEVICE_CAPS_COMP_CNTR",
        SQ_64_BIT_REQ_ID = 1 << 9 => "EFA_QUERY_DEVICE_CAPS_SQ_64_BIT_REQ_ID",
    }

    /// Interconnects of a memory region that are known.
    QueryMrValidity: u16 {
        RECV_IC_ID = 1 << 0 => "EFA_QUERY_MR_VALIDITY_RECV_IC_ID",
        RDMA_READ_IC_ID = 1 << 1 => "EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID",
        RDMA_RECV_IC_ID = 1 << 2 => "EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID",
    }
}

structs! {
    /// Driver input of opening the device.
    AllocUcontextCmd: 8 = "efa_ibv_alloc_ucontext_cmd" {
        /// [`AllocUcontextCaps`].
        supported_caps: u32,
        /// Zero.
        reserved_20: [u8; 4],
    }

    /// Driver response of opening the device.
    AllocUcontextResp: 24 = "efa_ibv_alloc_ucontext_resp" {
        comp_mask: u32,
        /// [`CmdsSuppUdata`].
        cmds_supp_udata_mask: u32,
        /// Parts that a completion queue is made of.
        sub_cqs_per_cq: u16,
        /// Bytes of inline data in a request of 64 bytes.
        inline_buf_size: u16,
        /// Bytes of a send queue.
        max_llq_size: u32,
        /// Units of 64 bytes that may be written to a send queue between two doorbells; 0 for no limit.
        max_tx_batch: u16,
        /// The least number of requests of a send queue.
        min_sq_wr: u16,
        /// Bytes of inline data in a request of 128 bytes.
        inline_buf_size_ex: u16,
        reserved_b0: [u8; 2],
    }

    /// Driver response of allocating a protection domain.
    AllocPdResp: 8 = "efa_ibv_alloc_pd_resp" {
        comp_mask: u32,
        pdn: u16,
        reserved_30: [u8; 2],
    }

    /// Driver input of creating a completion queue.
    CreateCq: 16 = "efa_ibv_create_cq" {
        /// Zero.
        comp_mask: u32,
        /// Bytes: 16 or 32.
        cq_entry_size: u32,
        /// [`AllocUcontextResp::sub_cqs_per_cq`].
        num_sub_cqs: u16,
        /// [`CreateCqFlags`].
        flags: u8,
        /// Zero.
        reserved_58: [u8; 5],
    }

    /// Driver response of creating a completion queue.
    CreateCqResp: 40 = "efa_ibv_create_cq_resp" {
        /// [`CreateCqRespMask`].
        comp_mask: u32,
        reserved_20: [u8; 4],
        /// For `mmap`.
        q_mmap_key: u64,
        /// Bytes to map.
        q_mmap_size: u64,
        /// Number in the device.
        cq_idx: u16,
        reserved_d0: [u8; 2],
        /// Offset of the doorbell in its page.
        db_off: u32,
        /// For `mmap` of the page of the doorbell.
        db_mmap_key: u64,
    }

    /// Driver input of creating a queue pair.
    CreateQp: 24 = "efa_ibv_create_qp" {
        /// Zero.
        comp_mask: u32,
        /// Bytes.
        rq_ring_size: u32,
        /// Bytes.
        sq_ring_size: u32,
        /// From [`driver_qp_type`], for queue pairs of type `IB_QPT_DRIVER`.
        driver_qp_type: u32,
        /// [`CreateQpFlags`].
        flags: u16,
        /// Service level.
        sl: u8,
        /// Zero.
        reserved_98: [u8; 5],
    }

    /// Driver response of creating a queue pair.
    CreateQpResp: 64 = "efa_ibv_create_qp_resp" {
        comp_mask: u32,
        /// Offset of the doorbell in its page.
        rq_db_offset: u32,
        /// Offset of the doorbell in its page.
        sq_db_offset: u32,
        /// Offset of the send queue in its first page.
        llq_desc_offset: u32,
        /// For `mmap`.
        rq_mmap_key: u64,
        /// Bytes to map.
        rq_mmap_size: u64,
        /// For `mmap` of the page of the doorbell.
        rq_db_mmap_key: u64,
        /// For `mmap` of the page of the doorbell.
        sq_db_mmap_key: u64,
        /// For `mmap`.
        llq_desc_mmap_key: u64,
        /// Part of the completion queue.
        send_sub_cq_idx: u16,
        /// Part of the completion queue.
        recv_sub_cq_idx: u16,
        reserved_1e0: [u8; 4],
    }

    /// Driver response of `CREATE_AH`.
    CreateAhResp: 8 = "efa_ibv_create_ah_resp" {
        comp_mask: u32,
        /// For send requests.
        efa_address_handle: u16,
        reserved_30: [u8; 2],
    }

    /// Driver response of the extended `QUERY_DEVICE`.
    QueryDeviceResp: 24 = "efa_ibv_ex_query_device_resp" {
        comp_mask: u32,
        max_sq_wr: u32,
        max_rq_wr: u32,
        max_sq_sge: u16,
        max_rq_sge: u16,
        /// Bytes of an RDMA transfer.
        max_rdma_size: u32,
        /// [`DeviceCaps`].
        device_caps: u32,
    }
}
