//! Completion queues.

use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::rxe::{CreateCqResp, ResizeCqResp};
use uverbs_uapi::user_verbs::{CqCreateFlags, DestroyCqResp, ResizeCq, ResizeCqResp as CoreResizeCqResp, Wc};
use uverbs_uapi::values::event_type;

use crate::attributes::{Attributes, Form, may, must};
use crate::context::{Session, has_vector};
use crate::events::Use;
use crate::methods::Method;
use crate::ring::{Ring, Side};
use crate::table::Kind;
use crate::wire::{Listener, State};

/// Bytes of an element: the driver takes as many for what it writes there for users within the kernel.
const ELEMENT: usize = 128;

#[derive(Debug)]
pub(crate) struct Cq {
    listener: Listener,
    channel: Option<u32>,
    ring: Ring,
    armed: Armed,
    /// QPs that use it, as often as they do.
    pub(crate) users: u32,
    completion_events: u32,
    async_events: u32,
}

/// Which completion raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    None,
    Solicited,
    Any,
}

pub(crate) const METHODS: &[Method] = &[
    Method {
        object: object::CQ,
        method: method::cq::CREATE,
        attributes: &[
            must(attr::create_cq::HANDLE, Form::New),
            must(attr::create_cq::CQE, Form::In(4)),
            must(attr::create_cq::USER_HANDLE, Form::In(8)),
            may(attr::create_cq::COMP_CHANNEL, Form::File(Use::Completions)),
            must(attr::create_cq::COMP_VECTOR, Form::In(4)),
            may(attr::create_cq::FLAGS, Form::Flags(CqCreateFlags::all().bits() as u64)),
            must(attr::create_cq::RESP_CQE, Form::Out(4)),
            may(attr::create_cq::EVENT_FD, Form::File(Use::Asynchronous)),
            may(attr::uhw::IN, Form::AtLeast(0)),
            may(attr::uhw::OUT, Form::Room(0)),
        ],
        run: create,
    },
    Method {
        object: object::CQ,
        method: method::cq::DESTROY,
        attributes: &[
            must(attr::destroy_cq::HANDLE, Form::Handle(Kind::Cq)),
            must(attr::destroy_cq::RESP, Form::Out(size_of::<DestroyCqResp>())),
        ],
        run: |session, attributes| {
            let handle = attributes.handle(attr::destroy_cq::HANDLE)?;
            let number = session.number(Kind::Cq, handle)?;
            let cq = session.state.cqs.get(number).ok_or(Errno::ENOENT)?;
            let response = DestroyCqResp {
                comp_events_reported: cq.completion_events,
                async_events_reported: cq.async_events,
            };
            session.state.destroy(session.context, handle)?;
            attributes.output(attr::destroy_cq::RESP, &response)
        },
    },
];

fn create(session: &mut Session<'_>, attributes: &mut Attributes<'_>) -> Result<()> {
    use attr::create_cq as id;
    let channel = attributes.file(id::COMP_CHANNEL);
    let channel = channel.map(|fd| session.state.file(session.context, Use::Completions, fd)).transpose()?;
    let file = session.event_file(attributes, id::EVENT_FD)?;
    let (entries, vector) = (attributes.input::<u32>(id::CQE)?, attributes.input::<u32>(id::COMP_VECTOR)?);
    if entries == 0 || !has_vector(vector) {
        return Err(Errno::EINVAL);
    }
    if attributes.length(attr::uhw::OUT) < size_of::<CreateCqResp>() {
        return Err(Errno::EINVAL);
    }
    if attributes.number(id::FLAGS) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if entries > session.limits().completions {
        return Err(Errno::EINVAL);
    }
    let listener =
        Listener { context: session.context, file, user_handle: attributes.input(id::USER_HANDLE)? };
    let (ring, memory) = Ring::new(entries, ELEMENT, Side::Producer)?;
    let granted = ring.capacity();
    let number = session.state.cqs.insert(|_| Cq {
        listener,
        channel,
        ring,
        armed: Armed::None,
        users: 0,
        completion_events: 0,
        async_events: 0,
    })?;
    if let Some(channel) = channel.and_then(|channel| session.state.files.get_mut(channel)) {
        channel.users += 1;
    }
    let mi = session.offer(Kind::Cq, number, memory);
    attributes.output(attr::uhw::OUT, &CreateCqResp { mi })?;
    attributes.output(id::RESP_CQE, &granted)?;
    let handle = session.handle(Kind::Cq, number);
    attributes.created(id::HANDLE, handle);
    Ok(())
}

impl Session<'_> {
    pub(crate) fn resize_cq(
        &mut self,
        request: &ResizeCq,
        driver: &mut Attributes<'_>,
    ) -> Result<CoreResizeCqResp> {
        if request.cqe == 0 {
            return Err(Errno::EINVAL);
        }
        let number = self.number(Kind::Cq, request.cq_handle)?;
        if driver.length(attr::uhw::OUT) < size_of::<ResizeCqResp>()
            || request.cqe > self.limits().completions
        {
            return Err(Errno::EINVAL);
        }
        let cq = self.state.cqs.get_mut(number).ok_or(Errno::ENOENT)?;
        if request.cqe < cq.ring.count() {
            return Err(Errno::EINVAL);
        }
        let (ring, memory) = cq.ring.resized(request.cqe)?;
        let cqe = ring.capacity();
        cq.ring = ring;
        let mi = self.offer(Kind::Cq, number, memory);
        driver.output(attr::uhw::OUT, &ResizeCqResp { mi })?;
        Ok(CoreResizeCqResp { cqe, reserved: 0 })
    }
}

impl State {
    /// Asks for an event. What was asked for before stays asked for.
    pub(crate) fn arm(&mut self, cq: u32, solicited_only: bool) -> Result<()> {
        let cq = self.cqs.get_mut(cq).ok_or(Errno::ENOENT)?;
        cq.armed = cq.armed.max(if solicited_only { Armed::Solicited } else { Armed::Any });
        Ok(())
    }

    /// Adds a completion. Says whether there was room: if not, it is lost, and an event tells.
    pub(crate) fn complete(&mut self, number: u32, completion: Wc, solicited: bool) -> bool {
        let Some(cq) = self.cqs.get_mut(number) else { return true };
        if !cq.ring.push(completion) {
            let listener = cq.listener;
            let told = self.tell(listener, event_type::CQ_ERR);
            if let Some(cq) = self.cqs.get_mut(number) {
                cq.async_events += u32::from(told);
            }
            return false;
        }
        let raises = match cq.armed {
            Armed::None => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if raises {
            cq.armed = Armed::None;
            let user_handle = cq.listener.user_handle;
            if let Some(channel) = cq.channel.and_then(|channel| self.files.get_mut(channel)) {
                cq.completion_events += 1;
                channel.completion(user_handle);
                self.slow_reader |= !channel.flush();
            }
        }
        true
    }

    pub(crate) fn destroy_cq(&mut self, number: u32) -> Result<()> {
        if self.cqs.get(number).is_some_and(|cq| cq.users > 0) {
            return Err(Errno::EBUSY);
        }
        if let Some(cq) = self.cqs.remove(number) {
            if let Some(channel) = cq.channel.and_then(|channel| self.files.get_mut(channel)) {
                channel.users -= 1;
            }
            self.close_files(cq.listener.context);
        }
        Ok(())
    }
}
