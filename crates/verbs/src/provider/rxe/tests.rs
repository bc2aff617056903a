//! The provider against a transport that records what the kernel is given, and answers as it is told.

mod objects;

use std::collections::HashMap;
use std::io::{PipeWriter, pipe};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use memmap2::MmapOptions;
use uverbs_ioctl::uapi::ioctl::{Attr, AttrFlags};
use uverbs_ioctl::uapi::ioctl_cmds::{attr, method, object};
use uverbs_ioctl::uapi::ioctl_verbs::QpCap;
use uverbs_ioctl::uapi::rxe::{MmapInfo, QueueBuf, ResizeCqResp};
use uverbs_ioctl::uapi::user_verbs as legacy;
use uverbs_ioctl::uapi::user_verbs::{ModifySrq, ResizeCq, write_cmd};
use uverbs_ioctl::{Doorbell, MmapRaw, Packet};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::*;
use crate::channel::CompletionChannel;
use crate::qp::AddressVector;

/// What a ring of that many slots, of `1 << SHIFT` bytes, is mapped with. The size is none of pages.
fn ring(offset: u64, slots: u32) -> MmapInfo {
    MmapInfo { offset, size: size_of::<QueueBuf>() as u32 + (slots << SHIFT) + 24, pad: 0 }
}

const SHIFT: u32 = 9;
const HANDLE: u32 = 0x1234;
const QP_NUM: u32 = 0x1_7711;
const CAP: QpCap =
    QpCap { max_send_wr: 31, max_recv_wr: 7, max_send_sge: 5, max_recv_sge: 3, max_inline_data: 80 };
const CQ: MmapInfo = MmapInfo { offset: 0x7000, size: 384 + (128 << SHIFT) + 24, pad: 0 };

/// A command as the kernel saw it: its attributes with what they held.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    object: u16,
    method: u16,
    attributes: Vec<(u16, Vec<u8>)>,
}

impl Call {
    fn value<T: FromBytes>(&self, id: u16) -> T {
        let (_, bytes) = self.attributes.iter().find(|(number, _)| *number == id).expect("the attribute");
        T::read_from_bytes(bytes).expect("a value of that size")
    }
}

#[derive(Debug, Default)]
struct Kernel {
    calls: Mutex<Vec<Call>>,
    mapped: Mutex<Vec<(u64, usize)>>,
    /// How many bytes at its end the driver leaves of its answer.
    cut: usize,
    /// What methods it refuses, and how.
    refused: Mutex<HashMap<(u16, u16), Errno>>,
    /// Numbers of domains, regions and windows.
    next: AtomicU32,
    /// Where the completion channel is written to.
    channel: OnceLock<PipeWriter>,
    /// A channel that someone reads from while a CQ is destroyed.
    watched: OnceLock<CompletionChannel>,
    /// Whose events were read then.
    seen: Mutex<Vec<u64>>,
}

