//! `rdma/ib_user_ioctl_cmds.h`: numbers of objects, methods and attributes.

constants! {
    singles {
        /// Bits of a number that tell the namespace.
        ID_NS_MASK: u16 = 0xf000 => "UVERBS_ID_NS_MASK",
        /// Position of the namespace in a number.
        ID_NS_SHIFT: u32 = 12 => "UVERBS_ID_NS_SHIFT",
        /// First number of the namespace of drivers: their own objects, methods and attributes.
        DRIVER_NS: u16 = 0x1000 => "UVERBS_ID_DRIVER_NS",
        /// First attribute of a driver in methods that carry [`attr::uhw`].
        DRIVER_NS_WITH_UHW: u16 = 0x1002 => "UVERBS_ID_DRIVER_NS_WITH_UHW",
    }

    /// Kinds of objects.
    mod object: u16 {
        /// The device itself: it has methods, but no instances.
        DEVICE = 0 => "UVERBS_OBJECT_DEVICE",
        PD = 1 => "UVERBS_OBJECT_PD",
        COMP_CHANNEL = 2 => "UVERBS_OBJECT_COMP_CHANNEL",
        CQ = 3 => "UVERBS_OBJECT_CQ",
        QP = 4 => "UVERBS_OBJECT_QP",
        SRQ = 5 => "UVERBS_OBJECT_SRQ",
        AH = 6 => "UVERBS_OBJECT_AH",
        MR = 7 => "UVERBS_OBJECT_MR",
        MW = 8 => "UVERBS_OBJECT_MW",
        FLOW = 9 => "UVERBS_OBJECT_FLOW",
        XRCD = 10 => "UVERBS_OBJECT_XRCD",
        RWQ_IND_TBL = 11 => "UVERBS_OBJECT_RWQ_IND_TBL",
        WQ = 12 => "UVERBS_OBJECT_WQ",
        FLOW_ACTION = 13 => "UVERBS_OBJECT_FLOW_ACTION",
        DM = 14 => "UVERBS_OBJECT_DM",
        COUNTERS = 15 => "UVERBS_OBJECT_COUNTERS",
        ASYNC_EVENT = 16 => "UVERBS_OBJECT_ASYNC_EVENT",
        DMAH = 17 => "UVERBS_OBJECT_DMAH",
        DMABUF = 18 => "UVERBS_OBJECT_DMABUF",
        COMP_CNTR = 19 => "UVERBS_OBJECT_COMP_CNTR",
    }
}

