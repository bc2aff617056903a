//! A wire: all that its devices hold, behind one lock, and the thread for what happens later.
//!
//! Commands and doorbells are executed by whoever issues them, under the lock, up to where a sender has to wait: for its peer's receive,
//! or for an answer that does not come. The thread goes on from there. It is started by the first that waits, and ends with the last
//! context.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uverbs_ioctl::{Errno, Result};
use uverbs_uapi::rxe::MmapInfo;
use uverbs_uapi::values::event_type;

use crate::ah::AddressHandle;
use crate::counter::Counter;
use crate::cq::Cq;
use crate::device::Hca;
use crate::events::{EventFile, Use};
use crate::mr::{MR_NUMBERS, Mr};
use crate::mw::{MW_NUMBERS, Mw};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::ring::RingFile;
use crate::srq::Srq;
use crate::table::{Handles, Kind, Object, Table};

/// How often a reader that is slow is looked at.
const SLOW_READER: Duration = Duration::from_millis(1);

/// What the thread of a wire is called.
pub(crate) const THREAD: &str = "uverbs-soft";

/// What connects devices: those on one wire reach each other, and no others.
#[derive(Clone, Debug)]
pub struct Wire(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something new to wait for, or nothing at all any more.
    changed: Condvar,
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    /// Whether GET_CONTEXT has made it one.
    pub(crate) ready: bool,
    pub(crate) handles: Handles,
    /// The first file of asynchronous events.
    pub(crate) async_file: Option<u32>,
    /// Rings to be mapped, by offset, with what they are of.
    maps: BTreeMap<u64, (Object, RingFile)>,
}

/// Who asynchronous events are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) context: u32,
    /// The one that it was created with, or else the first one that there was by then.
    pub(crate) file: Option<u32>,
    pub(crate) user_handle: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) devices: Vec<Hca>,
    pub(crate) contexts: Table<Context>,
    pub(crate) files: Table<EventFile>,
    pub(crate) pds: Table<Pd>,
    pub(crate) mrs: Table<Mr>,
    pub(crate) mws: Table<Mw>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) qps: Table<Qp>,
    pub(crate) ahs: Table<AddressHandle>,
    pub(crate) counters: Table<Counter>,
    /// When QPs that wait go on, by number.
    pub(crate) timers: BTreeSet<(Instant, u32)>,
    /// Whether a reader has to make room for an event.
    pub(crate) slow_reader: bool,
    next_offset: u64,
    next_key: u8,
    thread: Option<JoinHandle<()>>,
    /// Counts the times that the last context has been closed. A thread ends with the life that it was started in.
    life: u64,
}

impl Default for Wire {
    fn default() -> Self {
        Self::new()
    }
}

