//! `rdma/rdma_netlink.h`: the netlink family `NETLINK_RDMA`, to list devices and to configure them.
//!
//! The attributes of the iWARP port mapper (`IWPM_*`) and of the local service (`LS_*`) are not here: they
//! are for the daemons that serve the kernel.

constants! {
    /// Subsystems; see [`type_of`].
    mod client: u32 {
        /// iWARP port mapper.
        IWCM = 2 => "RDMA_NL_IWCM",
        RSVD = 3 => "RDMA_NL_RSVD",
        /// Local service: path resolution.
        LS = 4 => "RDMA_NL_LS",
        /// Devices.
        NLDEV = 5 => "RDMA_NL_NLDEV",
        NUM_CLIENTS = 6 => "RDMA_NL_NUM_CLIENTS",
    }

    /// Multicast groups.
    mod group: u32 {
        IWPM = 2 => "RDMA_NL_GROUP_IWPM",
        LS = 3 => "RDMA_NL_GROUP_LS",
        NOTIFY = 4 => "RDMA_NL_GROUP_NOTIFY",
        NUM_GROUPS = 5 => "RDMA_NL_NUM_GROUPS",
    }

    /// Kinds of devices.
    mod node_type: u8 {
        IB_CA = 1 => "RDMA_NODE_IB_CA",
        IB_SWITCH = 2 => "RDMA_NODE_IB_SWITCH",
        IB_ROUTER = 3 => "RDMA_NODE_IB_ROUTER",
        RNIC = 4 => "RDMA_NODE_RNIC",
        USNIC = 5 => "RDMA_NODE_USNIC",
        USNIC_UDP = 6 => "RDMA_NODE_USNIC_UDP",
        UNSPECIFIED = 7 => "RDMA_NODE_UNSPECIFIED",
    }

    /// Commands of [`client::NLDEV`].
    mod nldev_cmd: u32 {
        UNSPEC = 0 => "RDMA_NLDEV_CMD_UNSPEC",
        GET = 1 => "RDMA_NLDEV_CMD_GET",
        SET = 2 => "RDMA_NLDEV_CMD_SET",
        NEWLINK = 3 => "RDMA_NLDEV_CMD_NEWLINK",
        DELLINK = 4 => "RDMA_NLDEV_CMD_DELLINK",
        PORT_GET = 5 => "RDMA_NLDEV_CMD_PORT_GET",
        SYS_GET = 6 => "RDMA_NLDEV_CMD_SYS_GET",
        SYS_SET = 7 => "RDMA_NLDEV_CMD_SYS_SET",
        RES_GET = 9 => "RDMA_NLDEV_CMD_RES_GET",
        RES_QP_GET = 10 => "RDMA_NLDEV_CMD_RES_QP_GET",
        RES_CM_ID_GET = 11 => "RDMA_NLDEV_CMD_RES_CM_ID_GET",
        RES_CQ_GET = 12 => "RDMA_NLDEV_CMD_RES_CQ_GET",
        RES_MR_GET = 13 => "RDMA_NLDEV_CMD_RES_MR_GET",
        RES_PD_GET = 14 => "RDMA_NLDEV_CMD_RES_PD_GET",
        GET_CHARDEV = 15 => "RDMA_NLDEV_CMD_GET_CHARDEV",
        STAT_SET = 16 => "RDMA_NLDEV_CMD_STAT_SET",
        STAT_GET = 17 => "RDMA_NLDEV_CMD_STAT_GET",
        STAT_DEL = 18 => "RDMA_NLDEV_CMD_STAT_DEL",
        RES_QP_GET_RAW = 19 => "RDMA_NLDEV_CMD_RES_QP_GET_RAW",
        RES_CQ_GET_RAW = 20 => "RDMA_NLDEV_CMD_RES_CQ_GET_RAW",
        RES_MR_GET_RAW = 21 => "RDMA_NLDEV_CMD_RES_MR_GET_RAW",
        RES_CTX_GET = 22 => "RDMA_NLDEV_CMD_RES_CTX_GET",
        RES_SRQ_GET = 23 => "RDMA_NLDEV_CMD_RES_SRQ_GET",
        STAT_GET_STATUS = 24 => "RDMA_NLDEV_CMD_STAT_GET_STATUS",
        RES_SRQ_GET_RAW = 25 => "RDMA_NLDEV_CMD_RES_SRQ_GET_RAW",
        NEWDEV = 26 => "RDMA_NLDEV_CMD_NEWDEV",
        DELDEV = 27 => "RDMA_NLDEV_CMD_DELDEV",
        MONITOR = 28 => "RDMA_NLDEV_CMD_MONITOR",
        FRMR_POOLS_GET = 29 => "RDMA_NLDEV_CMD_FRMR_POOLS_GET",
        FRMR_POOLS_SET = 30 => "RDMA_NLDEV_CMD_FRMR_POOLS_SET",
        /// Number of commands.
        NUM_OPS = 31 => "RDMA_NLDEV_NUM_OPS",
    }

    /// How to print an attribute of a driver.
    mod print_type: u8 {
        UNSPEC = 0 => "RDMA_NLDEV_PRINT_TYPE_UNSPEC",
        HEX = 1 => "RDMA_NLDEV_PRINT_TYPE_HEX",
    }

    /// Attributes of [`client::NLDEV`].
    mod nldev_attr: u16 {
        UNSPEC = 0 => "RDMA_NLDEV_ATTR_UNSPEC",
        PAD = 0 => "RDMA_NLDEV_ATTR_PAD",
        /// u32.
        DEV_INDEX = 1 => "RDMA_NLDEV_ATTR_DEV_INDEX",
        /// String.
        DEV_NAME = 2 => "RDMA_NLDEV_ATTR_DEV_NAME",
        /// u32, from 1; of a device: the number of its ports.
        PORT_INDEX = 3 => "RDMA_NLDEV_ATTR_PORT_INDEX",
        /// u64; of a port: its capability mask in the lower 32 bits, then 16 bits of the second mask.
        CAP_FLAGS = 4 => "RDMA_NLDEV_ATTR_CAP_FLAGS",
        /// String.
        FW_VERSION = 5 => "RDMA_NLDEV_ATTR_FW_VERSION",
        /// u64 in host order.
        NODE_GUID = 6 => "RDMA_NLDEV_ATTR_NODE_GUID",
        /// u64 in host order.
        SYS_IMAGE_GUID = 7 => "RDMA_NLDEV_ATTR_SYS_IMAGE_GUID",
        /// u64 in host order.
        SUBNET_PREFIX = 8 => "RDMA_NLDEV_ATTR_SUBNET_PREFIX",
        LID = 9 => "RDMA_NLDEV_ATTR_LID",
        SM_LID = 10 => "RDMA_NLDEV_ATTR_SM_LID",
        LMC = 11 => "RDMA_NLDEV_ATTR_LMC",
        /// u8, from [`values::port_state`](crate::values::port_state).
        PORT_STATE = 12 => "RDMA_NLDEV_ATTR_PORT_STATE",
        /// u8, from [`values::port_phys_state`](crate::values::port_phys_state).
        PORT_PHYS_STATE = 13 => "RDMA_NLDEV_ATTR_PORT_PHYS_STATE",
        /// u8, from [`node_type`](super::node_type).
        DEV_NODE_TYPE = 14 => "RDMA_NLDEV_ATTR_DEV_NODE_TYPE",
        RES_SUMMARY = 15 => "RDMA_NLDEV_ATTR_RES_SUMMARY",
        RES_SUMMARY_ENTRY = 16 => "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY",
        RES_SUMMARY_ENTRY_NAME = 17 => "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME",
        RES_SUMMARY_ENTRY_CURR = 18 => "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR",
        RES_QP = 19 => "RDMA_NLDEV_ATTR_RES_QP",
        RES_QP_ENTRY = 20 => "RDMA_NLDEV_ATTR_RES_QP_ENTRY",
        RES_LQPN = 21 => "RDMA_NLDEV_ATTR_RES_LQPN",
        RES_RQPN = 22 => "RDMA_NLDEV_ATTR_RES_RQPN",
        RES_RQ_PSN = 23 => "RDMA_NLDEV_ATTR_RES_RQ_PSN",
        RES_SQ_PSN = 24 => "RDMA_NLDEV_ATTR_RES_SQ_PSN",
        RES_PATH_MIG_STATE = 25 => "RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE",
        RES_TYPE = 26 => "RDMA_NLDEV_ATTR_RES_TYPE",
        RES_STATE = 27 => "RDMA_NLDEV_ATTR_RES_STATE",
        RES_PID = 28 => "RDMA_NLDEV_ATTR_RES_PID",
        RES_KERN_NAME = 29 => "RDMA_NLDEV_ATTR_RES_KERN_NAME",
        RES_CM_ID = 30 => "RDMA_NLDEV_ATTR_RES_CM_ID",
        RES_CM_ID_ENTRY = 31 => "RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY",
        RES_PS = 32 => "RDMA_NLDEV_ATTR_RES_PS",
        RES_SRC_ADDR = 33 => "RDMA_NLDEV_ATTR_RES_SRC_ADDR",
        RES_DST_ADDR = 34 => "RDMA_NLDEV_ATTR_RES_DST_ADDR",
        RES_CQ = 35 => "RDMA_NLDEV_ATTR_RES_CQ",
        RES_CQ_ENTRY = 36 => "RDMA_NLDEV_ATTR_RES_CQ_ENTRY",
        RES_CQE = 37 => "RDMA_NLDEV_ATTR_RES_CQE",
        RES_USECNT = 38 => "RDMA_NLDEV_ATTR_RES_USECNT",
        RES_POLL_CTX = 39 => "RDMA_NLDEV_ATTR_RES_POLL_CTX",
        RES_MR = 40 => "RDMA_NLDEV_ATTR_RES_MR",
        RES_MR_ENTRY = 41 => "RDMA_NLDEV_ATTR_RES_MR_ENTRY",
        RES_RKEY = 42 => "RDMA_NLDEV_ATTR_RES_RKEY",
        RES_LKEY = 43 => "RDMA_NLDEV_ATTR_RES_LKEY",
        RES_IOVA = 44 => "RDMA_NLDEV_ATTR_RES_IOVA",
        RES_MRLEN = 45 => "RDMA_NLDEV_ATTR_RES_MRLEN",
        RES_PD = 46 => "RDMA_NLDEV_ATTR_RES_PD",
        RES_PD_ENTRY = 47 => "RDMA_NLDEV_ATTR_RES_PD_ENTRY",
        RES_LOCAL_DMA_LKEY = 48 => "RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY",
        RES_UNSAFE_GLOBAL_RKEY = 49 => "RDMA_NLDEV_ATTR_RES_UNSAFE_GLOBAL_RKEY",
        /// u32: network interface of the port.
        NDEV_INDEX = 50 => "RDMA_NLDEV_ATTR_NDEV_INDEX",
        /// String: network interface of the port.
        NDEV_NAME = 51 => "RDMA_NLDEV_ATTR_NDEV_NAME",
        DRIVER = 52 => "RDMA_NLDEV_ATTR_DRIVER",
        DRIVER_ENTRY = 53 => "RDMA_NLDEV_ATTR_DRIVER_ENTRY",
        DRIVER_STRING = 54 => "RDMA_NLDEV_ATTR_DRIVER_STRING",
        DRIVER_PRINT_TYPE = 55 => "RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE",
        DRIVER_S32 = 56 => "RDMA_NLDEV_ATTR_DRIVER_S32",
        DRIVER_U32 = 57 => "RDMA_NLDEV_ATTR_DRIVER_U32",
        DRIVER_S64 = 58 => "RDMA_NLDEV_ATTR_DRIVER_S64",
        DRIVER_U64 = 59 => "RDMA_NLDEV_ATTR_DRIVER_U64",
        RES_PDN = 60 => "RDMA_NLDEV_ATTR_RES_PDN",
        RES_CQN = 61 => "RDMA_NLDEV_ATTR_RES_CQN",
        RES_MRN = 62 => "RDMA_NLDEV_ATTR_RES_MRN",
        RES_CM_IDN = 63 => "RDMA_NLDEV_ATTR_RES_CM_IDN",
        RES_CTXN = 64 => "RDMA_NLDEV_ATTR_RES_CTXN",
        /// String: the software driver, `rxe` or `siw`.
        LINK_TYPE = 65 => "RDMA_NLDEV_ATTR_LINK_TYPE",
        /// u8: 1 if network namespaces share all devices.
        SYS_NETNS_MODE = 66 => "RDMA_NLDEV_SYS_ATTR_NETNS_MODE",
        /// String: `ib`, `iw`, `roce`, `opa` or `usnic`.
        DEV_PROTOCOL = 67 => "RDMA_NLDEV_ATTR_DEV_PROTOCOL",
        /// u32: file descriptor of a network namespace.
        NET_NS_FD = 68 => "RDMA_NLDEV_NET_NS_FD",
        /// String: the ABI asked for, `uverbs`.
        CHARDEV_TYPE = 69 => "RDMA_NLDEV_ATTR_CHARDEV_TYPE",
        /// String: name of the device node, without folder.
        CHARDEV_NAME = 70 => "RDMA_NLDEV_ATTR_CHARDEV_NAME",
        /// u64: version of the ABI.
        CHARDEV_ABI = 71 => "RDMA_NLDEV_ATTR_CHARDEV_ABI",
        /// u64: device number.
        CHARDEV = 72 => "RDMA_NLDEV_ATTR_CHARDEV",
        /// u32, whatever the header says: from [`driver_id`](crate::ioctl_verbs::driver_id).
        UVERBS_DRIVER_ID = 73 => "RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID",
        STAT_MODE = 74 => "RDMA_NLDEV_ATTR_STAT_MODE",
        STAT_RES = 75 => "RDMA_NLDEV_ATTR_STAT_RES",
        STAT_AUTO_MODE_MASK = 76 => "RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK",
        STAT_COUNTER = 77 => "RDMA_NLDEV_ATTR_STAT_COUNTER",
        STAT_COUNTER_ENTRY = 78 => "RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY",
        STAT_COUNTER_ID = 79 => "RDMA_NLDEV_ATTR_STAT_COUNTER_ID",
        /// Nested.
        STAT_HWCOUNTERS = 80 => "RDMA_NLDEV_ATTR_STAT_HWCOUNTERS",
        /// Nested.
        STAT_HWCOUNTER_ENTRY = 81 => "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY",
        /// String.
        STAT_HWCOUNTER_ENTRY_NAME = 82 => "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME",
        /// u64.
        STAT_HWCOUNTER_ENTRY_VALUE = 83 => "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE",
        DEV_DIM = 84 => "RDMA_NLDEV_ATTR_DEV_DIM",
        RES_RAW = 85 => "RDMA_NLDEV_ATTR_RES_RAW",
        RES_CTX = 86 => "RDMA_NLDEV_ATTR_RES_CTX",
        RES_CTX_ENTRY = 87 => "RDMA_NLDEV_ATTR_RES_CTX_ENTRY",
        RES_SRQ = 88 => "RDMA_NLDEV_ATTR_RES_SRQ",
        RES_SRQ_ENTRY = 89 => "RDMA_NLDEV_ATTR_RES_SRQ_ENTRY",
        RES_SRQN = 90 => "RDMA_NLDEV_ATTR_RES_SRQN",
        MIN_RANGE = 91 => "RDMA_NLDEV_ATTR_MIN_RANGE",
        MAX_RANGE = 92 => "RDMA_NLDEV_ATTR_MAX_RANGE",
        /// u8: 1 if pinned pages are copied on fork.
        SYS_COPY_ON_FORK = 93 => "RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK",
        STAT_HWCOUNTER_INDEX = 94 => "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX",
        STAT_HWCOUNTER_DYNAMIC = 95 => "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC",
        SYS_PRIVILEGED_QKEY_MODE = 96 => "RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE",
        DRIVER_DETAILS = 97 => "RDMA_NLDEV_ATTR_DRIVER_DETAILS",
        RES_SUBTYPE = 98 => "RDMA_NLDEV_ATTR_RES_SUBTYPE",
        DEV_TYPE = 99 => "RDMA_NLDEV_ATTR_DEV_TYPE",
        PARENT_NAME = 100 => "RDMA_NLDEV_ATTR_PARENT_NAME",
        NAME_ASSIGN_TYPE = 101 => "RDMA_NLDEV_ATTR_NAME_ASSIGN_TYPE",
        /// u8, from [`notify_event`](super::notify_event).
        EVENT_TYPE = 102 => "RDMA_NLDEV_ATTR_EVENT_TYPE",
        SYS_MONITOR_MODE = 103 => "RDMA_NLDEV_SYS_ATTR_MONITOR_MODE",
        STAT_OPCOUNTER_ENABLED = 104 => "RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED",
        FRMR_POOLS = 105 => "RDMA_NLDEV_ATTR_FRMR_POOLS",
        FRMR_POOL_ENTRY = 106 => "RDMA_NLDEV_ATTR_FRMR_POOL_ENTRY",
        FRMR_POOL_KEY = 107 => "RDMA_NLDEV_ATTR_FRMR_POOL_KEY",
        FRMR_POOL_KEY_ATS = 108 => "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS",
        FRMR_POOL_KEY_ACCESS_FLAGS = 109 => "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS",
        FRMR_POOL_KEY_VENDOR_KEY = 110 => "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY",
        FRMR_POOL_KEY_NUM_DMA_BLOCKS = 111 => "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS",
        FRMR_POOL_QUEUE_HANDLES = 112 => "RDMA_NLDEV_ATTR_FRMR_POOL_QUEUE_HANDLES",
        FRMR_POOL_MAX_IN_USE = 113 => "RDMA_NLDEV_ATTR_FRMR_POOL_MAX_IN_USE",
        FRMR_POOL_IN_USE = 114 => "RDMA_NLDEV_ATTR_FRMR_POOL_IN_USE",
        FRMR_POOLS_AGING_PERIOD = 115 => "RDMA_NLDEV_ATTR_FRMR_POOLS_AGING_PERIOD",
        FRMR_POOL_PINNED_HANDLES = 116 => "RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES",
        FRMR_POOL_KEY_KERNEL_VENDOR_KEY = 117 => "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_KERNEL_VENDOR_KEY",
        RES_SUMMARY_ENTRY_MAX = 118 => "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_MAX",
        /// Number of attributes.
        MAX = 119 => "RDMA_NLDEV_ATTR_MAX",
    }

    /// How queue pairs are bound to hardware counters.
    mod counter_mode: u32 {
        NONE = 0 => "RDMA_COUNTER_MODE_NONE",
        AUTO = 1 => "RDMA_COUNTER_MODE_AUTO",
        MANUAL = 2 => "RDMA_COUNTER_MODE_MANUAL",
        MAX = 3 => "RDMA_COUNTER_MODE_MAX",
    }

    /// Criteria of automatic binding, bits.
    mod counter_mask: u32 {
        QP_TYPE = 1 => "RDMA_COUNTER_MASK_QP_TYPE",
        PID = 2 => "RDMA_COUNTER_MASK_PID",
    }

    /// Types of devices with a parent.
    mod dev_type: u8 {
        SMI = 1 => "RDMA_DEVICE_TYPE_SMI",
    }

    /// Who named a device.
    mod name_assign_type: u8 {
        UNKNOWN = 0 => "RDMA_NAME_ASSIGN_TYPE_UNKNOWN",
        USER = 1 => "RDMA_NAME_ASSIGN_TYPE_USER",
    }

    /// Events of [`group::NOTIFY`].
    mod notify_event: u8 {
        REGISTER = 0 => "RDMA_REGISTER_EVENT",
        UNREGISTER = 1 => "RDMA_UNREGISTER_EVENT",
        NETDEV_ATTACH = 2 => "RDMA_NETDEV_ATTACH_EVENT",
        NETDEV_DETACH = 3 => "RDMA_NETDEV_DETACH_EVENT",
        RENAME = 4 => "RDMA_RENAME_EVENT",
        NETDEV_RENAME = 5 => "RDMA_NETDEV_RENAME_EVENT",
    }
}

/// Message type of a command: `RDMA_NL_GET_TYPE`.
#[doc(alias = "RDMA_NL_GET_TYPE")]
pub const fn type_of(client: u32, op: u32) -> u16 {
    ((client << 10) + op) as u16
}