impl Kernel {
    /// The outputs of a command and what is written there.
    fn answers(&self, object: u16, method: u16, legacy_command: u64) -> Vec<(u16, Vec<u8>)> {
        use attr::{
            create_cq, create_qp, create_srq, destroy_cq, destroy_qp, destroy_srq, invoke_write, uhw,
        };
        fn bytes<T: IntoBytes + Immutable>(value: &T) -> Vec<u8> {
            value.as_bytes().to_vec()
        }
        const EX_QUERY_DEVICE: u32 = write_cmd::EX_QUERY_DEVICE | legacy::CMD_FLAG_EXTENDED;
        match (object, method) {
            (object::CQ, method::cq::CREATE) => {
                vec![(create_cq::RESP_CQE, bytes(&127_u32)), (uhw::OUT, bytes(&CreateCqResp { mi: CQ }))]
            }
            (object::QP, method::qp::CREATE) => vec![
                (create_qp::RESP_CAP, bytes(&CAP)),
                (create_qp::RESP_QP_NUM, bytes(&QP_NUM)),
                (uhw::OUT, bytes(&CreateQpResp { rq_mi: ring(0x2000, 8), sq_mi: ring(0x3000, 32) })),
            ],
            (object::SRQ, method::srq::CREATE) => vec![
                (create_srq::RESP_MAX_WR, bytes(&100_u32)),
                (create_srq::RESP_MAX_SGE, bytes(&6_u32)),
                (uhw::OUT, bytes(&CreateSrqResp { mi: ring(0x4000, 64), srq_num: 0x5501, reserved: 0 })),
            ],
            (object::CQ, method::cq::DESTROY) => vec![(destroy_cq::RESP, vec![0; 8])],
            (object::QP, method::qp::DESTROY) => vec![(destroy_qp::RESP, vec![0; 4])],
            (object::SRQ, method::srq::DESTROY) => vec![(destroy_srq::RESP, vec![0; 4])],
            (object::AH, method::ah::DESTROY)
            | (object::DEVICE, method::device::GET_CONTEXT)
            | (object::ASYNC_EVENT, method::async_event::ALLOC)
            | (object::PD, method::pd::DESTROY)
            | (object::MR, method::mr::DESTROY)
            | (object::MW, method::mw::DESTROY) => vec![],
            (object::DEVICE, method::device::INVOKE_WRITE) => match u32::try_from(legacy_command).unwrap() {
                write_cmd::CREATE_AH => vec![
                    (invoke_write::CORE_OUT, bytes(&legacy::CreateAhResp { ah_handle: HANDLE })),
                    (uhw::OUT, bytes(&CreateAhResp { ah_num: 0x77, reserved: 0 })),
                ],
                write_cmd::RESIZE_CQ => vec![
                    (invoke_write::CORE_OUT, bytes(&legacy::ResizeCqResp { cqe: 511, ..Default::default() })),
                    (uhw::OUT, bytes(&ResizeCqResp { mi: ring(0x5000, 512) })),
                ],
                write_cmd::ALLOC_PD => {
                    let response = legacy::AllocPdResp { pd_handle: self.number() };
                    vec![(invoke_write::CORE_OUT, bytes(&response))]
                }
                write_cmd::REG_MR => {
                    let mr_handle = self.number();
                    let (lkey, rkey) = (mr_handle << 8, mr_handle << 8);
                    vec![(invoke_write::CORE_OUT, bytes(&legacy::RegMrResp { mr_handle, lkey, rkey }))]
                }
                write_cmd::ALLOC_MW => {
                    let mw_handle = self.number();
                    let response = legacy::AllocMwResp { mw_handle, rkey: mw_handle << 8 | 0xfe };
                    vec![(invoke_write::CORE_OUT, bytes(&response))]
                }
                write_cmd::CREATE_COMP_CHANNEL => {
                    let (reader, writer) = pipe().unwrap();
                    self.channel.set(writer).unwrap();
                    let fd = reader.into_raw_fd() as u32;
                    vec![(invoke_write::CORE_OUT, bytes(&legacy::CreateCompChannelResp { fd }))]
                }
                write_cmd::MODIFY_SRQ | write_cmd::MODIFY_QP => vec![],
                EX_QUERY_DEVICE => vec![(invoke_write::CORE_OUT, vec![])],
                other => panic!("command {other:#x}"),
            },
            other => panic!("method {other:?}"),
        }
    }

    /// What an input holds: inline up to eight bytes.
    fn input(attribute: &Attr) -> Vec<u8> {
        let length = usize::from(attribute.len);
        if length <= 8 {
            // A handle has no length.
            let length = if length == 0 { 8 } else { length };
            return attribute.data.to_ne_bytes()[..length].to_vec();
        }
        // SAFETY: longer inputs are pointers to so many bytes, which the command borrows.
        unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(attribute.data as usize), length) }
            .to_vec()
    }

    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed) + 0x100
    }

    /// Makes it refuse a method, or no more.
    fn refuse(&self, method: (u16, u16), errno: Option<Errno>) {
        let mut refused = self.refused.lock().unwrap();
        match errno {
            Some(errno) => drop(refused.insert(method, errno)),
            None => drop(refused.remove(&method)),
        }
    }

    fn call(&self, index: usize) -> Call {
        self.calls.lock().unwrap()[index].clone()
    }

    /// Methods called so far, without the question for what the device can do.
    fn methods(&self) -> Vec<(u16, u16)> {
        let query = (object::DEVICE, method::device::INVOKE_WRITE);
        let calls = self.calls.lock().unwrap();
        calls.iter().map(|call| (call.object, call.method)).filter(|call| *call != query).collect()
    }

    fn mapped(&self) -> Vec<(u64, usize)> {
        self.mapped.lock().unwrap().clone()
    }
}

