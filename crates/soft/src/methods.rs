//! The methods that there are. What the driver lacks in the kernel is not there.

use uverbs_ioctl::Result;

use crate::attributes::{Attributes, Spec};
use crate::context::Session;
use crate::{ah, context, counter, cq, device, legacy, mr, mw, pd, qp, srq};

/// One method of one kind of object.
#[derive(Clone, Copy)]
pub(crate) struct Method {
    pub(crate) object: u16,
    pub(crate) method: u16,
    pub(crate) attributes: &'static [Spec],
    pub(crate) run: fn(&mut Session<'_>, &mut Attributes<'_>) -> Result<()>,
}

const METHODS: [&[Method]; 11] = [
    context::METHODS,
    legacy::METHODS,
    device::METHODS,
    pd::METHODS,
    mr::METHODS,
    mw::METHODS,
    ah::METHODS,
    cq::METHODS,
    srq::METHODS,
    qp::METHODS,
    counter::METHODS,
];

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Method> {
    METHODS.into_iter().flatten()
}

pub(crate) fn find(object: u16, method: u16) -> Option<&'static Method> {
    all().find(|entry| (entry.object, entry.method) == (object, method))
}

/// Destroys the object that an attribute names.
pub(crate) fn destroy(session: &mut Session<'_>, attributes: &Attributes<'_>, id: u16) -> Result<()> {
    session.state.destroy(session.context, attributes.handle(id)?)
}

#[cfg(test)]
mod tests {
    use uverbs_ioctl::{Errno, calls};
    use uverbs_uapi::ioctl_verbs::{GidEntry, comp_cntr_entry, comp_cntr_modify_op};
    use uverbs_uapi::user_verbs::{AllocPd, QueryDevice};

    use crate::device::Device;
    use crate::wire::Wire;

    /// Values of all lengths go in and come out by pointers and inline. It needs nothing of the system, so that Miri can look at it.
    #[test]
    fn values_go_in_and_out() {
        let device = Device::new(&Wire::new(), "plain");
        let context = device.open().unwrap();
        assert_eq!(calls::query_port(&context, 1).unwrap_err(), Errno::EINVAL);
        assert_eq!(calls::get_context(&context, &(), &mut ()).unwrap().completion_vectors, 1);
        assert_eq!(calls::query_port(&context, 1).unwrap().legacy_resp.gid_tbl_len, 1024);
        assert_eq!(calls::query_gid_table(&context, &mut [GidEntry::default()]), Err(Errno::EINVAL));
        let mut entries = [GidEntry::default(); 3];
        assert_eq!(calls::query_gid_table(&context, &mut entries), Ok(2));
        assert_eq!(entries.map(|entry| entry.gid_index), [0, 1, 0]);
        assert_eq!(calls::query_gid_entry(&context, 1, 1).unwrap().gid, entries[1].gid);
        let attributes = calls::invoke(&context, &QueryDevice::default()).unwrap();
        assert_eq!(u64::from(attributes.node_guid), device.guid());
        let domains = [(); 2].map(|()| calls::invoke(&context, &AllocPd::default()).unwrap().pd_handle);
        assert_eq!(domains, [0, 1]);
        let counter = calls::create_comp_cntr(&context).unwrap();
        for operation in [comp_cntr_modify_op::SET, comp_cntr_modify_op::INC] {
            calls::modify_comp_cntr(&context, counter, comp_cntr_entry::ERR, operation, 1 << 40).unwrap();
        }
        assert_eq!(calls::read_comp_cntr(&context, counter, comp_cntr_entry::ERR), Ok(1 << 41));
        assert_eq!(calls::destroy_pd(&context, domains[0]), Ok(()));
        assert_eq!(calls::destroy_pd(&context, domains[0]), Err(Errno::ENOENT));
    }
}
