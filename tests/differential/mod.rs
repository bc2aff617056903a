//! The same commands and work, right and wrong ones, to soft-RoCE of Linux 7.3 and to a device inside the process: both do the same.
//!
//! [`written`] are sequences of commands that somebody has written down, [`generated`] ones that a number determines; [`queues`] is work in
//! rings that somebody has written down, [`planned`] work that a number determines. Results are compared, and every byte of outputs,
//! completions and memory, indices of rings, states and events, but what [`Accepted`] says.
//!
//! What is never asked of the kernel, because its driver does not survive it: the invalidation of a window that is not bound is the end of
//! the kernel, and the destruction of a QP with windows bound by it takes 50 seconds.

mod bench;
mod call;
mod commands;
mod failing;
mod generated;
mod planned;
mod queue_pairs;
mod queues;
mod spoil;
mod written;

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use uverbs::soft;
use uverbs_ioctl::uapi::user_verbs::{ModifyQp, QueryQp, write_cmd};
use uverbs_ioctl::{Errno, KernelDevice, Transport, calls, discovery};
use zerocopy::FromBytes;

use crate::common::{device_name, wait_until};
use call::{Call, Kind, Pair, Said, Thing};

crate::cases! {
    Compared written_sequences_are_answered_alike;
    Compared generated_sequences_are_answered_alike;
    Compared work_is_done_alike;
    Compared generated_work_is_done_alike;
}

pub(crate) use generated::allowance;
use generated::generated_sequences_are_answered_alike;
use planned::generated_work_is_done_alike;
use queues::work_is_done_alike;
use written::written_sequences_are_answered_alike;

/// What is accepted as different, with the reason. What the driver notes for itself in the slots of requests, nobody looks at.
#[derive(Clone, Copy, Debug)]
enum Accepted {
    /// Node GUID, the GID that is made of it, and the number of the network interface: each device has its own.
    Identity,
    /// Completion vectors are interrupts, and a device inside the process has none: one will do.
    Vectors,
    /// Numbers of open files are the process's.
    Files,
    /// The low byte of a key is random, and the rest counts on over all regions of the device, of whichever test.
    Keys,
    /// Numbers of QPs, SRQs and address handles count on over all of the device.
    Numbers,
    /// How often the port has got a wrong key, of whichever test. Devices inside the process do not count.
    Violations,
    /// Where in the device's file a ring is to be mapped.
    Places,
    /// What a command that has failed leaves in its outputs. The kernel has written some by then, and they mean nothing.
    Failed,
    /// How many events of an object were read before it was destroyed. The kernel counts when they are read, and takes unread ones back;
    /// those of a device inside the process are in a socket then, and have been counted. Where all have been read it is the same.
    Events,
    /// On-demand paging: devices inside the process have none.
    Paging,
    /// Commands and methods that the library does not issue, because newer ones have taken their place or it has no use for them.
    Unissued,
    /// Addresses of others: the kernel asks the network, for seconds if nobody answers. Inside the process it is known who is there.
    Network,
    /// To attach a QP to one group by two LIDs. The core counts both and the driver one, so that the kernel never gets rid of the QP.
    Leaked,
    /// Bytes of the IP header before a datagram that say nothing, number and checksum of the packet.
    Header,
    /// Messages are cut into packets by the kernel alone. Of one that fails some may have arrived: bytes of it, and numbers of packets.
    Packets,
    /// The number that the next packet would have had when retries have been in vain. The driver counts what it has sent, a device inside the
    /// process what has been answered.
    Retried,
    /// The status of a request that fails before it is sent. The driver breaks the QP before it tells, and so completes it as flushed; the
    /// specification has it told, and so does a device inside the process.
    Unsent,
}

impl Accepted {
    /// Marks a place where such a difference is let pass.
    fn passes(self) -> bool {
        true
    }
}

/// Most differences that are told.
const TOLD: usize = 40;

/// Most bytes of an output that are told.
const BYTES: usize = 8;

/// What is said for a command that is not issued, because it is not compared.
const NOT_ISSUED: Errno = Errno::ECANCELED;

/// The kernel's device and one inside the process, each opened once.
struct Both {
    transports: Pair<Box<dyn Transport>>,
    /// Objects that are there. Handles are the same on both sides: the lowest that is free.
    objects: Vec<(Kind, u32)>,
    files: Vec<Pair<OwnedFd>>,
    issued: usize,
    succeeded: usize,
    /// Commands that were not issued, because they are not compared.
    excluded: usize,
    differences: Vec<String>,
}

impl Both {
    /// Without contexts.
    fn unready() -> Self {
        let inside = soft::Device::new(&soft::Wire::new(), "inside").open().unwrap();
        let transports: Pair<Box<dyn Transport>> = [open_kernel(), Box::new(inside)];
        let (objects, files, differences) = (Vec::new(), Vec::new(), Vec::new());
        Self { transports, objects, files, issued: 0, succeeded: 0, excluded: 0, differences }
    }