// SAFETY: it writes to the outputs of the methods that it knows, as long as they are. Mappings are anonymous memory.
unsafe impl Transport for Kernel {
    fn driver_id(&self) -> u32 {
        driver_id::RXE
    }

    fn issue(&self, packet: &mut Packet) -> Result<(), Errno> {
        let (object, method) = (packet.header().object_id, packet.header().method_id);
        let id = attr::invoke_write::WRITE_CMD;
        let legacy = packet.attributes().iter().find(|attribute| attribute.attr_id == id);
        if (object, method) == (object::CQ, method::cq::DESTROY)
            && let Some(channel) = self.watched.get()
            && let Ok(event) = channel.try_get_event()
        {
            self.seen.lock().unwrap().push(event.queue_id());
        }
        if let Some(errno) = self.refused.lock().unwrap().get(&(object, method)) {
            self.calls.lock().unwrap().push(Call { object, method, attributes: Vec::new() });
            return Err(*errno);
        }
        let answers = self.answers(object, method, legacy.map_or(0, |attribute| attribute.data));
        let mut call = Call { object, method, attributes: Vec::new() };
        for attribute in packet.attributes_mut() {
            let Some((_, answer)) = answers.iter().find(|(id, _)| *id == attribute.attr_id) else {
                call.attributes.push((attribute.attr_id, Self::input(attribute)));
                continue;
            };
            let cut = if attribute.attr_id == attr::uhw::OUT { self.cut } else { 0 };
            let written = &answer[..answer.len().saturating_sub(cut)];
            let (address, length) = (attribute.data as usize, usize::from(attribute.len));
            assert!(
                written.len() <= length,
                "{} bytes for {length} of attribute {}",
                written.len(),
                attribute.attr_id
            );
            let output = ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: outputs are pointers to so many bytes, which the command borrows.
            let before = unsafe { std::slice::from_raw_parts(output, length) };
            assert!(before.iter().all(|byte| *byte == 0), "an output that is not zero before");
            // SAFETY: as above; `before` is not used any more.
            unsafe { output.copy_from(written.as_ptr(), written.len()) };
            attribute.flags |= AttrFlags::VALID_OUTPUT.bits();
        }
        let new = match (object, method) {
            (object::CQ, method::cq::CREATE) => Some(attr::create_cq::HANDLE),
            (object::QP, method::qp::CREATE) => Some(attr::create_qp::HANDLE),
            (object::SRQ, method::srq::CREATE) => Some(attr::create_srq::HANDLE),
            _ => None,
        };
        if let Some(attribute) = packet.attributes_mut().iter_mut().find(|a| Some(a.attr_id) == new) {
            attribute.data = u64::from(HANDLE);
        }
        if (object, method) == (object::ASYNC_EVENT, method::async_event::ALLOC) {
            packet.attributes_mut()[0].data = pipe().unwrap().0.into_raw_fd() as u64;
        }
        self.calls.lock().unwrap().push(call);
        Ok(())
    }

    fn doorbell(&self, _: Doorbell) -> Result<(), Errno> {
        Ok(())
    }

    fn map(&self, offset: u64, length: usize) -> Result<MmapRaw, Errno> {
        self.mapped.lock().unwrap().push((offset, length));
        let slots = length.checked_sub(size_of::<QueueBuf>()).ok_or(Errno::EINVAL)? >> SHIFT;
        let map = MmapRaw::from(MmapOptions::new().len(length).map_anon().unwrap());
        let header = QueueBuf { log2_elem_size: SHIFT, index_mask: slots as u32 - 1, ..Default::default() };
        // SAFETY: the mapping is at least as long, and nobody else has it.
        unsafe { map.as_mut_ptr().cast::<QueueBuf>().write(header) };
        Ok(map)
    }
}

// SAFETY: as what it refers to.
unsafe impl Transport for &'static Kernel {
    fn driver_id(&self) -> u32 {
        (**self).driver_id()
    }

    fn issue(&self, packet: &mut Packet) -> Result<(), Errno> {
        (**self).issue(packet)
    }

    fn doorbell(&self, doorbell: Doorbell) -> Result<(), Errno> {
        (**self).doorbell(doorbell)
    }

    fn map(&self, offset: u64, length: usize) -> Result<MmapRaw, Errno> {
        (**self).map(offset, length)
    }
}