/// Methods, one module an object.
pub mod method {
    constants! {
        /// Methods of the device itself.
        mod device: u16 {
            INVOKE_WRITE = 0 => "UVERBS_METHOD_INVOKE_WRITE",
            INFO_HANDLES = 1 => "UVERBS_METHOD_INFO_HANDLES",
            QUERY_PORT = 2 => "UVERBS_METHOD_QUERY_PORT",
            GET_CONTEXT = 3 => "UVERBS_METHOD_GET_CONTEXT",
            QUERY_CONTEXT = 4 => "UVERBS_METHOD_QUERY_CONTEXT",
            QUERY_GID_TABLE = 5 => "UVERBS_METHOD_QUERY_GID_TABLE",
            QUERY_GID_ENTRY = 6 => "UVERBS_METHOD_QUERY_GID_ENTRY",
            QUERY_PORT_SPEED = 7 => "UVERBS_METHOD_QUERY_PORT_SPEED",
            QUERY_COMP_CNTR_CAPS = 8 => "UVERBS_METHOD_QUERY_COMP_CNTR_CAPS",
        }

        /// Methods of protection domains; they are allocated by a write command.
        mod pd: u16 {
            DESTROY = 0 => "UVERBS_METHOD_PD_DESTROY",
        }

        /// Methods of completion queues.
        mod cq: u16 {
            CREATE = 0 => "UVERBS_METHOD_CQ_CREATE",
            DESTROY = 1 => "UVERBS_METHOD_CQ_DESTROY",
        }

        /// Methods of queue pairs; state changes are a write command.
        mod qp: u16 {
            CREATE = 0 => "UVERBS_METHOD_QP_CREATE",
            DESTROY = 1 => "UVERBS_METHOD_QP_DESTROY",
            ATTACH_COMP_CNTR = 2 => "UVERBS_METHOD_QP_ATTACH_COMP_CNTR",
        }

        /// Methods of shared receive queues.
        mod srq: u16 {
            CREATE = 0 => "UVERBS_METHOD_SRQ_CREATE",
            DESTROY = 1 => "UVERBS_METHOD_SRQ_DESTROY",
        }

        /// Methods of address handles; they are created by a write command.
        mod ah: u16 {
            DESTROY = 0 => "UVERBS_METHOD_AH_DESTROY",
        }

        /// Methods of memory regions.
        mod mr: u16 {
            REG_DM = 0 => "UVERBS_METHOD_DM_MR_REG",
            DESTROY = 1 => "UVERBS_METHOD_MR_DESTROY",
            ADVISE = 2 => "UVERBS_METHOD_ADVISE_MR",
            QUERY = 3 => "UVERBS_METHOD_QUERY_MR",
            REG_DMABUF = 4 => "UVERBS_METHOD_REG_DMABUF_MR",
            REG = 5 => "UVERBS_METHOD_REG_MR",
        }

        /// Methods of memory windows; they are allocated by a write command.
        mod mw: u16 {
            DESTROY = 0 => "UVERBS_METHOD_MW_DESTROY",
        }

        /// Methods of flow rules; they are created by a write command.
        mod flow: u16 {
            DESTROY = 0 => "UVERBS_METHOD_FLOW_DESTROY",
        }

        /// Methods of XRC domains; they are opened by a write command.
        mod xrcd: u16 {
            DESTROY = 0 => "UVERBS_METHOD_XRCD_DESTROY",
        }

        /// Methods of receive work queue indirection tables; they are created by a write command.
        mod rwq_ind_tbl: u16 {
            DESTROY = 0 => "UVERBS_METHOD_RWQ_IND_TBL_DESTROY",
        }

        /// Methods of work queues.
        mod wq: u16 {
            CREATE = 0 => "UVERBS_METHOD_WQ_CREATE",
            DESTROY = 1 => "UVERBS_METHOD_WQ_DESTROY",
        }

        /// Methods of flow actions.
        mod flow_action: u16 {
            ESP_CREATE = 0 => "UVERBS_METHOD_FLOW_ACTION_ESP_CREATE",
            DESTROY = 1 => "UVERBS_METHOD_FLOW_ACTION_DESTROY",
            ESP_MODIFY = 2 => "UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY",
        }

        /// Methods of device memory.
        mod dm: u16 {
            ALLOC = 0 => "UVERBS_METHOD_DM_ALLOC",
            FREE = 1 => "UVERBS_METHOD_DM_FREE",
        }

        /// Methods of flow counters.
        mod counters: u16 {
            CREATE = 0 => "UVERBS_METHOD_COUNTERS_CREATE",
            DESTROY = 1 => "UVERBS_METHOD_COUNTERS_DESTROY",
            READ = 2 => "UVERBS_METHOD_COUNTERS_READ",
        }

        /// Methods of asynchronous event files.
        mod async_event: u16 {
            ALLOC = 0 => "UVERBS_METHOD_ASYNC_EVENT_ALLOC",
        }

        /// Methods of DMA handles, which carry steering hints for memory regions.
        mod dmah: u16 {
            ALLOC = 0 => "UVERBS_METHOD_DMAH_ALLOC",
            FREE = 1 => "UVERBS_METHOD_DMAH_FREE",
        }

        /// Methods of dma-bufs that the device exports.
        mod dmabuf: u16 {
            ALLOC = 0 => "UVERBS_METHOD_DMABUF_ALLOC",
        }

        /// Methods of completion counters.
        mod comp_cntr: u16 {
            CREATE = 0 => "UVERBS_METHOD_COMP_CNTR_CREATE",
            DESTROY = 1 => "UVERBS_METHOD_COMP_CNTR_DESTROY",
            MODIFY = 2 => "UVERBS_METHOD_COMP_CNTR_MODIFY",
            READ = 3 => "UVERBS_METHOD_COMP_CNTR_READ",
        }
    }
}

