//! An open device: the transport that commands, doorbells and mappings come in by.

use memmap2::MmapRaw;
use uverbs_ioctl::{Doorbell, Errno, Packet, Result, Transport};
use uverbs_uapi::ioctl_cmds::{attr, method, object};
use uverbs_uapi::ioctl_verbs::{CoreSupport, driver_id};

use crate::attributes::{Attributes, Form, may, must};
use crate::device::{Hca, Limits};
use crate::events::Use;
use crate::faults::CallFate;
use crate::methods::{self, Method};
use crate::table::{Kind, Object};
use crate::wire::{Context, State, Wire};

/// Completion vectors.
const VECTORS: u32 = 1;

/// An open device, as the kernel's `/dev/infiniband/uverbsN` is one. Closed when dropped, with all that is in it.
#[derive(Debug)]
pub struct Opened {
    wire: Wire,
    context: u32,
}

impl Opened {
    pub(crate) fn new(wire: Wire, device: usize) -> Result<Self> {
        let context = wire.open(device)?;
        Ok(Self { wire, context })
    }

    /// Executes a command or mapping, if no fault is to happen to it.
    fn call<T>(&self, work: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Result<T> {
        self.with(|session| {
            let device = session.device();
            session.state.devices[device].calls += 1;
            match session.state.devices[device].faults.call() {
                None => work(session),
                Some(CallFate::Fails(errno)) => Err(errno),
                Some(CallFate::RemovesDevice) => {
                    session.state.remove_device(device);
                    Err(Errno::EIO)
                }
            }
        })
    }

    /// Does something in the context, if its device is still there.
    fn with<T>(&self, work: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Result<T> {
        self.wire.with(|state| {
            let mut session = Session { state, context: self.context };
            if session.hca().gone { Err(Errno::EIO) } else { work(&mut session) }
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.wire.close(self.context);
    }
}

// SAFETY: attributes are written by `Attributes::output` alone, as far as they are long, for the ids that the method's table makes an
// output, during the call. The one other write, of where a resized SRQ is, is to where the driver's input says. Mappings are their own.
unsafe impl Transport for Opened {
    fn driver_id(&self) -> u32 {
        driver_id::RXE
    }

    fn issue(&self, packet: &mut Packet) -> Result<()> {
        self.call(|session| {
            let header = packet.header();
            if header.reserved1 != 0 || header.reserved2 != 0 {
                return Err(Errno::EPROTONOSUPPORT);
            }
            if header.driver_id != driver_id::RXE {
                return Err(Errno::EINVAL);
            }
            let method = methods::find(header.object_id, header.method_id).ok_or(Errno::EPROTONOSUPPORT)?;
            let is_file = |of, fd| session.state.file(session.context, of, fd).is_ok();
            let handles = &session.context().handles;
            let mut attributes = Attributes::check(packet, method.attributes, handles, is_file)?;
            // INVOKE_WRITE looks for a context only behind its own checks.
            let without = [method::device::GET_CONTEXT, method::device::INVOKE_WRITE];
            let early = method.object == object::DEVICE && without.contains(&method.method);
            if !session.context().ready && !early {
                return Err(Errno::EINVAL);
            }
            (method.run)(session, &mut attributes)?;
            if method.attributes.iter().any(|spec| spec.id == attr::uhw::OUT) {
                attributes.driver_has_answered();
            }
            Ok(())
        })
    }

    fn doorbell(&self, doorbell: Doorbell) -> Result<()> {
        self.with(|session| match doorbell {
            Doorbell::Send { qp } => {
                let qp = session.number(Kind::Qp, qp)?;
                session.state.ring_send(qp)
            }
            Doorbell::Arm { cq, solicited_only } => {
                let cq = session.number(Kind::Cq, cq)?;
                session.state.arm(cq, solicited_only)
            }
        })
    }

    fn map(&self, offset: u64, length: usize) -> Result<MmapRaw> {
        let file = self.call(|session| session.state.take_map(session.context, offset, length))?;
        file.map(length)
    }
}

/// A call into an open device, under the lock of its wire.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) context: u32,
}

impl Session<'_> {
    pub(crate) fn context(&self) -> &Context {
        self.state.contexts.get(self.context).expect("a context is there until its device is closed")
    }

    pub(crate) fn context_mut(&mut self) -> &mut Context {
        self.state.contexts.get_mut(self.context).expect("a context is there until its device is closed")
    }

    pub(crate) fn device(&self) -> usize {
        self.context().device
    }

    pub(crate) fn hca(&self) -> &Hca {
        self.state.hca(self.device())
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.hca().limits
    }

    /// The number of an object by its handle.
    pub(crate) fn number(&self, kind: Kind, handle: u32) -> Result<u32> {
        self.context().handles.get(kind, handle)
    }

    /// A handle for a new object.
    pub(crate) fn handle(&mut self, kind: Kind, number: u32) -> u32 {
        self.context_mut().handles.insert(kind, number)
    }

    /// Lets the user map a ring of an object.
    pub(crate) fn offer(
        &mut self,
        kind: Kind,
        number: u32,
        file: crate::ring::RingFile,
    ) -> uverbs_uapi::rxe::MmapInfo {
        self.state.offer(self.context, Object { kind, number }, file)
    }

    /// The file for an object's asynchronous events: the one that an attribute names, or else the context's first.
    pub(crate) fn event_file(&self, attributes: &Attributes<'_>, id: u16) -> Result<Option<u32>> {
        let file = attributes.file(id).map(|fd| self.state.file(self.context, Use::Asynchronous, fd));
        Ok(file.transpose()?.or(self.context().async_file))
    }
}

pub(crate) const METHODS: &[Method] = &[
    Method {
        object: object::DEVICE,
        method: method::device::GET_CONTEXT,
        attributes: &[
            may(attr::get_context::NUM_COMP_VECTORS, Form::Out(4)),
            may(attr::get_context::CORE_SUPPORT, Form::Out(8)),
            may(attr::uhw::IN, Form::AtLeast(0)),
            may(attr::uhw::OUT, Form::Room(0)),
        ],
        run: |session, attributes| {
            if session.context().ready {
                return Err(Errno::EINVAL);
            }
            let support = CoreSupport::OPTIONAL_MR_ACCESS.bits();
            attributes.output_if_wanted(attr::get_context::NUM_COMP_VECTORS, &VECTORS)?;
            attributes.output_if_wanted(attr::get_context::CORE_SUPPORT, &support)?;
            session.context_mut().ready = true;
            Ok(())
        },
    },
    Method {
        object: object::DEVICE,
        method: method::device::QUERY_CONTEXT,
        attributes: &[
            may(attr::query_context::NUM_COMP_VECTORS, Form::Out(4)),
            may(attr::query_context::CORE_SUPPORT, Form::Out(8)),
        ],
        // The driver has no such operation.
        run: |_, _| Err(Errno::EOPNOTSUPP),
    },
    Method {
        object: object::ASYNC_EVENT,
        method: method::async_event::ALLOC,
        attributes: &[must(attr::async_event_alloc::FD_HANDLE, Form::New)],
        run: |session, attributes| {
            let (number, user) = session.state.new_file(session.context, Use::Asynchronous)?;
            session.context_mut().async_file.get_or_insert(number);
            attributes.created_file(attr::async_event_alloc::FD_HANDLE, user);
            Ok(())
        },
    },
];

/// Whether there is a completion vector of that number.
pub(crate) fn has_vector(vector: u32) -> bool {
    vector < VECTORS
}
