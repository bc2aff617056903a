//! Tables of every struct and constant of this crate that a kernel header defines.

use crate::{efa, ioctl, ioctl_cmds, ioctl_verbs, netlink, rxe, siw, user_verbs};

/// A struct as this crate lays it out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Name of the C struct, without `struct`. `a.b.c` is the unnamed struct that is member `b.c` of struct
    /// `a`.
    pub c_name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// The fields that C names as well.
    pub fields: &'static [Field],
}

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Path of the C member, such as `ex` or `wr.rdma.rkey`.
    pub c_path: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// An enumerator or a macro.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Name in C.
    pub c_name: &'static str,
    /// Value; a negative one as C converts it to 64 bits unsigned.
    pub value: u64,
}

/// What this crate takes from one kernel header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Path to include.
    pub include: &'static str,
    /// Structs.
    pub layouts: &'static [Layout],
    /// Constants, those of flag words too.
    pub constants: &'static [Constant],
}

/// All headers.
pub const HEADERS: &[Header] = &[
    Header {
        include: "rdma/rdma_user_ioctl_cmds.h",
        layouts: ioctl::LAYOUTS,
        constants: &join::<{ ioctl::CONSTANTS.len() + ioctl::FLAGS.len() }>(&[
            ioctl::CONSTANTS,
            ioctl::FLAGS,
        ]),
    },
    Header {
        include: "rdma/ib_user_ioctl_cmds.h",
        layouts: &[],
        constants: &join::<
            {
                ioctl_cmds::CONSTANTS.len()
                    + ioctl_cmds::method::CONSTANTS.len()
                    + ioctl_cmds::attr::CONSTANTS.len()
            },
        >(&[
            ioctl_cmds::CONSTANTS,
            ioctl_cmds::method::CONSTANTS,
            ioctl_cmds::attr::CONSTANTS,
        ]),
    },
    Header {
        include: "rdma/ib_user_ioctl_verbs.h",
        layouts: ioctl_verbs::LAYOUTS,
        constants: &join::<{ ioctl_verbs::CONSTANTS.len() + ioctl_verbs::FLAGS.len() }>(&[
            ioctl_verbs::CONSTANTS,
            ioctl_verbs::FLAGS,
        ]),
    },
    Header {
        include: "rdma/ib_user_verbs.h",
        layouts: user_verbs::LAYOUTS,
        constants: &join::<{ user_verbs::CONSTANTS.len() + user_verbs::FLAGS.len() }>(&[
            user_verbs::CONSTANTS,
            user_verbs::FLAGS,
        ]),
    },
    Header { include: "rdma/rdma_user_rxe.h", layouts: rxe::LAYOUTS, constants: rxe::CONSTANTS },
    Header {
        include: "rdma/efa-abi.h",
        layouts: efa::LAYOUTS,
        constants: &join::<{ efa::CONSTANTS.len() + efa::FLAGS.len() }>(&[efa::CONSTANTS, efa::FLAGS]),
    },
    Header {
        include: "rdma/siw-abi.h",
        layouts: siw::LAYOUTS,
        constants: &join::<{ siw::CONSTANTS.len() + siw::FLAGS.len() }>(&[siw::CONSTANTS, siw::FLAGS]),
    },
    Header { include: "rdma/rdma_netlink.h", layouts: &[], constants: netlink::CONSTANTS },
];

const fn join<const N: usize>(parts: &[&[Constant]]) -> [Constant; N] {
    let mut all = [Constant { c_name: "", value: 0 }; N];
    let mut n = 0;
    let mut part = 0;
    while part < parts.len() {
        let mut i = 0;
        while i < parts[part].len() {
            all[n] = parts[part][i];
            n += 1;
            i += 1;
        }
        part += 1;
    }
    assert!(n == N);
    all
}