/// Attributes, one module a method.
pub mod attr {
    constants! {
        /// `DEVICE.INVOKE_WRITE`: runs a write command, see
        /// [`user_verbs::write_cmd`](crate::user_verbs::write_cmd).
        mod invoke_write: u16 {
            CORE_IN = 0 => "UVERBS_ATTR_CORE_IN",
            CORE_OUT = 1 => "UVERBS_ATTR_CORE_OUT",
            WRITE_CMD = 2 => "UVERBS_ATTR_WRITE_CMD",
        }

        /// `DEVICE.INFO_HANDLES`.
        mod info_handles: u16 {
            OBJECT_ID = 0 => "UVERBS_ATTR_INFO_OBJECT_ID",
            TOTAL_HANDLES = 1 => "UVERBS_ATTR_INFO_TOTAL_HANDLES",
            HANDLES_LIST = 2 => "UVERBS_ATTR_INFO_HANDLES_LIST",
        }

        /// `DEVICE.QUERY_PORT`.
        mod query_port: u16 {
            PORT_NUM = 0 => "UVERBS_ATTR_QUERY_PORT_PORT_NUM",
            RESP = 1 => "UVERBS_ATTR_QUERY_PORT_RESP",
        }

        /// `DEVICE.GET_CONTEXT`.
        mod get_context: u16 {
            NUM_COMP_VECTORS = 0 => "UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS",
            CORE_SUPPORT = 1 => "UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT",
            FD_ARR = 2 => "UVERBS_ATTR_GET_CONTEXT_FD_ARR",
        }

        /// `DEVICE.QUERY_CONTEXT`.
        mod query_context: u16 {
            NUM_COMP_VECTORS = 0 => "UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS",
            CORE_SUPPORT = 1 => "UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT",
        }

        /// `DEVICE.QUERY_GID_TABLE`.
        mod query_gid_table: u16 {
            ENTRY_SIZE = 0 => "UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE",
            FLAGS = 1 => "UVERBS_ATTR_QUERY_GID_TABLE_FLAGS",
            RESP_ENTRIES = 2 => "UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES",
            RESP_NUM_ENTRIES = 3 => "UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES",
        }

        /// `DEVICE.QUERY_GID_ENTRY`.
        mod query_gid_entry: u16 {
            PORT = 0 => "UVERBS_ATTR_QUERY_GID_ENTRY_PORT",
            GID_INDEX = 1 => "UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX",
            FLAGS = 2 => "UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS",
            RESP_ENTRY = 3 => "UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY",
        }

        /// `DEVICE.QUERY_PORT_SPEED`.
        mod query_port_speed: u16 {
            PORT_NUM = 0 => "UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM",
            RESP = 1 => "UVERBS_ATTR_QUERY_PORT_SPEED_RESP",
        }

        /// `DEVICE.QUERY_COMP_CNTR_CAPS`.
        mod query_comp_cntr_caps: u16 {
            MAX_COUNTERS = 0 => "UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS",
            MAX_VALUE = 1 => "UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE",
            SUPPORTED_QP_ATTACH_OPS = 2 => "UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS",
        }

        /// `PD.DESTROY`.
        mod destroy_pd: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_PD_HANDLE",
        }

        /// `CQ.CREATE`.
        mod create_cq: u16 {
            HANDLE = 0 => "UVERBS_ATTR_CREATE_CQ_HANDLE",
            CQE = 1 => "UVERBS_ATTR_CREATE_CQ_CQE",
            USER_HANDLE = 2 => "UVERBS_ATTR_CREATE_CQ_USER_HANDLE",
            COMP_CHANNEL = 3 => "UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL",
            COMP_VECTOR = 4 => "UVERBS_ATTR_CREATE_CQ_COMP_VECTOR",
            FLAGS = 5 => "UVERBS_ATTR_CREATE_CQ_FLAGS",
            RESP_CQE = 6 => "UVERBS_ATTR_CREATE_CQ_RESP_CQE",
            EVENT_FD = 7 => "UVERBS_ATTR_CREATE_CQ_EVENT_FD",
            BUFFER_VA = 8 => "UVERBS_ATTR_CREATE_CQ_BUFFER_VA",
            BUFFER_LENGTH = 9 => "UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH",
            BUFFER_FD = 10 => "UVERBS_ATTR_CREATE_CQ_BUFFER_FD",
            BUFFER_OFFSET = 11 => "UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET",
            BUF_UMEM = 12 => "UVERBS_ATTR_CREATE_CQ_BUF_UMEM",
        }

