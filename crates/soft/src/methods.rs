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