    fn new() -> Self {
        let mut both = Self::unready();
        both.does(&commands::get_context());
        both
    }

    /// Issues a command on both sides. Says what the kernel says, with the handle of what has been made.
    fn issue(&mut self, call: &Call) -> Result<u32, Errno> {
        if spoil::excluded(call).is_some_and(Accepted::passes) {
            self.excluded += 1;
            return Err(NOT_ISSUED);
        }
        let [(kernel, a), (inside, b)] = [0, 1].map(|side| call.issue(side, &*self.transports[side]));
        self.issued += 1;
        self.succeeded += usize::from(kernel.result.is_ok());
        if kernel != inside {
            self.differences.push(difference(call, &kernel, &inside));
        }
        if kernel.result.is_ok() != inside.result.is_ok() {
            self.take_back(call, [&a, &b]);
            return kernel.result.and(inside.result).map(|()| 0);
        }
        kernel.result?;
        if call.write_command() == Some(write_cmd::MODIFY_QP.into())
            && let Some(request) = ModifyQp::read_from_prefix(call.request()).ok()
        {
            self.settle(request.0.qp_handle);
        }
        if let Some(handle) = call.destroyed() {
            self.objects.retain(|(_, other)| *other != handle);
        }
        match (a, b) {
            (Thing::File(a), Thing::File(b)) => self.files.push([a, b]),
            (Thing::Handle(handle), _) => {
                self.objects.extend(call.kind().map(|kind| (kind, handle)));
                return Ok(handle);
            }
            _ => {}
        }
        Ok(0)
    }

    /// Destroys what one side alone has made, so that the sides stay alike.
    fn take_back(&self, call: &Call, made: Pair<&Thing>) {
        for (side, thing) in made.into_iter().enumerate() {
            if let (Thing::Handle(handle), Some(kind)) = (thing, call.kind()) {
                commands::destroy(kind, *handle).issue(side, &*self.transports[side]);
            }
        }
    }

    /// Issues a command that is right, and gives the handle of what it has made.
    #[track_caller]
    fn does(&mut self, call: &Call) -> u32 {
        match self.issue(call) {
            Ok(handle) => handle,
            Err(errno) => panic!("{call}: {errno}\n{}", self.differences.join("\n")),
        }
    }

    /// Destroys all objects. None that is gone may be among them; some are left, where groups that it is in keep a QP.
    fn destroy_all(&mut self) {
        let mut left = usize::MAX;
        while self.objects.len() < left {
            left = self.objects.len();
            for (kind, handle) in self.objects.clone().into_iter().rev() {
                let result = self.issue(&commands::destroy(kind, handle));
                assert!(matches!(result, Ok(_) | Err(Errno::EBUSY)), "{kind:?} {handle}: {result:?}");
            }
        }
    }

    /// Waits until the kernel's QP has drained, if it does. It takes a moment for that, and refuses most changes meanwhile.
    fn settle(&self, qp_handle: u32) {
        let request = QueryQp { qp_handle, ..Default::default() };
        let drains = || calls::invoke(&*self.transports[0], &request).is_ok_and(|qp| qp.sq_draining != 0);
        wait_until("the QP has drained", || !drains());
    }

    /// The files that were made last.
    fn last_file(&self) -> Pair<RawFd> {
        self.files.last().map_or([-1; 2], |files| files.each_ref().map(AsRawFd::as_raw_fd))
    }
}

/// The device of the tests.
fn open_kernel() -> Box<dyn Transport> {
    let found = discovery::devices().unwrap();
    let info = found.into_iter().find(|info| info.device.name == device_name()).unwrap();
    Box::new(KernelDevice::open(&info.node, info.stamp.unwrap(), info.driver_id, Vec::new).unwrap())
}

fn difference(call: &Call, kernel: &Said, inside: &Said) -> String {
    let mut told = format!("{call}");
    if kernel.result != inside.result {
        told.push_str(&format!("\n    kernel: {:?}, inside: {:?}", kernel.result, inside.result));
    }
    for ((arg, (a, x, kernel)), (b, y, inside)) in
        call.args.iter().zip(&kernel.attributes).zip(&inside.attributes)
    {
        let id = arg.attr.attr_id;
        if (a, x) != (b, y) {
            told.push_str(&format!("\n    {id:#x}: kernel: flags {a}, data {x:#x}; inside: {b}, {y:#x}"));
        }
        let bytes = kernel.iter().zip(inside).enumerate().filter(|(_, (kernel, inside))| kernel != inside);
        for (place, (kernel, inside)) in bytes.take(BYTES) {
            told.push_str(&format!("\n    {id:#x}, byte {place}: kernel: {kernel:#x}, inside: {inside:#x}"));
        }
    }
    told
}

/// Fails if there are differences.
fn tell(differences: &[String]) {
    let told = differences.iter().take(TOLD).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} differences:\n{told}", differences.len());
}
