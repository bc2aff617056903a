//! Two processes that write into and read from each other's memory, and check every byte.
//!
//! One end waits: `cargo run --example remote_memory -- rxe0 1 18600`; the other connects:
//! `cargo run --example remote_memory -- rxe0 1 18600 192.0.2.1`. The arguments are device, GID index, TCP port and host.
//! `tests/interop/remote_memory.c` is the same for libibverbs, and either end of this.
//!
//! Over TCP the ends tell number of the queue pair, GID, address and key of their memory, in hexadecimal with colons between, and
//! a byte whenever they are to wait for each other. The memory of each has four areas: what the peer reads, where the peer writes,
//! what is written to the peer, and where goes what is read from it.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use uverbs::{
    AccessFlags, AddressVector, CompletionQueue, Device, Gid, MemoryRegion, ModifyQueuePair, Mtu, QueuePair,
    QueuePairCapabilities, QueuePairInit, RemoteMemory, SendRequest, WorkCompletion,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const AREA: usize = (1 << 20) + 64;
const OWN: usize = 0;
const LANDING: usize = AREA;
const LOCAL: usize = 2 * AREA;
const SEEN: usize = 3 * AREA;
/// Bytes, and where in each area.
const ROUNDS: [(usize, usize); 5] = [(1, 0), (64, 3), (4096, 61), (65_539, 7), (1 << 20, 64)];
const WIPED: u8 = 0xa5;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (device, gid_index, port, host) = match &arguments[..] {
        [device, gid_index, port] => (device, gid_index.parse()?, port.parse()?, None),
        [device, gid_index, port, host] => (device, gid_index.parse()?, port.parse()?, Some(host.as_str())),
        _ => return Err("usage: remote_memory DEVICE GID_INDEX TCP_PORT [HOST]".into()),
    };
    let context = Device::find(device)?.open()?;
    let domain = context.alloc_protection_domain()?;
    let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let mut memory = domain.allocate(4 * AREA, AccessFlags::LOCAL_WRITE | remote)?;
    let mut cq = context.create_completion_queue(2, None, 0)?;
    let capabilities = QueuePairCapabilities { max_send_wr: 2, ..Default::default() };
    let mut qp = domain
        .create_queue_pair(&QueuePairInit { capabilities, ..QueuePairInit::reliable_connection(&cq) })?;
    let gid = context.query_gid(1, u32::from(gid_index))?.gid;

    let mut peer = match host {
        Some(host) => TcpStream::connect((host, port))?,
        None => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?.accept()?.0,
    };
    peer.set_read_timeout(Some(PATIENCE))?;
    let own = Address { qp_num: qp.qp_num(), gid, address: memory.address(), rkey: memory.rkey() };
    peer.write_all(own.to_text().as_bytes())?;
    let mut text = [0; Address::LENGTH];
    peer.read_exact(&mut text)?;
    let other = Address::from_text(std::str::from_utf8(&text)?).ok_or("the peer sent no address")?;

    let to = AddressVector::global(1, other.gid, gid_index);
    qp.modify(&ModifyQueuePair::init(1, remote))?;
    qp.modify(&ModifyQueuePair::ready_to_receive(to, other.qp_num, 0, Mtu::Bytes1024))?;
    qp.modify(&ModifyQueuePair::ready_to_send(0))?;

    let (me, them) = if host.is_some() { (1, 0) } else { (0, 1) };
    for (round, (length, offset)) in ROUNDS.into_iter().enumerate() {
        let bytes: Vec<_> = (offset..offset + length).map(|place| pattern(me, round, place)).collect();
        memory.write(OWN + offset, &bytes);
        memory.write(LOCAL + offset, &bytes);
        memory.write(LANDING, &[WIPED; AREA]);
        memory.write(SEEN, &[WIPED; AREA]);
        meet(&mut peer)?;
        exchange(&mut qp, &mut cq, &memory, &other, offset, length)?;
        check(&memory, SEEN, them, round).map_err(|error| format!("round {round}, read: {error}"))?;
        meet(&mut peer)?;
        check(&memory, LANDING, them, round)
            .map_err(|error| format!("round {round}, written by the peer: {error}"))?;
    }
    println!("{} rounds, up to {} bytes each way", ROUNDS.len(), 1 << 20);
    Ok(())
}

/// Both ends have come as far.
fn meet(peer: &mut TcpStream) -> Result<()> {
    peer.write_all(b".")?;
    Ok(peer.read_exact(&mut [0])?)
}

/// Writes to the peer and reads from it, with one doorbell, and waits for both.
fn exchange(
    qp: &mut QueuePair,
    cq: &mut CompletionQueue,
    memory: &MemoryRegion,
    other: &Address,
    offset: usize,
    length: usize,
) -> Result<()> {
    let at = |area: usize| RemoteMemory { address: other.address + (area + offset) as u64, rkey: other.rkey };
    let range = |area: usize| area + offset..area + offset + length;
    qp.post_send()
        .push(&SendRequest::rdma_write(1, &[memory.sge(range(LOCAL))], at(LANDING)).signaled())
        .push(&SendRequest::rdma_read(2, &[memory.sge(range(SEEN))], at(OWN)).signaled())
        .submit()?;
    let deadline = Instant::now() + PATIENCE;
    let mut wanted = 1;
    while wanted <= 2 {
        if Instant::now() > deadline {
            return Err(format!("no completion of request {wanted}").into());
        }
        for completion in cq.poll(&mut [WorkCompletion::default(); 2]) {
            completion.success()?;
            if completion.wr_id() != wanted {
                return Err(format!("request {} before {wanted}", completion.wr_id()).into());
            }
            wanted += 1;
        }
    }
    Ok(())
}

/// Every byte of an area: the pattern in the stretch, and nothing written beside it.
fn check(memory: &MemoryRegion, area: usize, end: usize, round: usize) -> Result<()> {
    let mut bytes = vec![0; AREA];
    memory.read(area, &mut bytes);
    let (length, offset) = ROUNDS[round];
    for (place, byte) in bytes.into_iter().enumerate() {
        let within = (offset..offset + length).contains(&place);
        let wanted = if within { pattern(end, round, place) } else { WIPED };
        if byte != wanted {
            return Err(format!("byte {place} is {byte:#04x}, not {wanted:#04x}").into());
        }
    }
    Ok(())
}

fn pattern(end: usize, round: usize, place: usize) -> u8 {
    (place * 31 + place / 251 + (end * 16 + round) * 7) as u8
}

/// What a peer has to know.
struct Address {
    qp_num: u32,
    gid: Gid,
    address: u64,
    rkey: u32,
}

impl Address {
    const LENGTH: usize = 66;

    fn to_text(&self) -> String {
        let Self { qp_num, gid, address, rkey } = self;
        format!("{qp_num:06x}:{:032x}:{address:016x}:{rkey:08x}\n", u128::from_be_bytes(gid.0))
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut fields =
            text.strip_suffix('\n')?.split(':').map(|field| u128::from_str_radix(field, 16).ok());
        let mut next = || fields.next().flatten();
        Some(Self {
            qp_num: next()?.try_into().ok()?,
            gid: Gid(next()?.to_be_bytes()),
            address: next()?.try_into().ok()?,
            rkey: next()?.try_into().ok()?,
        })
    }
}
