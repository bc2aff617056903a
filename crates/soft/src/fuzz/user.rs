//! The user's side: what a provider of `uverbs` does, in short, and where rings can be filled with anything.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fastrand::Rng;
use memmap2::MmapRaw;
use uverbs_ioctl::{Result, Transport, calls};
use uverbs_uapi::ioctl_verbs::QpCap;
use uverbs_uapi::rxe::{
    CreateCqResp, CreateQpResp, CreateSrqResp, DmaInfo, MmapInfo, QueueBuf, RecvWqe, SendWqe, SendWr, Sge,
};
use uverbs_uapi::user_verbs::{ModifyQp, QpDest, RegMr, RegMrResp, Wc};
use uverbs_uapi::values::{QpAttrMask as Mask, SendFlags, qp_state};
use zerocopy::{FromBytes, IntoBytes};

use crate::context::Opened;
use crate::device::Device;

/// A ring as the user has mapped it.
#[derive(Clone)]
pub(crate) struct UserRing {
    map: Arc<MmapRaw>,
    mask: u32,
    shift: u32,
    /// The index that is the user's to move.
    own: u32,
}

impl UserRing {
    pub(crate) fn map(transport: &dyn Transport, info: &MmapInfo) -> Result<Self> {
        let map = Arc::new(transport.map(info.offset, info.size as usize)?);
        let mut ring = Self { map, mask: 0, shift: 0, own: 0 };
        ring.mask = ring.word(offset_of!(QueueBuf, index_mask)).load(Ordering::Relaxed);
        ring.shift = ring.word(offset_of!(QueueBuf, log2_elem_size)).load(Ordering::Relaxed);
        assert!(size_of::<QueueBuf>() + ((ring.mask as usize + 1) << ring.shift) <= info.size as usize);
        Ok(ring)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.map.len());
        // SAFETY: an aligned word in the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    pub(crate) fn producer(&self) -> &AtomicU32 {
        self.word(offset_of!(QueueBuf, producer_index))
    }

    pub(crate) fn consumer(&self) -> &AtomicU32 {
        self.word(offset_of!(QueueBuf, consumer_index))
    }

    /// The user's index becomes that of the device.
    pub(crate) fn agree(&mut self) {
        self.own = self.consumer().load(Ordering::Acquire) & self.mask;
        self.producer().store(self.own, Ordering::Release);
    }

    /// Puts an element there, as much as fits, and shows it.
    pub(crate) fn push(&mut self, element: &[u8]) {
        let length = element.len().min(1 << self.shift);
        let start = size_of::<QueueBuf>() + (((self.own & self.mask) as usize) << self.shift);
        for (place, four) in (start..).step_by(4).zip(element[..length].chunks_exact(4)) {
            let word = four.try_into().map(u32::from_ne_bytes).unwrap_or_default();
            self.word(place).store(word, Ordering::Relaxed);
        }
        self.own = (self.own + 1) & self.mask;
        self.producer().store(self.own, Ordering::Release);
    }

    /// Takes the oldest completion.
    pub(crate) fn poll(&mut self) -> Option<Wc> {
        if self.own & self.mask == self.producer().load(Ordering::Acquire) & self.mask {
            return None;
        }
        let start = size_of::<QueueBuf>() + (((self.own & self.mask) as usize) << self.shift);
        let mut bytes = [0; size_of::<Wc>()];
        for (place, four) in (start..).step_by(4).zip(bytes.chunks_exact_mut(4)) {
            four.copy_from_slice(&self.word(place).load(Ordering::Relaxed).to_ne_bytes());
        }
        self.own = (self.own + 1) & self.mask;
        self.consumer().store(self.own, Ordering::Release);
        Wc::read_from_bytes(&bytes).ok()
    }

    /// Writes anything anywhere, the header included.
    pub(crate) fn scribble(&self, random: &mut Rng) {
        let words = self.map.len() / 4;
        let word = match random.u8(..8) {
            0 => random.usize(..size_of::<QueueBuf>() / 4),
            _ => random.usize(..words.min(size_of::<QueueBuf>() / 4 + 1024)),
        };
        self.word(word * 4).store(anything(random), Ordering::Relaxed);
    }
}

/// A number of 32 bits, often one that is near to an edge.
pub(crate) fn anything(random: &mut Rng) -> u32 {
    match random.u8(..4) {
        0 => random.u32(..),
        1 => random.u32(..4),
        2 => u32::MAX - random.u32(..4),
        _ => 1 << random.u32(..32),
    }
}

/// A CQ, an SRQ or a QP, with its handle and its number.
pub(crate) struct Queue {
    pub(crate) handle: u32,
    pub(crate) number: u32,
    /// Receives of a QP with an SRQ are in the SRQ's.
    pub(crate) receives: Option<UserRing>,
    /// Requests of a QP, completions of a CQ.
    pub(crate) ring: Option<UserRing>,
}

pub(crate) fn open(device: &Device) -> Result<Opened> {
    let opened = device.open()?;
    calls::get_context(&opened, &(), &mut ())?;
    Ok(opened)
}

pub(crate) fn create_cq(context: &Opened, cqe: u32) -> Queue {
    let request = calls::CqRequest { cqe, user_handle: 0, comp_vector: 0, channel: None };
    let mut driver = CreateCqResp::default();
    let (handle, _) = calls::create_cq(context, &request, &(), &mut driver).unwrap();
    let ring = Some(UserRing::map(context, &driver.mi).unwrap());
    Queue { handle, number: 0, receives: None, ring }
}