fn cq_request() -> CqRequest<'static> {
    CqRequest { cqe: 100, user_handle: 0x0102_0304_0506_0708, comp_vector: 3, channel: None }
}

fn qp_request() -> QpRequest {
    QpRequest {
        pd: 11,
        send_cq: 12,
        recv_cq: 13,
        srq: None,
        user_handle: 14,
        cap: QpCap { max_send_wr: 20, max_recv_wr: 5, ..CAP },
        qp_type: qp_type::RC,
        flags: 0,
    }
}

const SRQ: SrqRequest = SrqRequest { pd: 21, user_handle: 22, max_wr: 60, max_sge: 2 };

fn of(info: MmapInfo) -> (u64, usize) {
    (info.offset, info.size as usize)
}

#[test]
fn vb_34_answers_come_from_their_own_attributes() {
    let (kernel, ops) = (Kernel::default(), Ops::default());
    let cq = ops.create_cq(&kernel, &cq_request()).unwrap();
    assert_eq!((cq.handle, cq.entries), (HANDLE, 127));
    let qp = ops.create_qp(&kernel, &qp_request(), false).unwrap();
    assert_eq!((qp.created.handle, qp.created.qp_num), (HANDLE, QP_NUM));
    let cap = qp.created.cap;
    assert_eq!((cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data), (5, 3, 80));
    // The rings say how much fits: Linux 6.1 answers with what was asked for.
    assert_eq!((cap.max_send_wr, cap.max_recv_wr), (31, 7));
    let srq = ops.create_srq(&kernel, &SRQ).unwrap();
    assert_eq!((srq.created.handle, srq.number), (HANDLE, 0x5501));
    assert_eq!((srq.created.max_wr, srq.created.max_sge), (63, 6));
    let address = AddressVector::global(1, crate::Gid::default(), 1).attributes();
    let request = CreateAh { pd_handle: 31, attr: address, ..Default::default() };
    let address = ops.create_address_handle(&kernel, &request).unwrap();
    assert_eq!((address.handle, address.number), (HANDLE, 0x77));
}

#[test]
fn vb_34_short_answers_are_errors_that_leave_nothing() {
    for cut in [8, 16, 32] {
        let (kernel, ops) = (Kernel { cut, ..Default::default() }, Ops::default());
        ops.create_cq(&kernel, &cq_request()).map(|_| ()).unwrap_err();
        ops.create_qp(&kernel, &qp_request(), false).map(|_| ()).unwrap_err();
        let expected = [
            (object::CQ, method::cq::CREATE),
            (object::CQ, method::cq::DESTROY),
            (object::QP, method::qp::CREATE),
            (object::QP, method::qp::DESTROY),
        ];
        assert_eq!(kernel.methods(), expected);
        assert_eq!(kernel.call(1).value::<u64>(attr::destroy_cq::HANDLE), u64::from(HANDLE));
        let address = AddressVector::global(1, crate::Gid::default(), 1).attributes();
        let request = CreateAh { pd_handle: 31, attr: address, ..Default::default() };
        let error = ops.create_address_handle(&kernel, &request).map(|_| ()).unwrap_err();
        assert_eq!(error, Errno::EOPNOTSUPP);
        assert_eq!(kernel.methods()[4..], [(object::AH, method::ah::DESTROY)]);
    }
    let (kernel, ops) = (Kernel { cut: 24, ..Default::default() }, Ops::default());
    ops.create_srq(&kernel, &SRQ).map(|_| ()).unwrap_err();
    assert_eq!(kernel.methods(), [(object::SRQ, method::srq::CREATE), (object::SRQ, method::srq::DESTROY)]);
}

#[test]
fn vb_39_rings_are_mapped_as_the_driver_says() {
    let (kernel, ops) = (Kernel::default(), Ops::default());
    let mut cq = ops.create_cq(&kernel, &cq_request()).unwrap();
    assert_eq!(kernel.mapped(), [of(CQ)]);
    assert_eq!(cq.ring.resize(&kernel, cq.handle, 300), Ok(511));
    let _qp = ops.create_qp(&kernel, &qp_request(), false).unwrap();
    let _srq = ops.create_srq(&kernel, &SRQ).unwrap();
    // None of them is a number of pages, or begins where others end.
    let all = [CQ, ring(0x5000, 512), ring(0x2000, 8), ring(0x3000, 32), ring(0x4000, 64)];
    assert!(all.iter().all(|info| info.size % 4096 != 0));
    assert_eq!(kernel.mapped(), all.map(of));
}

