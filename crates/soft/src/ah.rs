//! Address handles.

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::rxe;
use uverbs_uapi::user_verbs::{AhAttr, CreateAh, CreateAhResp};

use crate::attributes::{Attributes, Form, must};
use crate::context::Session;
use crate::device::{HOPS, Place};
use crate::methods::{Method, destroy};
use crate::table::Kind;
use crate::wire::State;

#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(crate) pd: u32,
    pub(crate) place: Place,
    pub(crate) attr: AhAttr,
}

pub(crate) const METHODS: &[Method] = &[Method {
    object: object::AH,
    method: method::ah::DESTROY,
    attributes: &[must(attr::destroy_ah::HANDLE, Form::Handle(Kind::Ah))],
    run: |session, attributes| destroy(session, attributes, attr::destroy_ah::HANDLE),
}];

impl Session<'_> {
    pub(crate) fn create_ah(
        &mut self,
        request: &CreateAh,
        driver: &mut Attributes<'_>,
    ) -> Result<CreateAhResp> {
        let attr = request.attr;
        if attr.port_num != 1 {
            return Err(Errno::EINVAL);
        }
        let pd = self.pd(request.pd_handle)?;
        let (device, route) = (self.device(), &attr.grh);
        let place = self.state.resolve(device, attr.is_global != 0, &route.dgid, route.sgid_index)?;
        let mut attr = attr;
        if let Place::Device(_) = place {
            attr.grh.hop_limit = HOPS;
        }
        let number = self.state.ahs.insert(|_| AddressHandle { pd, place, attr })?;
        self.state.use_pd(pd);
        // The driver leaves what is behind the number as it is.
        if driver.length(attr::uhw::OUT) >= size_of::<rxe::CreateAhResp>() {
            driver.output(attr::uhw::OUT, &number)?;
        }
        Ok(CreateAhResp { ah_handle: self.handle(Kind::Ah, number) })
    }
}

impl State {
    pub(crate) fn destroy_ah(&mut self, number: u32) -> Result<()> {
        if let Some(ah) = self.ahs.remove(number) {
            self.unuse_pd(ah.pd);
        }
        Ok(())
    }
}
