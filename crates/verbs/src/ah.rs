//! Address handles.

use std::fmt;

use uverbs_ioctl::calls;
use uverbs_ioctl::uapi::user_verbs::CreateAh;

use crate::error::{DestroyError, Error, Result};
use crate::object::Object;
use crate::pd::ProtectionDomain;
use crate::qp::AddressVector;

/// An address handle, `struct ibv_ah`: where datagrams go. [`Destination`](crate::Destination) adds the QP there.
///
/// It is for QPs of its protection domain, which it keeps alive. A request that has not been executed when the handle goes fails.
///
/// ```no_run
/// use uverbs::{AddressVector, Destination, Device, SendRequest};
///
/// # fn example(qp: &mut uverbs::QueuePair) -> Result<(), Box<dyn std::error::Error>> {
/// let context = Device::find("rxe0")?.open()?;
/// let domain = context.alloc_protection_domain()?;
/// let own = context.routable_gid(1, None)?;
/// let peer = AddressVector::global(1, "::ffff:10.0.0.2".parse()?, own.index as u8);
/// let address = domain.create_address_handle(&peer)?;
/// let to = Destination { address: &address, qp_num: 17, qkey: 0x1234 };
/// // `qp` is a UD QP of that domain.
/// qp.post_send_list(&[SendRequest::send_inline(1, &[b"hello"]).to(to)])?;
/// # Ok(())
/// # }
/// ```
pub struct AddressHandle {
    // Fields are dropped in this order.
    object: Object,
    number: u32,
    domain: ProtectionDomain,
}

impl AddressHandle {
    pub(crate) fn new(domain: &ProtectionDomain, address: &AddressVector) -> Result<Self> {
        let context = domain.0.context();
        let request =
            CreateAh { pd_handle: domain.handle(), attr: address.attributes(), ..Default::default() };
        let new = context
            .ops()
            .create_address_handle(context.transport(), &request)
            .map_err(|errno| Error::new("create_ah", errno).or_detail(|| address.explain(errno)))?;
        let object = Object::new(context.clone(), new.handle, calls::destroy_ah);
        Ok(Self { object, number: new.number, domain: domain.clone() })
    }

    /// The domain that it belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Gives it back, `ibv_destroy_ah`.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::ErrorKind::DeviceGone).
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        match self.object.destroy() {
            Ok(()) => Ok(()),
            Err(errno) => Err(DestroyError::new(self, Error::new("destroy_ah", errno))),
        }
    }

    /// The device's name for it.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("number", &self.number).finish_non_exhaustive()
    }
}