/// Fills the stack with what later calls might take for their own.
#[inline(never)]
fn dirty(byte: u8) {
    let mut stack = [0_u8; 16 << 10];
    stack.fill(byte);
    std::hint::black_box(&mut stack);
}

#[test]
fn vb_35_the_kernel_sees_what_was_asked_for_and_zeros() {
    let mut seen = Vec::new();
    for byte in [0xff, 0xa5, 0x00] {
        let (kernel, ops) = (Kernel::default(), Ops::default());
        dirty(byte);
        let mut cq = ops.create_cq(&kernel, &cq_request()).unwrap();
        dirty(byte);
        cq.ring.resize(&kernel, 3, 300).unwrap();
        dirty(byte);
        ops.create_qp(&kernel, &qp_request(), false).unwrap();
        dirty(byte);
        ops.create_srq(&kernel, &SRQ).unwrap();
        dirty(byte);
        let plain = CreateAh {
            pd_handle: 31,
            attr: AddressVector { port: 1, ..Default::default() }.attributes(),
            ..Default::default()
        };
        ops.create_address_handle(&kernel, &plain).unwrap();
        seen.push(kernel.calls.into_inner().unwrap());
    }
    assert!(seen[0] == seen[1] && seen[1] == seen[2]);

    let [create_cq, resize, query, create_qp, create_srq, create_ah] = &seen[0][..] else {
        panic!("{:?}", seen[0]);
    };
    let ids = |call: &Call| call.attributes.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    use attr::create_cq as cq;
    assert_eq!(ids(create_cq), [cq::HANDLE, cq::CQE, cq::USER_HANDLE, cq::COMP_VECTOR]);
    assert_eq!(create_cq.value::<u32>(cq::CQE), 100);
    assert_eq!(create_cq.value::<u64>(cq::USER_HANDLE), 0x0102_0304_0506_0708);
    let expected = ResizeCq { cq_handle: 3, cqe: 300, ..Default::default() };
    let core = |call: &Call| {
        let is_core = |(id, _): &&(u16, Vec<u8>)| *id == attr::invoke_write::CORE_IN;
        call.attributes.iter().find(is_core).unwrap().1.clone()
    };
    assert_eq!(core(resize), expected.as_bytes());
    assert_eq!(core(query), ExQueryDevice::default().as_bytes());
    use attr::create_qp as qp;
    // No SRQ and nothing else that was not asked for.
    let expected = [
        qp::HANDLE,
        qp::PD_HANDLE,
        qp::SEND_CQ_HANDLE,
        qp::RECV_CQ_HANDLE,
        qp::USER_HANDLE,
        qp::CAP,
        qp::TYPE,
        qp::FLAGS,
    ];
    assert_eq!(ids(create_qp), expected);
    assert_eq!(create_qp.value::<QpCap>(qp::CAP).as_bytes(), qp_request().cap.as_bytes());
    assert_eq!(create_qp.value::<u64>(qp::FLAGS), 0);
    use attr::create_srq as srq;
    assert_eq!(create_srq.value::<u32>(srq::LIMIT), 0);
    assert_eq!(create_srq.value::<u32>(srq::MAX_WR), 60);
    let expected = CreateAh {
        pd_handle: 31,
        attr: legacy::AhAttr { port_num: 1, ..Default::default() },
        ..Default::default()
    };
    assert_eq!(core(create_ah), expected.as_bytes());
}

#[test]
fn vb_35_an_srq_is_told_of_what_changes_alone() {
    let (kernel, ops) = (Kernel::default(), Ops::default());
    let mut srq = ops.create_srq(&kernel, &SRQ).unwrap();
    srq.ring.set_limit(&kernel, 9, 5).unwrap();
    // This kernel does not say where the new ring is.
    srq.ring.resize(&kernel, 9, 70).unwrap_err();
    let limit = ModifySrq { srq_handle: 9, attr_mask: 2, max_wr: 0, srq_limit: 5 };
    let size = ModifySrq { srq_handle: 9, attr_mask: 1, max_wr: 70, srq_limit: 0 };
    for (index, expected) in [(1, limit), (2, size)] {
        let call = kernel.call(index);
        assert_eq!(call.value::<ModifySrq>(attr::invoke_write::CORE_IN).as_bytes(), expected.as_bytes());
    }
}
