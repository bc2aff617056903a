//! `rdma/siw-abi.h`: what the software iWARP driver `siw` shares with the user.
//!
//! Queues are mapped memory: arrays of [`Sqe`], [`Rqe`] or [`Cqe`]; a completion queue ends with a
//! [`CqCtrl`]. An element belongs to the driver while [`WqeFlags::VALID`] is set.

constants! {
    singles {
        ABI_VERSION: u32 = 1 => "SIW_ABI_VERSION",
        /// Scatter/gather elements of a request.
        MAX_SGE: usize = 6 => "SIW_MAX_SGE",
        /// Bytes of inline data: they lie in the place of all elements but the first.
        MAX_INLINE: usize = size_of::<Sge>() * (MAX_SGE - 1) => "SIW_MAX_INLINE",
        /// Largest key for `mmap`.
        UOBJ_MAX_KEY: u64 = 0x08_ffff => "SIW_UOBJ_MAX_KEY",
        /// No key.
        INVAL_UOBJ_KEY: u64 = UOBJ_MAX_KEY + 1 => "SIW_INVAL_UOBJ_KEY",
    }

    /// What a request does.
    mod opcode: u8 {
        WRITE = 0 => "SIW_OP_WRITE",
        READ = 1 => "SIW_OP_READ",
        READ_LOCAL_INV = 2 => "SIW_OP_READ_LOCAL_INV",
        SEND = 3 => "SIW_OP_SEND",
        SEND_WITH_IMM = 4 => "SIW_OP_SEND_WITH_IMM",
        SEND_REMOTE_INV = 5 => "SIW_OP_SEND_REMOTE_INV",
        /// Not supported.
        FETCH_AND_ADD = 6 => "SIW_OP_FETCH_AND_ADD",
        /// Not supported.
        COMP_AND_SWAP = 7 => "SIW_OP_COMP_AND_SWAP",
        RECEIVE = 8 => "SIW_OP_RECEIVE",
        /// Of the driver.
        READ_RESPONSE = 9 => "SIW_OP_READ_RESPONSE",
        /// Of users in the kernel.
        INVAL_STAG = 10 => "SIW_OP_INVAL_STAG",
        /// Of users in the kernel.
        REG_MR = 11 => "SIW_OP_REG_MR",
        NUM_OPCODES = 12 => "SIW_NUM_OPCODES",
    }

    /// How a request ended.
    mod wc_status: u16 {
        SUCCESS = 0 => "SIW_WC_SUCCESS",
        LOC_LEN_ERR = 1 => "SIW_WC_LOC_LEN_ERR",
        LOC_PROT_ERR = 2 => "SIW_WC_LOC_PROT_ERR",
        LOC_QP_OP_ERR = 3 => "SIW_WC_LOC_QP_OP_ERR",
        WR_FLUSH_ERR = 4 => "SIW_WC_WR_FLUSH_ERR",
        BAD_RESP_ERR = 5 => "SIW_WC_BAD_RESP_ERR",
        LOC_ACCESS_ERR = 6 => "SIW_WC_LOC_ACCESS_ERR",
        REM_ACCESS_ERR = 7 => "SIW_WC_REM_ACCESS_ERR",
        REM_INV_REQ_ERR = 8 => "SIW_WC_REM_INV_REQ_ERR",
        GENERAL_ERR = 9 => "SIW_WC_GENERAL_ERR",
        NUM_WC_STATUS = 10 => "SIW_NUM_WC_STATUS",
    }
}