pub(crate) fn create_srq(context: &Opened, pd: u32, max_wr: u32, max_sge: u32) -> Queue {
    let request = calls::SrqRequest { pd, user_handle: 0, max_wr, max_sge };
    let mut driver = CreateSrqResp::default();
    let created = calls::create_srq(context, &request, &(), &mut driver).unwrap();
    let receives = Some(UserRing::map(context, &driver.mi).unwrap());
    Queue { handle: created.handle, number: driver.srq_num, receives, ring: None }
}

pub(crate) fn create_qp(context: &Opened, of: (u32, u32, Option<u32>), qp_type: u32, depth: u32) -> Queue {
    let cap = QpCap {
        max_send_wr: depth,
        max_recv_wr: 4 * depth,
        max_send_sge: 3,
        max_recv_sge: 3,
        max_inline_data: 64,
    };
    create_qp_with(context, of, qp_type, cap)
}

pub(crate) fn create_qp_with(
    context: &Opened,
    (pd, cq, srq): (u32, u32, Option<u32>),
    qp_type: u32,
    cap: QpCap,
) -> Queue {
    let request =
        calls::QpRequest { pd, send_cq: cq, recv_cq: cq, srq, user_handle: 0, cap, qp_type, flags: 0 };
    let mut driver = CreateQpResp::default();
    let created = calls::create_qp(context, &request, &(), &mut driver).unwrap();
    let ring = Some(UserRing::map(context, &driver.sq_mi).unwrap());
    let receives = srq.is_none().then(|| UserRing::map(context, &driver.rq_mi).unwrap());
    Queue { handle: created.handle, number: created.qp_num, receives, ring }
}

/// Registers memory by its address.
///
/// # Safety
/// The device may use the memory until the region is deregistered, or the context closed.
pub(crate) unsafe fn register(
    context: &Opened,
    pd: u32,
    start: u64,
    length: usize,
    access: u32,
) -> RegMrResp {
    let request = RegMr {
        start,
        length: length as u64,
        hca_va: start,
        pd_handle: pd,
        access_flags: access,
        ..Default::default()
    };
    // SAFETY: the caller's.
    unsafe { calls::reg_mr(context, &request) }.unwrap()
}

/// The GID of a device's IPv4 address, which has index 1.
pub(crate) fn gid(device: &Device) -> [u8; 16] {
    let mut gid = [0; 16];
    let [.., high, low] = (device.guid() as u32 & 0xff_ffff).to_be_bytes();
    gid[10..].copy_from_slice(&[0xff, 0xff, 192, 168, 77 + high, low]);
    gid
}

/// What takes a QP of any type from one state to the next.
pub(crate) fn step(qp: u32, gid: [u8; 16], peer: u32, to: u32, mask: Mask) -> ModifyQp {
    let dest =
        QpDest { dgid: gid, sgid_index: 1, is_global: 1, port_num: 1, hop_limit: 1, ..Default::default() };
    ModifyQp {
        dest,
        qp_handle: qp,
        attr_mask: (mask | Mask::STATE).bits(),
        dest_qp_num: peer,
        qp_access_flags: 0xf,
        qp_state: to as u8,
        path_mtu: 3,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        port_num: 1,
        timeout: 1,
        retry_cnt: 7,
        rnr_retry: 7,
        ..Default::default()
    }
}

/// Connects a QP to another, from whatever state it is in.
pub(crate) fn connect(context: &Opened, qp: u32, qp_type: u32, gid: [u8; 16], peer: u32) -> Result<()> {
    use uverbs_uapi::ioctl_verbs::qp_type::{RC, UD};
    let (init, receive, send) = match qp_type {
        UD => (Mask::QKEY, Mask::empty(), Mask::SQ_PSN),
        RC => (
            Mask::ACCESS_FLAGS,
            Mask::AV
                | Mask::PATH_MTU
                | Mask::DEST_QPN
                | Mask::RQ_PSN
                | Mask::MAX_DEST_RD_ATOMIC
                | Mask::MIN_RNR_TIMER,
            Mask::SQ_PSN | Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC,
        ),
        _ => (Mask::ACCESS_FLAGS, Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN, Mask::SQ_PSN),
    };
    for (to, mask) in [
        (qp_state::RESET, Mask::empty()),
        (qp_state::INIT, init | Mask::PKEY_INDEX | Mask::PORT),
        (qp_state::RTR, receive),
        (qp_state::RTS, send),
    ] {
        calls::invoke(context, &step(qp, gid, peer, to, mask))?;
    }
    Ok(())
}

fn dma(sges: &[Sge]) -> DmaInfo {
    let length = sges.iter().map(|sge| sge.length).fold(0, u32::wrapping_add);
    DmaInfo { length, resid: length, num_sge: sges.len() as u32, ..Default::default() }
}

/// A request as it goes into a ring.
pub(crate) fn send(wr: SendWr, sges: &[Sge], inline: &[u8]) -> Vec<u8> {
    let is_inline = wr.send_flags & SendFlags::INLINE.bits() != 0;
    let dma =
        if is_inline { DmaInfo { length: inline.len() as u32, ..Default::default() } } else { dma(sges) };
    let wqe = SendWqe { wr, dma, ..Default::default() };
    let mut bytes = wqe.as_bytes().to_vec();
    bytes.extend_from_slice(if is_inline { inline } else { sges.as_bytes() });
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub(crate) fn receive(wr_id: u64, sges: &[Sge]) -> Vec<u8> {
    let wqe = RecvWqe { wr_id, dma: dma(sges), ..Default::default() };
    [wqe.as_bytes(), sges.as_bytes()].concat()
}

/// The part of a request that depends on its operation.
pub(crate) fn part<T: IntoBytes + zerocopy::Immutable>(part: &T) -> [u64; 15] {
    let mut words = [0; 15];
    words.as_mut_bytes()[..size_of::<T>()].copy_from_slice(part.as_bytes());
    words
}
