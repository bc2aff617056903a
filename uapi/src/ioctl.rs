//! `rdma/rdma_user_ioctl_cmds.h`: the one ioctl of verbs devices and the layout of its argument.

constants! {
    singles {
        /// First byte of every ioctl number of RDMA devices.
        RDMA_IOCTL_MAGIC: u32 = 0x1b => "RDMA_IOCTL_MAGIC",
        /// `_IOWR(RDMA_IOCTL_MAGIC, 1, struct ib_uverbs_ioctl_hdr)`. It is the same number on every
        /// architecture: those that encode the direction otherwise agree where both bits are set.
        RDMA_VERBS_IOCTL: u32 = 0xc000_0000 | 24 << 16 | RDMA_IOCTL_MAGIC << 8 | 1 => "RDMA_VERBS_IOCTL",
    }
}

flags! {
    /// Flags of an attribute, [`Attr::flags`].
    AttrFlags: u16 {
        /// The kernel fails the command if it does not know the attribute.
        MANDATORY = 1 << 0 => "UVERBS_ATTR_F_MANDATORY",
        /// Set by the kernel on output attributes that it has written.
        VALID_OUTPUT = 1 << 1 => "UVERBS_ATTR_F_VALID_OUTPUT",
    }
}

structs! {
    /// One attribute of a command.
    Attr: 16 = "ib_uverbs_attr" {
        /// Number within the method, from [`ioctl_cmds::attr`](crate::ioctl_cmds::attr).
        attr_id: u16,
        /// Bytes of data, or of an array of handles. Zero for objects and file descriptors.
        len: u16,
        /// [`AttrFlags`].
        flags: u16,
        /// Selected alternative of an enum attribute, otherwise zero.
        elem_id: u8 = "attr_data.enum_data.elem_id",
        /// Zero.
        reserved: u8 = "attr_data.enum_data.reserved",
        /// Input of at most 8 bytes itself, at the lowest addresses; a handle; a file descriptor,
        /// sign-extended; else a user pointer.
        data: u64,
    }

    /// Head of a command; its [`Attr`]s follow.
    IoctlHdr: 24 = "ib_uverbs_ioctl_hdr" {
        /// Bytes of this header and all attributes.
        length: u16,
        /// From [`ioctl_cmds::object`](crate::ioctl_cmds::object).
        object_id: u16,
        /// From [`ioctl_cmds::method`](crate::ioctl_cmds::method).
        method_id: u16,
        /// Number of attributes.
        num_attrs: u16,
        /// Zero.
        reserved1: u64,
        /// From [`ioctl_verbs::driver_id`](crate::ioctl_verbs::driver_id); must be that of the device.
        driver_id: u32,
        /// Zero.
        reserved2: u32,
    }
}