flags! {
    /// Flags of requests and completions.
    WqeFlags: u16 {
        /// The element is filled; whoever takes it clears this.
        VALID = 1 << 0 => "SIW_WQE_VALID",
        INLINE = 1 << 1 => "SIW_WQE_INLINE",
        SIGNALLED = 1 << 2 => "SIW_WQE_SIGNALLED",
        SOLICITED = 1 << 3 => "SIW_WQE_SOLICITED",
        READ_FENCE = 1 << 4 => "SIW_WQE_READ_FENCE",
        REM_INVAL = 1 << 5 => "SIW_WQE_REM_INVAL",
        /// Of the driver.
        COMPLETED = 1 << 6 => "SIW_WQE_COMPLETED",
    }

    /// [`CqCtrl::flags`]: which completion raises an event.
    NotifyFlags: u32 {
        /// None.
        NOT = 0 => "SIW_NOTIFY_NOT",
        SOLICITED = 1 << 0 => "SIW_NOTIFY_SOLICITED",
        NEXT_COMPLETION = 1 << 1 => "SIW_NOTIFY_NEXT_COMPLETION",
        MISSED_EVENTS = 1 << 2 => "SIW_NOTIFY_MISSED_EVENTS",
        ALL = 7 => "SIW_NOTIFY_ALL",
    }
}

structs! {
    /// Driver response of creating a completion queue.
    CreateCqResp: 16 = "siw_uresp_create_cq" {
        cq_id: u32,
        num_cqe: u32,
        /// For `mmap`.
        cq_key: u64,
    }

    /// Driver response of creating a queue pair.
    CreateQpResp: 32 = "siw_uresp_create_qp" {
        qp_id: u32,
        num_sqe: u32,
        num_rqe: u32,
        pad: u32,
        /// For `mmap`.
        sq_key: u64,
        /// For `mmap`.
        rq_key: u64,
    }

    /// Driver input of registering a memory region.
    RegMrReq: 8 = "siw_ureq_reg_mr" {
        /// Lower 8 bits of the keys, as the user likes.
        stag_key: u8,
        /// Zero.
        reserved: [u8; 3],
        /// Zero.
        pad: u32,
    }

    /// Driver response of registering a memory region.
    RegMrResp: 8 = "siw_uresp_reg_mr" {
        stag: u32,
        pad: u32,
    }

    /// Driver response of creating a shared receive queue.
    CreateSrqResp: 16 = "siw_uresp_create_srq" {
        num_rqe: u32,
        pad: u32,
        /// For `mmap`.
        srq_key: u64,
    }

    /// Driver response of opening the device.
    AllocCtxResp: 8 = "siw_uresp_alloc_ctx" {
        dev_id: u32,
        pad: u32,
    }

    /// Scatter/gather element.
    Sge: 16 = "siw_sge" {
        /// Address in the memory region.
        laddr: u64,
        /// Bytes.
        length: u32,
        /// Local key.
        lkey: u32,
    }

    /// Element of a send queue.
    Sqe: 120 = "siw_sqe" {
        /// `wr_id`.
        id: u64,
        /// [`WqeFlags`].
        flags: u16,
        /// If inline: 1, and the length is in the first element.
        num_sge: u8,
        /// From [`opcode`].
        opcode: u8,
        /// Remote key.
        rkey: u32,
        /// Remote address.
        raddr: u64,
        sge: [Sge; MAX_SGE],
    }

    /// Element of a receive queue.
    Rqe: 112 = "siw_rqe" {
        /// `wr_id`.
        id: u64,
        /// [`WqeFlags`].
        flags: u16,
        num_sge: u8,
        /// Of the driver.
        opcode: u8,
        unused: u32,
        sge: [Sge; MAX_SGE],
    }

    /// Element of a completion queue.
    Cqe: 32 = "siw_cqe" {
        /// `wr_id`.
        id: u64,
        /// [`WqeFlags`], the lower 8 bits.
        flags: u8,
        /// From [`opcode`].
        opcode: u8,
        /// From [`wc_status`].
        status: u16,
        bytes: u32,
        /// Immediate data, or in the lower half the key that the peer invalidated.
        imm_data: u64,
        qp_id: u64,
    }

    /// Arms a completion queue.
    CqCtrl: 8 = "siw_cq_ctrl" {
        /// [`NotifyFlags`].
        flags: u32,
        pad: u32,
    }
}