impl Wire {
    /// A wire without devices.
    pub fn new() -> Self {
        let state = State {
            devices: Vec::new(),
            contexts: Table::new(0..=u32::MAX - 1),
            files: Table::new(0..=u32::MAX - 1),
            pds: Table::new(1..=1 << 20),
            mrs: Table::new(MR_NUMBERS),
            mws: Table::new(MW_NUMBERS),
            cqs: Table::new(1..=1 << 20),
            srqs: Table::new(0x2_0001..=1 << 20),
            qps: Table::new(17..=1 << 20),
            ahs: Table::new(1..=32767),
            counters: Table::new(1..=u32::MAX - 1),
            timers: BTreeSet::new(),
            slow_reader: false,
            next_offset: 0,
            next_key: 0,
            thread: None,
            life: 0,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Does something with what is there, and sees to what is to happen later.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.state.lock();
        let next = state.timers.first().copied();
        let result = work(&mut state);
        let later = state.slow_reader || !state.timers.is_empty();
        if later && state.thread.is_none() && state.contexts.len() > 0 {
            let (shared, life) = (self.0.clone(), state.life);
            let thread = std::thread::Builder::new().name(THREAD.to_owned());
            // Without a thread, whoever waits goes on at the next doorbell.
            state.thread = thread.spawn(move || shared.go_on(life)).ok();
        } else if state.slow_reader || state.timers.first().copied() != next {
            self.0.changed.notify_all();
        }
        result
    }

    /// Opens a device.
    pub(crate) fn open(&self, device: usize) -> Result<u32> {
        self.with(|state| {
            if state.devices[device].gone {
                return Err(Errno::ENXIO);
            }
            state.contexts.insert(|_| Context {
                device,
                ready: false,
                handles: Handles::default(),
                async_file: None,
                maps: BTreeMap::new(),
            })
        })
    }

    /// Closes a context, with all that is in it. With the last one, the thread goes.
    pub(crate) fn close(&self, context: u32) {
        let thread = self.with(|state| {
            state.clear(context);
            state.contexts.remove(context);
            if state.contexts.len() > 0 {
                return None;
            }
            state.life += 1;
            state.thread.take()
        });
        if let Some(thread) = thread {
            self.0.changed.notify_all();
            // It has no way to panic that is not a fault of this crate, and then its context is closed all the same.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// What the thread does, until its life is over.
    fn go_on(&self, life: u64) {
        let mut state = self.state.lock();
        while state.life == life {
            state.go_on(Instant::now());
            let next = state.timers.first().map(|(when, _)| *when);
            let reader = state.slow_reader.then(|| Instant::now() + SLOW_READER);
            match next.into_iter().chain(reader).min() {
                Some(when) => {
                    self.changed.wait_until(&mut state, when);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

impl State {
    /// Lets those go on whose time has come.
    fn go_on(&mut self, now: Instant) {
        while let Some((when, qp)) = self.timers.first().copied()
            && when <= now
        {
            self.timers.pop_first();
            self.run(qp);
        }
        if self.slow_reader {
            self.slow_reader = false;
            for file in self.files.values_mut() {
                self.slow_reader |= !file.flush();
            }
        }
    }

    /// The low byte of a new key.
    pub(crate) fn next_key(&mut self) -> u8 {
        // Any step that is odd comes to all of them.
        self.next_key = self.next_key.wrapping_add(89);
        self.next_key
    }

    /// Lets the user map a ring of an object.
    pub(crate) fn offer(&mut self, context: u32, owner: Object, file: RingFile) -> MmapInfo {
        self.next_offset += rustix::param::page_size() as u64;
        let info = MmapInfo { offset: self.next_offset, size: file.size, pad: 0 };
        self.next_offset += u64::from(file.size);
        if let Some(context) = self.contexts.get_mut(context) {
            context.maps.insert(info.offset, (owner, file));
        }
        info
    }

    /// The ring that waits at that offset, which is mapped once.
    pub(crate) fn take_map(&mut self, context: u32, offset: u64, length: usize) -> Result<RingFile> {
        let context = self.contexts.get_mut(context).ok_or(Errno::EIO)?;
        match context.maps.get(&offset) {
            Some((_, file)) if length <= file.size as usize => {}
            _ => return Err(Errno::EINVAL),
        }
        context.maps.remove(&offset).map(|(_, file)| file).ok_or(Errno::EINVAL)
    }

    /// Forgets rings of an object that have not been mapped.
    pub(crate) fn forget_maps(&mut self, context: u32, owner: Object) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.maps.retain(|_, (object, _)| *object != owner);
        }
    }

    /// A new file of events, and the user's end.
    pub(crate) fn new_file(&mut self, context: u32, kind: Use) -> Result<(u32, std::os::fd::OwnedFd)> {
        self.close_files(context);
        let (file, user) = EventFile::new(context, kind)?;
        Ok((self.files.insert(|_| file)?, user))
    }

    /// The file that a number of the process stands for. `EBADF` if it is none of the context's for that use.
    pub(crate) fn file(&self, context: u32, kind: Use, fd: i32) -> Result<u32> {
        let wanted = |file: &EventFile| file.context == context && file.kind == kind && file.is(fd);
        self.files.find(wanted).ok_or(Errno::EBADF)
    }

    /// Lets files go that the user has closed and nothing reports to.
    pub(crate) fn close_files(&mut self, context: u32) {
        self.files.retain(|_, file| file.context != context || file.users > 0 || !file.is_closed());
    }

    /// Tells of something that has happened to an object. Says whether somebody listens.
    pub(crate) fn tell(&mut self, listener: Listener, event: u32) -> bool {
        let Some(file) = listener.file.and_then(|file| self.files.get_mut(file)) else { return false };
        file.asynchronous(listener.user_handle, event);
        self.slow_reader |= !file.flush();
        true
    }

    /// Tells a context of something that has happened to none of its objects.
    fn tell_context(&mut self, context: u32, user_handle: u64, event: u32) {
        let file = self.contexts.get(context).and_then(|context| context.async_file);
        self.tell(Listener { context, file, user_handle }, event);
    }

    /// Takes a device away, with all that is in its contexts, as if it had been unplugged.
    pub(crate) fn remove_device(&mut self, device: usize) {
        self.devices[device].gone = true;
        for context in self.contexts_of(device) {
            self.tell_context(context, 0, event_type::DEVICE_FATAL);
            self.clear(context);
        }
    }

    /// Takes a device's link down or up.
    pub(crate) fn set_link(&mut self, device: usize, up: bool) {
        let was_up = !std::mem::replace(&mut self.devices[device].down, !up);
        if was_up != up {
            self.tell_of_port(device, if up { event_type::PORT_ACTIVE } else { event_type::PORT_ERR });
        }
    }

    /// Gives a device another GID.
    pub(crate) fn add_gid(&mut self, device: usize, gid: [u8; 16]) {
        if self.devices[device].add_gid(gid) {
            self.tell_of_port(device, event_type::GID_CHANGE);
        }
    }

    fn tell_of_port(&mut self, device: usize, event: u32) {
        const PORT: u64 = 1;
        for context in self.contexts_of(device) {
            self.tell_context(context, PORT, event);
        }
    }

    /// How many objects of each kind a device has.
    pub(crate) fn resources(&self, device: usize) -> BTreeMap<&'static str, u64> {
        let mut found: BTreeMap<_, _> = Kind::ALL.into_iter().map(|kind| (kind.name(), 0)).collect();
        for context in self.contexts_of(device) {
            let handles = self.contexts.get(context).map(|context| &context.handles);
            for object in handles.into_iter().flat_map(Handles::objects) {
                *found.entry(object.kind.name()).or_default() += 1;
            }
            *found.entry("ctx").or_default() += 1;
        }
        found
    }

    fn contexts_of(&self, device: usize) -> Vec<u32> {
        let of_device = |(number, context): (&u32, &Context)| (context.device == device).then_some(*number);
        self.contexts.iter().filter_map(of_device).collect()
    }

    /// Destroys all that is in a context, what was created last first.
    fn clear(&mut self, context: u32) {
        for qp in self.qps.values_mut().filter(|qp| qp.listener.context == context) {
            qp.groups.clear();
        }
        // A region to which a window is bound, for example, goes in a later round.
        loop {
            let handles = self.contexts.get(context).map_or_else(Vec::new, |c| c.handles.latest_first());
            let before = handles.len();
            let gone = handles.into_iter().filter(|handle| self.destroy(context, *handle).is_ok()).count();
            if gone == 0 || gone == before {
                break;
            }
        }
        self.files.retain(|_, file| file.context != context);
        if let Some(context) = self.contexts.get_mut(context) {
            context.async_file = None;
            context.maps.clear();
        }
    }

    /// Destroys an object, or says why not.
    pub(crate) fn destroy(&mut self, context: u32, handle: u32) -> Result<()> {
        let handles = &self.contexts.get(context).ok_or(Errno::EIO)?.handles;
        let object = handles.object(handle).ok_or(Errno::ENOENT)?;
        let number = object.number;
        match object.kind {
            Kind::Pd => self.destroy_pd(number)?,
            Kind::Mr => self.destroy_mr(number)?,
            Kind::Mw => self.destroy_mw(number)?,
            Kind::Cq => self.destroy_cq(number)?,
            Kind::Srq => self.destroy_srq(number)?,
            Kind::Qp => self.destroy_qp(number)?,
            Kind::Ah => self.destroy_ah(number)?,
            Kind::Counter => self.destroy_counter(number)?,
        }
        self.forget_maps(context, object);
        if let Some(context) = self.contexts.get_mut(context) {
            context.handles.remove(handle);
        }
        Ok(())
    }
}