        /// `CQ.DESTROY`.
        mod destroy_cq: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_CQ_HANDLE",
            RESP = 1 => "UVERBS_ATTR_DESTROY_CQ_RESP",
        }

        /// `QP.CREATE`.
        mod create_qp: u16 {
            HANDLE = 0 => "UVERBS_ATTR_CREATE_QP_HANDLE",
            XRCD_HANDLE = 1 => "UVERBS_ATTR_CREATE_QP_XRCD_HANDLE",
            PD_HANDLE = 2 => "UVERBS_ATTR_CREATE_QP_PD_HANDLE",
            SRQ_HANDLE = 3 => "UVERBS_ATTR_CREATE_QP_SRQ_HANDLE",
            SEND_CQ_HANDLE = 4 => "UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE",
            RECV_CQ_HANDLE = 5 => "UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE",
            IND_TABLE_HANDLE = 6 => "UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE",
            USER_HANDLE = 7 => "UVERBS_ATTR_CREATE_QP_USER_HANDLE",
            CAP = 8 => "UVERBS_ATTR_CREATE_QP_CAP",
            TYPE = 9 => "UVERBS_ATTR_CREATE_QP_TYPE",
            FLAGS = 10 => "UVERBS_ATTR_CREATE_QP_FLAGS",
            SOURCE_QPN = 11 => "UVERBS_ATTR_CREATE_QP_SOURCE_QPN",
            EVENT_FD = 12 => "UVERBS_ATTR_CREATE_QP_EVENT_FD",
            RESP_CAP = 13 => "UVERBS_ATTR_CREATE_QP_RESP_CAP",
            RESP_QP_NUM = 14 => "UVERBS_ATTR_CREATE_QP_RESP_QP_NUM",
            BUF_UMEM = 15 => "UVERBS_ATTR_CREATE_QP_BUF_UMEM",
            RQ_BUF_UMEM = 16 => "UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM",
            SQ_BUF_UMEM = 17 => "UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM",
        }

        /// `QP.DESTROY`.
        mod destroy_qp: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_QP_HANDLE",
            RESP = 1 => "UVERBS_ATTR_DESTROY_QP_RESP",
        }

        /// `QP.ATTACH_COMP_CNTR`.
        mod qp_attach_comp_cntr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE",
            CNTR_HANDLE = 1 => "UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE",
            OP_MASK = 2 => "UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK",
        }

        /// `SRQ.CREATE`.
        mod create_srq: u16 {
            HANDLE = 0 => "UVERBS_ATTR_CREATE_SRQ_HANDLE",
            PD_HANDLE = 1 => "UVERBS_ATTR_CREATE_SRQ_PD_HANDLE",
            XRCD_HANDLE = 2 => "UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE",
            CQ_HANDLE = 3 => "UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE",
            USER_HANDLE = 4 => "UVERBS_ATTR_CREATE_SRQ_USER_HANDLE",
            MAX_WR = 5 => "UVERBS_ATTR_CREATE_SRQ_MAX_WR",
            MAX_SGE = 6 => "UVERBS_ATTR_CREATE_SRQ_MAX_SGE",
            LIMIT = 7 => "UVERBS_ATTR_CREATE_SRQ_LIMIT",
            MAX_NUM_TAGS = 8 => "UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS",
            TYPE = 9 => "UVERBS_ATTR_CREATE_SRQ_TYPE",
            EVENT_FD = 10 => "UVERBS_ATTR_CREATE_SRQ_EVENT_FD",
            RESP_MAX_WR = 11 => "UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR",
            RESP_MAX_SGE = 12 => "UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE",
            RESP_SRQ_NUM = 13 => "UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM",
            BUF_UMEM = 14 => "UVERBS_ATTR_CREATE_SRQ_BUF_UMEM",
        }

        /// `SRQ.DESTROY`.
        mod destroy_srq: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_SRQ_HANDLE",
            RESP = 1 => "UVERBS_ATTR_DESTROY_SRQ_RESP",
        }

        /// `AH.DESTROY`.
        mod destroy_ah: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_AH_HANDLE",
        }

        /// `MR.REG_DM`.
        mod reg_dm_mr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_REG_DM_MR_HANDLE",
            OFFSET = 1 => "UVERBS_ATTR_REG_DM_MR_OFFSET",
            LENGTH = 2 => "UVERBS_ATTR_REG_DM_MR_LENGTH",
            PD_HANDLE = 3 => "UVERBS_ATTR_REG_DM_MR_PD_HANDLE",
            ACCESS_FLAGS = 4 => "UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS",
            DM_HANDLE = 5 => "UVERBS_ATTR_REG_DM_MR_DM_HANDLE",
            RESP_LKEY = 6 => "UVERBS_ATTR_REG_DM_MR_RESP_LKEY",
            RESP_RKEY = 7 => "UVERBS_ATTR_REG_DM_MR_RESP_RKEY",
        }

        /// `MR.DESTROY`.
        mod destroy_mr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_MR_HANDLE",
        }

        /// `MR.ADVISE`.
        mod advise_mr: u16 {
            PD_HANDLE = 0 => "UVERBS_ATTR_ADVISE_MR_PD_HANDLE",
            ADVICE = 1 => "UVERBS_ATTR_ADVISE_MR_ADVICE",
            FLAGS = 2 => "UVERBS_ATTR_ADVISE_MR_FLAGS",
            SGE_LIST = 3 => "UVERBS_ATTR_ADVISE_MR_SGE_LIST",
        }

        /// `MR.QUERY`.
        mod query_mr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_QUERY_MR_HANDLE",
            RESP_LKEY = 1 => "UVERBS_ATTR_QUERY_MR_RESP_LKEY",
            RESP_RKEY = 2 => "UVERBS_ATTR_QUERY_MR_RESP_RKEY",
            RESP_LENGTH = 3 => "UVERBS_ATTR_QUERY_MR_RESP_LENGTH",
            RESP_IOVA = 4 => "UVERBS_ATTR_QUERY_MR_RESP_IOVA",
        }

        /// `MR.REG_DMABUF`.
        mod reg_dmabuf_mr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_REG_DMABUF_MR_HANDLE",
            PD_HANDLE = 1 => "UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE",
            OFFSET = 2 => "UVERBS_ATTR_REG_DMABUF_MR_OFFSET",
            LENGTH = 3 => "UVERBS_ATTR_REG_DMABUF_MR_LENGTH",
            IOVA = 4 => "UVERBS_ATTR_REG_DMABUF_MR_IOVA",
            FD = 5 => "UVERBS_ATTR_REG_DMABUF_MR_FD",
            ACCESS_FLAGS = 6 => "UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS",
            RESP_LKEY = 7 => "UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY",
            RESP_RKEY = 8 => "UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY",
        }

        /// `MR.REG`.
        mod reg_mr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_REG_MR_HANDLE",
            PD_HANDLE = 1 => "UVERBS_ATTR_REG_MR_PD_HANDLE",
            DMA_HANDLE = 2 => "UVERBS_ATTR_REG_MR_DMA_HANDLE",
            IOVA = 3 => "UVERBS_ATTR_REG_MR_IOVA",
            ADDR = 4 => "UVERBS_ATTR_REG_MR_ADDR",
            LENGTH = 5 => "UVERBS_ATTR_REG_MR_LENGTH",
            ACCESS_FLAGS = 6 => "UVERBS_ATTR_REG_MR_ACCESS_FLAGS",
            FD = 7 => "UVERBS_ATTR_REG_MR_FD",
            FD_OFFSET = 8 => "UVERBS_ATTR_REG_MR_FD_OFFSET",
            RESP_LKEY = 9 => "UVERBS_ATTR_REG_MR_RESP_LKEY",
            RESP_RKEY = 10 => "UVERBS_ATTR_REG_MR_RESP_RKEY",
        }

        /// `MW.DESTROY`.
        mod destroy_mw: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_MW_HANDLE",
        }

        /// `FLOW.DESTROY`.
        mod destroy_flow: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_FLOW_HANDLE",
        }

        /// `XRCD.DESTROY`.
        mod destroy_xrcd: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_XRCD_HANDLE",
        }

        /// `RWQ_IND_TBL.DESTROY`.
        mod destroy_rwq_ind_tbl: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE",
        }

        /// `WQ.CREATE`.
        mod create_wq: u16 {
            HANDLE = 0 => "UVERBS_ATTR_CREATE_WQ_HANDLE",
            PD_HANDLE = 1 => "UVERBS_ATTR_CREATE_WQ_PD_HANDLE",
            CQ_HANDLE = 2 => "UVERBS_ATTR_CREATE_WQ_CQ_HANDLE",
            USER_HANDLE = 3 => "UVERBS_ATTR_CREATE_WQ_USER_HANDLE",
            TYPE = 4 => "UVERBS_ATTR_CREATE_WQ_TYPE",
            EVENT_FD = 5 => "UVERBS_ATTR_CREATE_WQ_EVENT_FD",
            MAX_WR = 6 => "UVERBS_ATTR_CREATE_WQ_MAX_WR",
            MAX_SGE = 7 => "UVERBS_ATTR_CREATE_WQ_MAX_SGE",
            FLAGS = 8 => "UVERBS_ATTR_CREATE_WQ_FLAGS",
            RESP_MAX_WR = 9 => "UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR",
            RESP_MAX_SGE = 10 => "UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE",
            RESP_WQ_NUM = 11 => "UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM",
        }

        /// `WQ.DESTROY`.
        mod destroy_wq: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_WQ_HANDLE",
            RESP = 1 => "UVERBS_ATTR_DESTROY_WQ_RESP",
        }

        /// `FLOW_ACTION.ESP_CREATE`.
        mod create_flow_action_esp: u16 {
            HANDLE = 0 => "UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE",
            ATTRS = 1 => "UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS",
            ESN = 2 => "UVERBS_ATTR_FLOW_ACTION_ESP_ESN",
            KEYMAT = 3 => "UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT",
            REPLAY = 4 => "UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY",
            ENCAP = 5 => "UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP",
        }

        /// `FLOW_ACTION.ESP_MODIFY`; its other attributes are those of [`create_flow_action_esp`].
        mod modify_flow_action_esp: u16 {
            HANDLE = 0 => "UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE",
        }

        /// `FLOW_ACTION.DESTROY`.
        mod destroy_flow_action: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE",
        }

        /// `DM.ALLOC`.
        mod alloc_dm: u16 {
            HANDLE = 0 => "UVERBS_ATTR_ALLOC_DM_HANDLE",
            LENGTH = 1 => "UVERBS_ATTR_ALLOC_DM_LENGTH",
            ALIGNMENT = 2 => "UVERBS_ATTR_ALLOC_DM_ALIGNMENT",
        }

        /// `DM.FREE`.
        mod free_dm: u16 {
            HANDLE = 0 => "UVERBS_ATTR_FREE_DM_HANDLE",
        }

        /// `COUNTERS.CREATE`.
        mod create_counters: u16 {
            HANDLE = 0 => "UVERBS_ATTR_CREATE_COUNTERS_HANDLE",
        }

        /// `COUNTERS.DESTROY`.
        mod destroy_counters: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_COUNTERS_HANDLE",
        }

        /// `COUNTERS.READ`.
        mod read_counters: u16 {
            HANDLE = 0 => "UVERBS_ATTR_READ_COUNTERS_HANDLE",
            BUFF = 1 => "UVERBS_ATTR_READ_COUNTERS_BUFF",
            FLAGS = 2 => "UVERBS_ATTR_READ_COUNTERS_FLAGS",
        }

        /// `ASYNC_EVENT.ALLOC`.
        mod async_event_alloc: u16 {
            FD_HANDLE = 0 => "UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE",
        }

        /// `DMAH.ALLOC`.
        mod alloc_dmah: u16 {
            HANDLE = 0 => "UVERBS_ATTR_ALLOC_DMAH_HANDLE",
            CPU_ID = 1 => "UVERBS_ATTR_ALLOC_DMAH_CPU_ID",
            TPH_MEM_TYPE = 2 => "UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE",
            PH = 3 => "UVERBS_ATTR_ALLOC_DMAH_PH",
        }

        /// `DMAH.FREE`.
        mod free_dmah: u16 {
            HANDLE = 0 => "UVERBS_ATTR_FREE_DMA_HANDLE",
        }

        /// `DMABUF.ALLOC`.
        mod alloc_dmabuf: u16 {
            HANDLE = 0 => "UVERBS_ATTR_ALLOC_DMABUF_HANDLE",
            PGOFF = 1 => "UVERBS_ATTR_ALLOC_DMABUF_PGOFF",
        }

        /// `COMP_CNTR.CREATE`.
        mod create_comp_cntr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE",
        }

        /// `COMP_CNTR.DESTROY`.
        mod destroy_comp_cntr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE",
        }

        /// `COMP_CNTR.MODIFY`.
        mod modify_comp_cntr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE",
            ENTRY = 1 => "UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY",
            OP = 2 => "UVERBS_ATTR_MODIFY_COMP_CNTR_OP",
            VALUE = 3 => "UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE",
        }

        /// `COMP_CNTR.READ`.
        mod read_comp_cntr: u16 {
            HANDLE = 0 => "UVERBS_ATTR_READ_COMP_CNTR_HANDLE",
            ENTRY = 1 => "UVERBS_ATTR_READ_COMP_CNTR_ENTRY",
            RESP_VALUE = 2 => "UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE",
        }

        /// Driver data of any method that takes it.
        mod uhw: u16 {
            /// Input to the driver.
            IN = 0x1000 => "UVERBS_ATTR_UHW_IN",
            /// Output of the driver.
            OUT = 0x1001 => "UVERBS_ATTR_UHW_OUT",
        }
    }
}
